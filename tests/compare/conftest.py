"""A small comparison that was run in this process: two systems, two seeds each."""

import importlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from regard import files
from regard.compare import job, plan, sweep
from regard.compare.plan import Run
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
SWEEP = importlib.import_module("regard.compare.sweep")  # the package gives the function
TRAIN = importlib.import_module("regard.training.run")
VARY = ["model.cell=gru,rnn"]


def inside(run: Run, split: str, beams: Sequence[int], device: str, jobs: int) -> str:
    """`sweep.execute`, without a process of its own."""
    config = run.folder.with_suffix(".toml")
    files.write(config, run.config.to_toml())
    try:
        job.job(config, run.folder, device, jobs, split, list(beams))
    except UserError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Words to turn around; a second's work."""
    folder = tmp_path_factory.mktemp("data")
    words = [f"{i * i * 7919 % 100_003:05}"[: 2 + i % 4] for i in range(84)]
    for split, rows in (("train", words[:60]), ("val", words[60:71]), ("test", words[71:])):
        lines = "".join(f"{word}\t{word[::-1]}\n" for word in rows)
        (folder / f"{split}.tsv").write_text(lines, "utf-8")
    files = [f"data.{split}='{folder / split}.tsv'" for split in ("train", "val", "test")]
    return ["data.kind=files", *files, *SETTINGS]


@pytest.fixture(scope="session")
def done(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("compare") / "runs"
    runs = plan(["case"], VARY, settings, [2], folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SWEEP, "execute", inside)
        patch.setattr(TRAIN, "EXAMPLES", 0)
        assert sweep(runs, "test", [1], "cpu", 1, lambda line: None) == []
    return runs


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """No processes; the folders that were worked in."""
    worked: list[Path] = []

    def execute(run: Run, *rest: object) -> str:
        worked.append(run.folder)
        return inside(run, *rest)

    monkeypatch.setattr(SWEEP, "execute", execute)
    monkeypatch.setattr(TRAIN, "EXAMPLES", 0)
    return worked
