"""`regard train --devices N`: N processes on this machine, started by PyTorch's elastic launcher.

They run the same command; `torchrun` starts the same, on several machines, too.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from regard import signals
from regard.training.distributed import LOST, MISTAKE, RUN_ID

STOPPED = {128 + number for number in signals.ENDING}


def launch(
    arguments: Sequence[str], devices: int, max_restarts: int, tell: Callable[[str], None]
) -> int:
    """Run `regard ARGUMENTS` in as many processes as `devices`; return the exit code of the command.

    If a process dies, all start again from the last checkpoint, at most `max_restarts` times.
    """
    for restart in range(max_restarts + 1):
        failure = run_once(arguments, devices)
        if failure is None:
            return 0
        if failure.exitcode == MISTAKE or failure.exitcode in STOPPED:
            return failure.exitcode  # that process has said which mistake it was
        death = describe_death(failure, devices)
        if restart == max_restarts:
            advice = "" if max_restarts else " (--max-restarts N would do so by itself)"
            tell(f"{death}. Add --resume to continue from the last checkpoint{advice}")
            return 1
        tell(
            f"{death}: all start again from the last checkpoint (restart {restart + 1} of {max_restarts})"
        )
        if "--resume" not in arguments:
            arguments = [*arguments, "--resume"]
    raise AssertionError("every attempt returns")


def run_once(arguments: Sequence[str], devices: int) -> ProcessFailure | None:
    """Start the processes and wait for them; return the failure that ended them, if there was one."""
    # As torchrun does: each process would otherwise use all cores.
    threads = str(max(1, (os.cpu_count() or 1) // devices))
    os.environ.setdefault("OMP_NUM_THREADS", threads)
    with quiet_launcher(), TemporaryDirectory(prefix="regard-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=devices,
            run_id=RUN_ID,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "regard", *arguments)
        except ChildFailedError as error:
            return choose_failure(list(error.failures.values()))
        except SignalException as stop:
            raise signals.Stopped(stop.sigval) from None
    return None


def choose_failure(failures: Sequence[ProcessFailure]) -> ProcessFailure:
    """The failure that ended the others: they fail only because they have lost a process."""

    def rank(failure: ProcessFailure) -> tuple[bool, bool, int]:
        return failure.exitcode != MISTAKE, failure.exitcode == LOST, failure.timestamp

    return min(failures, key=rank)


def describe_death(failure: ProcessFailure, devices: int) -> str:
    """Which process died, and of what."""
    name = f"process {failure.local_rank} of {devices}"
    if failure.exitcode < 0:
        number = signal.Signals(-failure.exitcode)
        hint = ", perhaps for lack of memory" if number == signal.SIGKILL else ""
        return f"{name} was killed by {number.name}{hint}"
    return f"{name} ended with exit code {failure.exitcode}"


@contextmanager
def quiet_launcher() -> Iterator[None]:
    """Without the launcher's own log: what happened is one sentence of ours."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
