"""Execute a plan: train and evaluate every run that is not finished, several at once if requested.

A run starts as soon as what it needs is done: runs that it is initialised from, synthetic pairs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from regard import documents, files, presets, schemas
from regard.compare.plan import Run
from regard.compare.processes import JobPool
from regard.compare.view import last_line
from regard.errors import UserError
from regard.loading import read_config
from regard.training import synthetic
from regard.training.differences import changed_settings
from regard.training.folder import clean_up


def is_finished(run: Run, split: str, beams: Sequence[int]) -> bool:
    """Whether a run is trained with these settings and evaluated with these beam widths."""
    path = run.folder / f"evaluation-{split}.json"
    if not path.is_file() or not is_trained(run):
        return False
    evaluation = documents.read(path, schemas.ComparedEvaluation)
    evaluated_beams = {result["beam"] for result in evaluation["results"]}
    # An earlier version did not write this key: evaluate again, without training again.
    return set(beams) <= evaluated_beams and "cache_bytes_per_token" in evaluation


def is_trained(run: Run) -> bool:
    """Whether the training of a run is complete, with these settings, or its synthetic pairs are there."""
    last = run.folder / (synthetic.PAIRS if run.makes_pairs else "card.json")
    return last.is_file() and not differences(run)


def differences(run: Run) -> list[str]:
    """The settings in which a run differs from that in its folder."""
    return changed_settings(read_config(run.folder), presets.locate_pairs(run.config, run.folder))


def prerequisites(
    runs: Iterable[Run], needed: Callable[[Run], bool] = lambda run: True
) -> list[Run]:
    """The runs that these are initialised from, and synthetic pairs, each once, in order.

    `needed`: of the prerequisites, and of what those need in turn.
    """
    direct = [each for run in runs for each in run.prerequisites if needed(each)]
    ordered = [*prerequisites(direct, needed), *direct] if direct else []
    return list({run.folder: run for run in ordered}.values())


def check_settings(runs: Sequence[Run]) -> None:
    """Raise an error if a folder holds a run with other settings, before anything is trained."""
    for run in runs:
        if (run.folder / "config.toml").is_file() and (changed := differences(run)):
            raise UserError(
                f"{run.folder} holds a run with other settings ({', '.join(changed)}): "
                "choose another --out"
            )


def sweep(
    runs: Sequence[Run],
    split: str,
    beams: Sequence[int],
    device: str,
    pool: JobPool,
    report: Callable[[str], None],
) -> list[str]:
    """Train and evaluate all runs that are not finished; return one message per failed run.

    `pool`: what executes them. Raises `Stopped` at Ctrl-C, SIGTERM or SIGHUP, once the jobs have ended.
    """
    pending = [run for run in runs if not is_finished(run, split, beams)]
    required = prerequisites(pending, lambda run: not is_trained(run))
    check_settings([*required, *runs])
    for run in runs:
        if run not in pending:
            clean_up(run.folder, run.config)
            files.remove_orphans([lock_path(run)])
    report(f"{len(runs)} runs, {len(runs) - len(pending)} already finished, {pool.describe()}")
    tasks = [Task(run, is_required=True) for run in required]
    tasks += [Task(run, is_required=False) for run in pending]
    done: dict[Path, str] = {}  # what has been required so far, with its error or ""
    number, failed = 0, []
    with pool:

        def execute_task(task: Task) -> str | None:
            """The error or "", or None if nothing was left to do."""
            run = task.run
            with lock_run(run, pool, report):
                # Another comparison may have finished it since.
                if is_trained(run) if task.is_required else is_finished(run, split, beams):
                    return None
                if error := find_error(run, done):
                    return error
                evaluated = ("", ()) if task.is_required else (split, beams)
                return execute(run, *evaluated, device, pool.jobs, pool)

        for task, error in execute_when_ready(tasks, done, execute_task, pool):
            run = task.run
            if not task.is_required:
                number += 1
                report(f"[{number}/{len(pending)}] {run.title}: {error or 'done'}")
                failed += [f"{run.title}: {error}"] if error else []
            elif error is not None:
                report(f"prerequisite {run.system.label}: {error or 'done'}")
        pool.raise_if_stopped()  # the signal may have come when no job was running
    return failed


@dataclass(frozen=True)
class Task:
    """A run to train and evaluate or, where others require it, only to train."""

    run: Run
    is_required: bool

    def is_ready(self, waiting: Sequence["Task"]) -> bool:
        """Whether nothing that it needs is among these. A run may itself be required by others: it is
        trained for them before it is evaluated.
        """
        needed = {run.folder for run in self.run.prerequisites}
        needed |= set() if self.is_required else {self.run.folder}
        return not any(task.is_required and task.run.folder in needed for task in waiting)


def execute_when_ready(
    tasks: Sequence[Task],
    done: dict[Path, str],
    execute_task: Callable[[Task], str | None],
    pool: JobPool,
) -> Iterator[tuple[Task, str | None]]:
    """Each task with what it returned, as they end. `done` gets the error, or "", of what is required."""
    waiting, running = list(tasks), dict[Future[str | None], Task]()
    while waiting or running:
        for task in [t for t in waiting if t.is_ready([*waiting, *running.values()])]:
            waiting.remove(task)
            running[pool.submit(execute_task, task)] = task
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            task, error = running.pop(future), future.result()
            if task.is_required:
                done[task.run.folder] = f"{task.run.system.label}: {error}" if error else ""
            yield task, error


@contextmanager
def lock_run(run: Run, pool: JobPool, report: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock beside the run's folder, for all files of the run; wait while another comparison does.

    A thread waits for one lock at a time and holds no other: two comparisons cannot wait for each other.
    """
    pool.raise_if_stopped()
    path, waiting = lock_path(run), False
    while True:
        try:
            with files.report_errors(path):
                file = files.open_locked(path, wait=False)
            break
        except BlockingIOError:
            if not waiting:
                report(f"{run.title}: another comparison is training it; waiting")
            waiting = True
            pool.pause()
    try:
        yield
    finally:
        files.remove_locked(path, file)


def lock_path(run: Run) -> Path:
    return run.folder.with_suffix(files.LOCK)


def find_error(run: Run, done: Mapping[Path, str]) -> str:
    """Why what a run needs is not there, or ""."""
    return next((error for each in run.prerequisites if (error := done.get(each.folder))), "")


def execute(
    run: Run, split: str, beams: Sequence[int], device: str, jobs: int, pool: JobPool
) -> str:
    """Train a run in a separate process and, with a split, evaluate it; return the error or "".

    `jobs`: how many runs share the device.
    """
    config = run.folder.with_suffix(".toml")
    files.write(config, run.config.to_toml())
    log = run.folder.with_suffix(".log")
    evaluated = [split, ",".join(map(str, beams))] if split else []
    evaluated += ["--pairs"] if run.makes_pairs else []
    exit_code = pool.run_job(run, config, [device, str(jobs), *evaluated], jobs, log)
    return f"{last_line(log)} (see {log})" if exit_code else ""
