"""Run what a plan asks for, several at once if wanted; what is finished is not run again."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from regard import files
from regard.compare.plan import Run
from regard.errors import UserError
from regard.training.run import changes
from regard.translator import read_config


def finished(run: Run, split: str, beams: Sequence[int]) -> bool:
    """Whether a run's figures are there, for these settings and beam widths."""
    path = run.folder / f"evaluation-{split}.json"
    if not path.is_file() or not (run.folder / "card.json").is_file():
        return False
    found = json.loads(path.read_text("utf-8"))
    have = {result["beam"] for result in found["results"]}
    if "cache_bytes_per_token" not in found:  # an earlier version's: measured again, not trained
        return False
    return not changes(read_config(run.folder), run.config) and set(beams) <= have


def check(runs: Sequence[Run]) -> None:
    """A folder with a run of other settings is refused before anything is trained."""
    for run in runs:
        if (run.folder / "config.toml").is_file():
            changed = changes(read_config(run.folder), run.config)
            if changed:
                raise UserError(
                    f"{run.folder} holds a run with other settings ({', '.join(changed)}): "
                    "choose another --out"
                )


def sweep(
    runs: Sequence[Run],
    split: str,
    beams: Sequence[int],
    device: str,
    jobs: int,
    say: Callable[[str], None],
) -> list[str]:
    """Make every run finished. What failed, and why; the others have had their turn all the same."""
    check(runs)
    waiting = [run for run in runs if not finished(run, split, beams)]
    say(f"{len(runs)} runs, {len(runs) - len(waiting)} there already, {jobs} at a time")
    failed: list[str] = []
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        started = {pool.submit(execute, run, split, beams, device, jobs): run for run in waiting}
        for number, future in enumerate(as_completed(started), start=1):
            run, problem = started[future], future.result()
            name = f"{run.system.label}, seed {run.seed}"
            say(f"[{number}/{len(waiting)}] {name}: {problem or 'done'}")
            failed += [f"{name}: {problem}"] if problem else []
    return failed


def execute(run: Run, split: str, beams: Sequence[int], device: str, jobs: int) -> str:
    """One run in a process of its own; what went wrong, or nothing."""
    config = run.folder.with_suffix(".toml")
    files.write(config, run.config.to_toml())
    log = run.folder.with_suffix(".log")
    arguments = [str(config), str(run.folder), device, split, ",".join(map(str, beams))]
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
    with log.open("w") as file:
        done = subprocess.run(
            [sys.executable, "-m", "regard.compare.job", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment if jobs > 1 else None,
            check=False,
        )
    if done.returncode == 0:
        return ""
    return f"{last_line(log)} (see {log})"


def last_line(path: Path) -> str:
    lines = [
        line for line in path.read_text("utf-8", errors="replace").splitlines() if line.strip()
    ]
    return lines[-1] if lines else "it said nothing"
