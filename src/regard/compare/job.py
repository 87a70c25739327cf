"""One run of a comparison, in a process of its own: train, evaluate, leave the figures in the folder.

python -m regard.compare.job CONFIG.toml RUN_FOLDER DEVICE JOBS [SPLIT BEAMS]
"""

import json
import sys
from pathlib import Path

from rich.console import Console

from regard import files, presets
from regard.errors import UserError
from regard.evaluation import evaluate
from regard.text import corpus
from regard.training import train
from regard.translator import load


def job(config: Path, folder: Path, device: str, jobs: int, split: str, beams: list[int]) -> None:
    """Train (or go on training) in `folder`, one of `jobs` at a time; with a split, then measure."""
    wanted = presets.validate(presets.read_file(config), str(config))
    # First: a split that is not there is told at once.
    pairs = corpus.load(wanted.data)[split] if split else []
    console = Console(force_terminal=False, width=120)
    train(wanted, folder, device, resume=True, console=console, jobs=jobs)
    if not split:
        return
    found = {"split": split, **evaluate(load(folder, device), pairs, beams)}
    files.write(folder / f"evaluation-{split}.json", json.dumps(found, ensure_ascii=False))


if __name__ == "__main__":
    config, folder, device, jobs, *measured = sys.argv[1:]
    split, beams = measured or ("", "")
    widths = [int(beam) for beam in beams.split(",") if beam]
    try:
        job(Path(config), Path(folder), device, int(jobs), split, widths)
    except UserError as error:
        sys.exit(f"regard: {error}")
