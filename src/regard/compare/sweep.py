"""Execute a plan: train and evaluate every run that is not finished, several at once if requested."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from pathlib import Path

from regard import documents, files, presets, schemas
from regard.compare.plan import Run
from regard.compare.processes import JobPool
from regard.compare.view import last_line
from regard.errors import UserError
from regard.training import synthetic
from regard.training.differences import changed_settings
from regard.training.folder import clean_up
from regard.translator import read_config


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


def prerequisites(runs: Sequence[Run]) -> list[Run]:
    """The runs that these are initialised from, and synthetic pairs, each once, in order."""
    direct = {each.folder: each for run in runs for each in run.prerequisites}
    return [*prerequisites(list(direct.values())), *direct.values()] if direct else []


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
    required = prerequisites(pending)
    check_settings([*required, *runs])
    for run in runs:
        if run not in pending:
            clean_up(run.folder, run.config)
            files.remove_orphans([lock_path(run)])
    report(f"{len(runs)} runs, {len(runs) - len(pending)} already finished, {pool.describe()}")
    with pool:

        def execute_pending(run: Run) -> str:
            with lock_run(run, pool, report):
                # Another comparison may have finished it since.
                if is_finished(run, split, beams):
                    return ""
                return execute(run, split, beams, device, pool.jobs, pool)

        errors = train_prerequisites(required, device, pool, report)
        failed = [f"{run.title}: {error}" for run in pending if (error := find_error(run, errors))]
        pending = [run for run in pending if not find_error(run, errors)]
        futures = {pool.submit(execute_pending, run): run for run in pending}
        for number, future in enumerate(as_completed(futures), start=1):
            run, error = futures[future], future.result()
            report(f"[{number}/{len(pending)}] {run.title}: {error or 'done'}")
            failed += [f"{run.title}: {error}"] if error else []
        pool.raise_if_stopped()  # the signal may have come when no job was running
    return failed


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


def find_error(run: Run, errors: dict[Path, str]) -> str:
    """Why what a run needs is not there, or ""."""
    found = (errors[each.folder] for each in run.prerequisites if each.folder in errors)
    return next(found, "")


def train_prerequisites(
    runs: Sequence[Run], device: str, pool: JobPool, report: Callable[[str], None]
) -> dict[Path, str]:
    """Train the runs that others start from, and make synthetic pairs; return the errors by folder."""
    errors: dict[Path, str] = {}
    for run in runs:
        with lock_run(run, pool, report):
            if is_trained(run):
                continue
            error = find_error(run, errors) or execute(run, "", [], device, 1, pool)
        report(f"prerequisite {run.system.label}: {error or 'done'}")
        errors |= {run.folder: f"{run.system.label}: {error}"} if error else {}
    return errors


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
