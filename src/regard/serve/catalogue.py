"""What a server has: runs, with their workers and training logs, and folders of comparisons.

Requests choose among the names that were given at start; no path comes from a request. A run that is still
training is loaded as soon as it has weights, and again when it has better ones.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard import documents, schemas, shipped
from regard.api import Translator, load
from regard.errors import UserError, join_names, suggest
from regard.export.page import distinct_names
from regard.models import weights
from regard.page.pack import describe
from regard.page.schema import ModelInfo
from regard.runs import CARD, LOG, RunFolder, is_run
from regard.serve import answers, schema
from regard.serve.batching import Job, Pool
from regard.serve.settings import RequestError, Settings
from regard.tables import read_markdown_table
from regard.text import hub
from regard.translation import Decoding

WEIGHTS = "model.safetensors"
POLL = 2.0  # seconds between two looks at a run in training
MOST_SAMPLES = 200

Observe = Callable[[list[Job], float], None]


@dataclass
class ServedRun:
    """A run, or an ensemble of several: workers once there are weights, translations along the training."""

    name: str
    folders: tuple[Path, ...]
    settings: Settings
    observe: Observe
    pool: Pool | None = None
    info: ModelInfo | None = None
    version: tuple[tuple[int, int], ...] | None = None
    """Time and size of the weights in use, by folder."""
    step: int | None = None
    samples: list[schema.Sample] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        return all((folder / CARD).is_file() for folder in self.folders)

    @property
    def weights_version(self) -> tuple[tuple[int, int], ...] | None:
        """Of the weights in each folder; None: a folder has none yet."""
        try:
            found = [(folder / WEIGHTS).stat() for folder in self.folders]
        except OSError:
            return None
        return tuple((status.st_mtime_ns, status.st_size) for status in found)

    @property
    def log_folder(self) -> Path | None:
        """Where the training log is; None: an ensemble has several."""
        return self.folders[0] if len(self.folders) == 1 else None

    def load(self) -> None:
        """Load the weights in the folders, one copy for each worker."""
        self.version = self.weights_version
        settings = self.settings
        translators = [load_model(self.folders, settings) for _ in range(settings.workers)]
        self.info = describe(translators[0], self.name)
        if self.log_folder is not None:
            self.step = weights.read_record(self.log_folder / WEIGHTS).get("step")
        if self.pool is None:
            options = settings.limits.queue, settings.window, settings.max_batch
            self.pool = Pool(translators, *options, self.observe)
        else:
            self.pool.replace(translators)

    async def add_sample(self) -> None:
        """Translate the example sentences with the weights in use."""
        if self.pool is None or self.info is None or not self.info.examples:
            return
        sources = self.info.examples
        given = answers.Texts(sources, Decoding())
        outputs = await self.pool.submit(answers.translate, given, len(sources))
        texts = tuple(one.text for one in outputs)
        sample = schema.Sample(step=self.step, sources=sources, outputs=texts)
        self.samples = [*self.samples, sample][-MOST_SAMPLES:]

    async def follow(self) -> None:
        """Until training is over: load better weights, and sample translations."""
        is_finished = False
        await self.add_sample()
        while not is_finished:
            is_finished = self.is_finished
            if self.weights_version not in (None, self.version):
                try:
                    await asyncio.to_thread(self.load)
                    await self.add_sample()
                except (UserError, RequestError):  # half-written, or busy: at the next look
                    self.version, is_finished = None, False
            if not is_finished:
                await asyncio.sleep(POLL)

    def state(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "finished": self.is_finished,
            "ready": self.pool is not None,
            "logged": self.log_folder is not None and (self.log_folder / LOG).is_file(),
            "step": self.step,
        }

    def log(self, after: int) -> schema.TrainingLog:
        """What it has logged since."""
        events = [] if self.log_folder is None else RunFolder(self.log_folder).events
        return schema.TrainingLog(
            **self.state(),
            events=tuple(events[after:]),
            next=len(events),
            samples=tuple(self.samples),
        )


def load_model(folders: Sequence[Path], settings: Settings) -> Translator:
    """The one place where a model is loaded."""
    options = {"int8": settings.int8, "bfloat16": settings.bfloat16, "engine": settings.engine}
    return load(folders, settings.device, **options)


def read_comparison(name: str, folder: Path) -> schema.Comparison:
    """Tables and curves of a comparison, which may still run."""
    results, path = folder / "results.json", folder / "table.md"
    table = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    rows, notes = read_markdown_table(table)
    return schema.Comparison(
        name=name,
        finished=results.is_file(),
        results=documents.read(results) if results.is_file() else None,
        table=table,
        columns=rows[0] if rows else (),
        rows=rows[1:],
        notes=notes,
        curves={
            str(path.parent.relative_to(folder)): read_curve(path)
            for path in sorted(folder.glob(f"runs/*/*/{LOG}"))
        },
    )


def read_curve(path: Path) -> tuple[tuple[int, float], ...]:
    """(step, validation loss); a half-written last line is left out."""
    events = documents.read_lines(path, schemas.event_schema)
    return tuple((e["step"], e["loss"]) for e in events if e.get("event") == "validation")


@dataclass
class Catalogue:
    """All runs and comparisons, by name."""

    runs: dict[str, ServedRun]
    comparisons: dict[str, Path]
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    @classmethod
    def open(cls, settings: Settings, observe: Observe) -> "Catalogue":
        """Load what has weights; an error for a folder that is neither trained nor in training."""
        members = [shipped.split_runs(run) for run in settings.runs]
        folders = [tuple(hub.find_run(run) for run in runs) for runs in members]
        names = list(distinct_names(settings.runs))
        runs = {
            name: ServedRun(name, each, settings, observe)
            for name, each in zip(names, folders, strict=True)
        }
        for run in runs.values():
            if run.weights_version is not None or not all(map(is_run, run.folders)):
                run.load()
        for folder in settings.comparisons:
            if not (folder / "results.json").is_file() and not (folder / "runs").is_dir():
                raise UserError(
                    f"{folder} is no folder of a comparison: give the --out of `regard compare`"
                )
        comparisons = dict(
            zip(distinct_names(settings.comparisons), settings.comparisons, strict=True)
        )
        return cls(runs, comparisons)

    def start(self) -> None:
        """Follow the runs that are still training; call it in an event loop."""
        self.tasks = [
            asyncio.create_task(run.follow()) for run in self.runs.values() if not run.is_finished
        ]

    def stop(self, seconds: float) -> None:
        """Finish what has begun."""
        for task in self.tasks:
            task.cancel()
        for run in self.runs.values():
            if run.pool is not None:
                run.pool.close(seconds)

    def find_run(self, name: str) -> ServedRun:
        return find(self.runs, name, "model")

    def find_model(self, name: str | None) -> ServedRun:
        """A run that can translate; the first by default."""
        if not self.runs:
            raise RequestError(404, "unknown-model", "this server has no model")
        run = self.find_run(next(iter(self.runs)) if name is None else name)
        if run.pool is None:
            raise RequestError(
                409,
                "not-ready",
                f'"{run.name}" has no weights yet: its training has not reached a validation',
            )
        return run

    def read_comparison(self, name: str) -> schema.Comparison:
        return read_comparison(name, find(self.comparisons, name, "comparison"))


def find(among: dict[str, Any], name: str, noun: str) -> Any:
    """The value of a name, or an error that lists the names."""
    if name not in among:
        names = f"there is {join_names(among)}" if among else "there is none"
        message = f'there is no {noun} "{name[:80]}": {names}.{suggest(name[:80], among)}'
        raise RequestError(404, f"unknown-{noun}", message)
    return among[name]
