"""Run what a plan asks for, several at once if wanted; what is finished is not run again."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from regard import files
from regard.compare.plan import Run
from regard.errors import UserError
from regard.training.differences import changes
from regard.translator import read_config


def finished(run: Run, split: str, beams: Sequence[int]) -> bool:
    """Whether a run's figures are there, for these settings and beam widths."""
    path = run.folder / f"evaluation-{split}.json"
    if not path.is_file() or not trained(run):
        return False
    found = files.record(path)
    have = {result["beam"] for result in found["results"]}
    # Without it, the figures are an earlier version's: measured again, not trained.
    return set(beams) <= have and "cache_bytes_per_token" in found


def trained(run: Run) -> bool:
    """Whether a run has come to its end, with these settings."""
    there = (run.folder / "card.json").is_file()
    return there and not changes(read_config(run.folder), run.config)


def before(runs: Sequence[Run]) -> list[Run]:
    """The runs that these start from, each once, and those that they start from before them."""
    found = {run.first.folder: run.first for run in runs if run.first is not None}
    return [*before(list(found.values())), *found.values()] if found else []


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
    waiting = [run for run in runs if not finished(run, split, beams)]
    bases = before(waiting)
    check([*bases, *runs])
    say(f"{len(runs)} runs, {len(runs) - len(waiting)} there already, {jobs} at a time")
    lost = prepare(bases, device, say)
    failed = [f"{name(run)}: {lost[why]}" for run in waiting if (why := base_of(run)) in lost]
    waiting = [run for run in waiting if base_of(run) not in lost]
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        started = {pool.submit(execute, run, split, beams, device, jobs): run for run in waiting}
        for number, future in enumerate(as_completed(started), start=1):
            run, problem = started[future], future.result()
            say(f"[{number}/{len(waiting)}] {name(run)}: {problem or 'done'}")
            failed += [f"{name(run)}: {problem}"] if problem else []
    return failed


def name(run: Run) -> str:
    return f"{run.system.label}, seed {run.seed}"


def base_of(run: Run) -> Path | None:
    """The folder that a run starts from."""
    return run.first.folder if run.first else None


def prepare(
    bases: Sequence[Run], device: str, say: Callable[[str], None]
) -> dict[Path | None, str]:
    """Train what others start from. The folders where that failed, and why."""
    lost: dict[Path | None, str] = {}
    for base in bases:
        if not trained(base):
            problem = lost.get(base_of(base)) or execute(base, "", [], device, 1)
            say(f"first, as others start from it, {base.system.label}: {problem or 'done'}")
            lost |= {base.folder: f"{base.system.label}: {problem}"} if problem else {}
    return lost


def execute(run: Run, split: str, beams: Sequence[int], device: str, jobs: int) -> str:
    """One run in a process of its own; what went wrong, or nothing. Without a split, only trained."""
    config = run.folder.with_suffix(".toml")
    files.write(config, run.config.to_toml())
    log = run.folder.with_suffix(".log")
    measured = [split, ",".join(map(str, beams))] if split else []
    arguments = [str(config), str(run.folder), device, str(jobs), *measured]
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
