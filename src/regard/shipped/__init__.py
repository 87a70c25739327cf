"""Trained models that come with the package, German to English: their names stand for run folders.

Each is a run folder with int8 weights, made by `python -m regard.shipped RUN FOLDER`. What the name of a run
may be besides, several runs joined by commas, is read here too.
"""

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path

from regard import files
from regard.errors import UserError

FOLDER = Path(__file__).parent


def names() -> dict[str, str]:
    """Every shipped model with its description."""
    configs = sorted(FOLDER.glob("*/config.toml"))
    return {
        path.parent.name: tomllib.loads(path.read_text("utf-8"))["description"] for path in configs
    }


def split_runs(run: str | Path | Sequence[str | Path]) -> list[str | Path]:
    """The runs of an ensemble, in a list or joined by commas: "runs/a,runs/b" -> ["runs/a", "runs/b"].

    A path that exists is one run, whatever its name.
    """
    if isinstance(run, list | tuple) and run:
        return [name for one in run for name in split_runs(one)]
    if not isinstance(run, str | Path):
        raise UserError(
            f"load takes a run folder or the name of a shipped model, or a list of them: got {run!r}"
        )
    if "," not in str(run) or os.path.exists(run):
        return [run]
    names = [name.strip() for name in str(run).split(",")]
    if not all(names):
        raise UserError(
            f'"{run}" lacks a run beside a comma: the runs of an ensemble are joined as in runs/a,runs/b'
        )
    return [*names]


def name_of(run: str | Path) -> str:
    """The name of its folder; of an ensemble, those of all its runs, with commas."""
    paths = [str(one).rpartition(":")[2] for one in split_runs(run)]
    return ",".join(Path(path).absolute().name or "model" for path in paths)


def check_single(run: str | Path) -> None:
    """Raise an error for an ensemble."""
    runs = split_runs(run)
    if len(runs) > 1:
        raise UserError(
            f"{run} is an ensemble of {len(runs)} runs: it can translate and be evaluated, but not be "
            "trained, exported or described; name one of them"
        )


def find_run(run: str | Path) -> Path:
    """The folder of a run: `run` itself if it exists, else the shipped model of that name, if any."""
    check_single(run)
    path = files.local_path(Path(run))
    return FOLDER / path if str(path) in names() and not path.exists() else path
