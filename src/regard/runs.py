"""What run folders hold: their cards, logs, evaluations and files. Needs no PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from regard import documents, presets, schemas, shipped
from regard.errors import UserError

CARD, CONFIG, LOG = "card.json", "config.toml", "metrics.jsonl"
Document = dict[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """A run folder, read without checking its settings: an earlier version may have written it."""

    folder: Path

    @cached_property
    def card(self) -> Document:
        """The result card; empty while the run is not finished."""
        path = self.folder / CARD
        return documents.read(path, schemas.Card) if path.is_file() else {}

    @cached_property
    def config(self) -> Document:
        """The settings of the run, as nested tables."""
        path = self.folder / CONFIG
        if not path.is_file():
            return self.card.get("config", {})
        try:
            return documents.check(presets.read_file(path), schemas.Settings)
        except ValueError as error:
            raise error if isinstance(error, UserError) else UserError(f"{path}: {error}") from None

    @cached_property
    def events(self) -> list[Document]:
        """The log: a start event, then one event per validation. A half-written last line is left out."""
        path = self.folder / LOG
        return documents.read_lines(path, schemas.event_schema) if path.is_file() else []

    @cached_property
    def evaluations(self) -> list[Document]:
        """A row per split and beam width, from the evaluations in the folder or on the card."""
        saved = [
            documents.read(path, schemas.Evaluation)
            for path in sorted(self.folder.glob("evaluation-*.json"))
        ]
        names = ("beam", "bleu", "bleu_lower", "bleu_tokens", "chrf", "exact_match", "sentences")
        return [
            {"split": document["split"]} | {name: result.get(name) for name in names}
            for document in [
                *saved,
                *self.card.get("evaluations", []),
                *self.shipped_evaluation,
            ]
            for result in document["results"]
        ]

    @property
    def shipped_evaluation(self) -> list[Document]:
        """The evaluation on the card of a shipped model, with its weights as they are: int8."""
        document = self.card.get("evaluation")
        return [{"split": document["split"], **document["int8"]}] if document else []

    @property
    def is_finished(self) -> bool:
        return bool(self.card)

    @property
    def figures(self) -> Document:
        """The figures of the card or, of an unfinished run, those of the best validation so far."""
        if self.card:
            return self.card.get("figures", {})
        start: Document = self.events[0] if self.events else {}
        validations = [event for event in self.events if event.get("event") == "validation"]
        figures = {"parameters": start.get("parameters")}
        if validations:
            best = min(validations, key=lambda event: event["loss"])
            last = validations[-1]
            figures |= {"val_loss": best["loss"], "best_step": best["step"], "steps": last["step"]}
            figures["training_seconds"] = last["seconds"]
        return figures

    @property
    def start(self) -> Document:
        """Where the run was trained: versions, device."""
        return self.card or (self.events[0] if self.events else {})

    @cached_property
    def preset(self) -> str | None:
        """The preset with the description of this run, or else with its settings; None: neither."""
        description = self.config.get("description")
        described = (name for name, text in presets.names().items() if text == description)
        found = next(described, None) if description else None
        return found or next((name for name in presets.names() if not self.compare(name)), None)

    @property
    def changes(self) -> Document:
        """The settings that differ from those of the preset, by dotted key."""
        return self.compare(self.preset) if self.preset else {}

    def compare(self, preset: str) -> Document:
        """The settings that differ from those of a preset; not those that only one of them knows."""
        known, here = flatten(load_settings(preset)), flatten(self.config)
        ignored = {"description", "seed"}
        return {
            key: value
            for key, value in here.items()
            if key not in ignored and known.get(key, value) != value
        }

    def list_files(self) -> dict[str, int]:
        """The size in bytes of every file, by its path in the folder."""
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.stat().st_size for path in paths}

    def describe(self) -> Document:
        """Everything about the run, as one JSON document."""
        names = ("versions", "device", "seed", "init")
        return {
            "run": str(self.folder),
            "finished": self.is_finished,
            "preset": self.preset,
            "changes": self.changes,
            "description": self.config.get("description", ""),
            "config": self.config,
            **{name: self.start.get(name) for name in names},
            "data": self.start.get("data", {}),
            "figures": self.figures,
            "evaluations": self.evaluations,
            "terms": self.start.get("terms", {}),
            "files": self.list_files(),
        }


@cache
def load_settings(preset: str) -> Document:
    return presets.load(preset).model_dump(mode="json", exclude_none=True)


def flatten(tables: Document) -> Document:
    """Nested tables by dotted key."""
    return {".".join(path): value for path, value in presets.leaves(tables)}


def open_run(folder: Path) -> RunFolder:
    """The run in a folder, or the shipped model of that name; an error if there is none."""
    folder = shipped.find_run(folder)
    if not folder.is_dir():
        raise UserError(f"there is no run folder {folder}: train one with `regard train case`")
    if not is_run(folder):
        below = find_runs(folder)
        hint = f": `regard runs {folder}` lists the {len(below)} runs below it" if below else ""
        raise UserError(f"{folder} is not a run folder: it has no {CONFIG}{hint}")
    return RunFolder(folder)


def is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def find_runs(folder: Path) -> list[RunFolder]:
    """Every run below a folder, sorted by path."""
    return [RunFolder(path.parent) for path in sorted(folder.rglob(CONFIG))]


# --- a table of runs ------------------------------------------------------------------------------


def best_bleu(run: RunFolder) -> float | None:
    """The highest test BLEU over beam widths, if the run was evaluated: lower-cased, or on tokens."""
    rows = [row for row in run.evaluations if row["split"] == "test"]
    values = [row[name] for row in rows for name in ("bleu_lower", "bleu_tokens")]
    return max((value for value in values if value is not None), default=None)


def val_bleu(figures: Document) -> float | None:
    """The validation BLEU that selected the best weights, if one did: lower-cased, or on tokens."""
    names = ("val_bleu_lower", "val_bleu_tokens")
    return next((figures[name] for name in names if figures.get(name) is not None), None)


COLUMNS = {
    "run": lambda run: str(run.folder),
    "preset": lambda run: run.preset,
    "model": lambda run: run.config.get("model", {}).get("kind"),
    "parameters": lambda run: run.figures.get("parameters"),
    "steps": lambda run: run.figures.get("steps"),
    "seconds": lambda run: run.figures.get("training_seconds"),
    "val_loss": lambda run: run.figures.get("val_loss"),
    "val_bleu": lambda run: val_bleu(run.figures),
    "test_bleu": best_bleu,
    "finished": lambda run: run.is_finished,
}
DESCENDING = ("val_bleu", "test_bleu")  # best first


def tabulate(runs: Sequence[RunFolder], column: str = "run") -> list[Document]:
    """A row per run, sorted by a column; runs without that figure come last."""
    rows = [{name: value(run) for name, value in COLUMNS.items()} for run in runs]
    present = [row for row in rows if row[column] is not None]
    missing = [row for row in rows if row[column] is None]
    return sorted(present, key=lambda row: row[column], reverse=column in DESCENDING) + missing
