"""Trained models that come with the package, German to English: their names stand for run folders.

Each is a run folder with int8 weights, made by `python -m regard.shipped RUN FOLDER`.
"""

import tomllib
from pathlib import Path

from regard import files

FOLDER = Path(__file__).parent


def names() -> dict[str, str]:
    """Every shipped model with its description."""
    configs = sorted(FOLDER.glob("*/config.toml"))
    return {
        path.parent.name: tomllib.loads(path.read_text("utf-8"))["description"] for path in configs
    }


def find_run(run: str | Path) -> Path:
    """The folder of a run: `run` itself if it exists, else the shipped model of that name, if any."""
    path = files.local_path(Path(run))
    return FOLDER / path if str(path) in names() and not path.exists() else path
