"""One run of a comparison in a separate process: train, evaluate, write the figures to the run folder.

python -m regard.compare.job CONFIG.toml RUN_FOLDER DEVICE JOBS [SPLIT BEAMS | --pairs]

With --pairs, it only makes the synthetic pairs of the config.

It stops when its standard input is closed, as it is when the comparison that started it ends.
"""

import sys
from pathlib import Path

from regard import documents, files, presets
from regard.compare.processes import MISTAKE
from regard.compare.stopping import stop_at_end_of_input
from regard.display import Display
from regard.errors import UserError
from regard.evaluation import evaluate
from regard.loading import load
from regard.terminal import Console
from regard.text import corpus
from regard.training import train
from regard.training.run import make_synthetic


def run_job(
    config: Path, folder: Path, device: str, jobs: int, split: str, beams: list[int]
) -> None:
    """Train in `folder` or resume there, then evaluate if a split is given.

    `jobs`: how many runs share the device.
    """
    checked = presets.validate(presets.read_file(config), str(config))
    # Load the split before training: a missing one raises an error at once.
    pairs = corpus.load_split(checked.data, split) if split else []
    console = Console(force_terminal=False, width=120)
    # The job of a comparison that was killed may still be saving its checkpoint: wait for it.
    with files.lock(folder, wait=True):
        train(checked, folder, device, resume=True, console=console, jobs=jobs)
        if not split:
            return
        evaluation = {"split": split, **evaluate(load(folder, device), pairs, beams)}
        text = documents.dumps(evaluation, ensure_ascii=False)
        files.write(folder / f"evaluation-{split}.json", text)


def make_pairs(config: Path, folder: Path, device: str) -> None:
    """Make the synthetic pairs of a config in `folder`, or continue there."""
    checked = presets.validate(presets.read_file(config), str(config))
    with files.lock(folder, wait=True):
        make_synthetic(checked, folder, device, Display(Console(force_terminal=False, width=120)))


if __name__ == "__main__":
    stop_at_end_of_input()
    config, folder, device, jobs, *evaluated = sys.argv[1:]
    try:
        if evaluated == ["--pairs"]:
            make_pairs(Path(config), Path(folder), device)
        else:
            split, beams = evaluated or ("", "")
            widths = [int(beam) for beam in beams.split(",") if beam]
            run_job(Path(config), Path(folder), device, int(jobs), split, widths)
    except UserError as error:
        sys.stderr.write(f"regard: {error}\n")
        sys.exit(MISTAKE)
    except KeyboardInterrupt:  # training was stopped, after a checkpoint
        sys.exit("regard: stopped")
