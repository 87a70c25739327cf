"""A small finished comparison, run in this process: two systems, two seeds each."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from regard import files
from regard.compare import job
from regard.compare import sweep as sweeping
from regard.compare.plan import Run, plan
from regard.compare.processes import JobPool
from regard.compare.sweep import sweep
from regard.errors import UserError

SETTINGS = [
    "tokenizer.min_frequency=2",
    "model.hidden_dim=8",
    "model.embedding_dim=6",
    "model.attention.kq_dim=5",
    "training.epochs=2",
    "training.batch_sentences=20",
    "training.validate_every=2",
]
# For runs in a process of their own, with time to be killed. They draw examples, which take as long as all
# else where outputs have no end.
LONG = [
    "training.epochs=30",
    "training.validate_every=10",
    "search.max_ratio=1",
    "search.max_extra=2",
]
EXAMPLES = "regard.training.examples.EXAMPLES"
VARY = ["model.cell=gru,rnn"]


def execute_in_process(
    run: Run, split: str, beams: Sequence[int], device: str, jobs: int, pool: JobPool
) -> str:
    """`sweep.execute` without a subprocess."""
    config = run.folder.with_suffix(".toml")
    files.write(config, run.config.to_toml())
    try:
        job.run_job(config, run.folder, device, jobs, split, list(beams))
    except UserError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings for a string-reversal task that trains in a second."""
    folder = tmp_path_factory.mktemp("data")
    words = [f"{i * i * 7919 % 100_003:05}"[: 2 + i % 4] for i in range(84)]
    for split, rows in (("train", words[:60]), ("val", words[60:71]), ("test", words[71:])):
        lines = "".join(f"{word}\t{word[::-1]}\n" for word in rows)
        (folder / f"{split}.tsv").write_text(lines, "utf-8")
    files = [f"data.{split}='{folder / split}.tsv'" for split in ("train", "val", "test")]
    return ["data.kind=files", *files, *SETTINGS]


@pytest.fixture(scope="session")
def finished_runs(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Shared by all tests: copy the folders before changing them."""
    folder = tmp_path_factory.mktemp("compare") / "runs"
    runs = plan(["case"], VARY, settings, [2], folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "execute", execute_in_process)
        patch.setattr(EXAMPLES, 0)
        assert sweep(runs, "test", [1], "cpu", JobPool(1), lambda line: None) == []
    return runs


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Execute runs in this process; the folders of the executed runs."""
    folders: list[Path] = []

    def execute(run: Run, *rest: object) -> str:
        folders.append(run.folder)
        return execute_in_process(run, *rest)

    monkeypatch.setattr(sweeping, "execute", execute)
    monkeypatch.setattr(EXAMPLES, 0)
    return folders
