"""The processes that train one model together, each on a device of its own (`torch.distributed`).

Every process builds the same sampler, and so the same batches in the same order, from the seed. Process r
of n takes the rows r, r + n, r + 2n, ... of each batch; gradients are summed over the processes, and divided
by the number of target tokens of all. So n processes compute what one process computes, but for rounding.

Process 0 alone writes, prints and validates. The others get from it what they need.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, distributed

from regard.devices import resolve_device
from regard.errors import UserError
from regard.text.batch import BatchSpec
from regard.torch_private import foreach_copy_

T = TypeVar("T")
RUN_ID = "regard"  # of `regard train --devices`; torchrun takes another one
MISTAKE = 2  # the exit code of a process once a user's mistake was reported
LOST = 3  # of one that has lost another process, whose end is what matters
PATIENCE = timedelta(hours=24)
"""How long a process waits for another one, which may be making synthetic pairs. A process that ends is
noticed at once."""


class LostProcessError(Exception):
    """Another process of this training has ended."""


@dataclass(frozen=True)
class World:
    """Process `rank` of the `size` that train a model; by default the only one."""

    rank: int = 0
    size: int = 1
    store: Any = None
    """Values that all of them can read and write (`torch.distributed.Store`); None: there is one process."""

    @property
    def is_main(self) -> bool:
        """Is this the process that writes, prints and validates?"""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    def share_rows(self, batch: BatchSpec, dummy: int) -> BatchSpec:
        """The rows of this process, as many as in every other: some may be the row `dummy`."""
        if self.is_alone:
            return batch
        most = -(-len(batch.rows) // self.size)
        rows = batch.rows[self.rank :: self.size]
        return replace(batch, rows=rows + [dummy] * (most - len(rows)))

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes."""
        if self.is_alone or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        foreach_copy_(tensors, [part.view_as(t) for part, t in zip(parts, tensors, strict=True)])

    def copy_from_main(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of process 0."""
        if not self.is_alone:
            for tensor in tensors:
                whole = tensor.detach().contiguous()
                distributed.broadcast(whole, 0)
                tensor.detach().copy_(whole)

    def broadcast(self, value: T | None = None) -> T:
        """The value that process 0 gives, in every process."""
        values = [value]
        if not self.is_alone:
            distributed.broadcast_object_list(values, 0, device=torch.device("cpu"))
        return values[0]  # type: ignore[return-value]

    def compute_on_main(self, compute: Callable[[], T]) -> T:
        """The result of a function that only process 0 calls, in every process; or its `UserError`."""
        if self.is_alone:
            return compute()
        result, problem = None, None
        if self.is_main:
            try:
                result = compute()
            except UserError as error:
                problem = error
        result, message = self.broadcast((result, problem and str(problem)))
        if message is not None:
            raise problem or UserError(message)
        return result  # type: ignore[return-value]

    def highest(self, number: int) -> int:
        """The highest of the numbers of all processes."""
        if self.is_alone:
            return number
        highest = torch.tensor(number)
        distributed.all_reduce(highest, distributed.ReduceOp.MAX)
        return int(highest)

    def seed_step(self, seed: int, step: int) -> None:
        """Seed this process's dropout of a step; process 0 draws as if it were alone.

        From the step, so that a run that is resumed draws the same.
        """
        if not self.is_main:
            mixed = np.random.SeedSequence([seed, self.rank, step]).generate_state(1, np.uint64)
            torch.manual_seed(int(mixed[0]))

    def is_first_to_say(self, message: str) -> bool:
        """Whether no other process has asked this about the message: it is printed once."""
        if self.store is None:
            return True
        with suppress(RuntimeError):  # it may have ended with its process
            return self.store.add(f"regard: {message}", 1) == 1
        return self.is_main


ALONE = World()


@contextmanager
def report_lost_process() -> Iterator[None]:
    """Raise `LostProcessError` for what PyTorch raises if it cannot reach another process."""
    try:
        yield
    except RuntimeError as error:
        # gloo raises no class of its own, but each of its messages begins with a file of its source.
        if not isinstance(error, distributed.DistError) and "gloo/" not in str(error):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise LostProcessError(
            f"another process of this training has ended, or cannot be reached ({reason})"
        ) from error


def is_started() -> bool:
    """Whether a launcher, such as torchrun, has started this process as one of several."""
    has_rendezvous = {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return has_rendezvous and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_restarted() -> bool:
    """Whether torchrun has started the processes again after one of them died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def has_launcher() -> bool:
    """Whether `regard train --devices` has started this process, and will say how it ended."""
    return os.environ.get("TORCHELASTIC_RUN_ID") == RUN_ID


def check_devices(devices: int) -> None:
    """Raise an error unless the launcher has started as many processes here as --devices says."""
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if devices not in (1, local_size):
        raise UserError(
            f"--devices {devices}: torchrun has started {local_size} processes on this machine. Leave out "
            "--devices, or torchrun"
        )


@contextmanager
def join(device: str) -> Iterator[tuple[World, str]]:
    """(the processes of this training, the device of this one); alone unless a launcher started several."""
    if not is_started():
        yield ALONE, resolve_device(device)
        return
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = resolve_local_device(device, int(os.environ.get("LOCAL_RANK", "0")), local_size)
    backend = "gloo"
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    with report_lost_process():
        store, rank, size = next(distributed.rendezvous("env://"))
        options = {"store": store, "rank": rank, "world_size": size, "timeout": PATIENCE}
        distributed.init_process_group(backend, **options)
        yield World(rank, size, store), device
    # Not after an error: the other processes may have ended.
    distributed.destroy_process_group()


def resolve_local_device(name: str, local_rank: int, local_size: int) -> str:
    """The device of one of `local_size` processes on this machine: its own GPU, or the CPU for all."""
    kind = resolve_device(name)
    if kind == "cpu":
        return kind
    if kind != "cuda":
        raise UserError(
            f"several processes compute on the CPU or on cuda:0, cuda:1, ...: got the device {name}. Leave "
            "out --device, or use --device cpu"
        )
    count = torch.cuda.device_count()
    if local_size > count:
        devices = "one CUDA device" if count == 1 else f"{count} CUDA devices"
        raise UserError(
            f"{local_size} processes need {local_size} devices, and PyTorch finds {devices} on "
            f"{socket.gethostname()}: use at most {count}, or --device cpu for processes on the CPU"
        )
    return f"cuda:{local_rank}"
