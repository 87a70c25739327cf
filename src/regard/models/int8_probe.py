"""Which int8 kernel serves this machine: those whose sums are exact are timed against float32.

The answer is remembered in the user's cache for this CPU and PyTorch, so that the same machine always
computes with the same kernel. Where the CPU reports AMX, the probe runs in a process of its own: some
machines report it, and crash when it is used.
"""

import json
import math
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from regard import documents, files
from regard.devices import use_threads
from regard.errors import UserError
from regard.linear import PackedBackend
from regard.models.int8_kernels import KERNELS, Int8Kernel, int8_linear
from regard.text.datasets import cache_dir

NEAR = 1.2  # a kernel within this factor of the fastest is as good
ROWS = (1, 8, 128)  # one sentence, its beam, a batch
INPUTS, OUTPUTS = 256, 2048
ROUNDS = 7
REDUCED = {"fbgemm-7-bit": "fbgemm"}  # a kernel with fewer levels, only where this one is not exact
CAPABILITIES = (  # the variables that restrict a library's instructions
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "FBGEMM_ENABLE_INSTRUCTIONS",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
)
Ratios = dict[str, float | None]
"""Time of each kernel divided by that of float32; None: its sums are not exact, or it is missing."""


class RememberedRatios(documents.Document):
    """int8.json: the ratios of each machine, by its description."""

    __pydantic_extra__: dict[str, dict[str, Annotated[float, Field(gt=0)] | None]]  # pyright: ignore


def find_kernel() -> type[Int8Kernel] | None:
    """The fastest exact kernel; None: none is faster than float32."""
    name = choose(recall(describe_machine(), probe_machine))
    return None if name is None else KERNELS[name]


def choose(ratios: Ratios) -> str | None:
    """The first kernel, in the order of `KERNELS`, near the smallest ratio; None: no ratio is below 1.

    Times on a busy machine scatter: a later kernel has to be clearly faster.
    """
    exact = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    for name, full in REDUCED.items():
        if exact.get(full) is not None:
            exact.pop(name, None)
    nearly_best = NEAR * min(exact.values(), default=1.0)
    good = [name for name in KERNELS if name in exact and exact[name] <= min(nearly_best, 0.999)]
    return good[0] if good else None


# --- the probe ------------------------------------------------------------------------------------


@torch.inference_mode()
def is_exact(kernel: type[Int8Kernel]) -> bool:
    """Does the kernel compute the integer product, also at the largest values?"""
    random, levels = torch.Generator().manual_seed(0), kernel.levels
    x = torch.randint(-levels, levels + 1, (17, 64), generator=random)
    weight = torch.randint(-127, 128, (48, 64), generator=random)
    x[0], x[1], weight[0], weight[1] = levels, -levels, 127, -127
    y = kernel(weight.to(torch.int8), torch.ones(len(weight)))(x / levels)
    return torch.equal((y * levels).round().long(), x @ weight.T)


def probe(names: Iterable[str]) -> Iterator[tuple[str, float | None]]:
    """(kernel, ratio), one after the other."""
    for name in names:
        kernel = KERNELS[name]
        yield name, measure(kernel) if kernel.is_available() and is_exact(kernel) else None


# Several threads wait for each other, so that on a busy machine their times are noise.
@use_threads(1)
@torch.inference_mode()
def measure(kernel: type[Int8Kernel]) -> float:
    """Time divided by that of float32: the geometric mean over `ROWS`."""
    weight = torch.randint(-127, 128, (OUTPUTS, INPUTS), dtype=torch.int8)
    float_weight = weight.float()
    float32, int8 = PackedBackend(float_weight), kernel(weight, torch.ones(OUTPUTS))
    logs = []
    for rows in ROWS:
        x = torch.randn(rows, INPUTS)
        times = fastest([partial(float32, x, float_weight), partial(int8_linear, x, int8, None)])
        logs.append(math.log(times[1] / times[0]))
    return math.exp(sum(logs) / len(logs))


def fastest(calls: list[Callable[[], Tensor]]) -> list[float]:
    """The least seconds of each call, in interleaved rounds, after one that warms up."""
    times = []
    for _ in range(1 + ROUNDS):
        for call in calls:
            start = perf_counter()
            call()
            times.append(perf_counter() - start)
    return [min(times[len(calls) + i :: len(calls)]) for i in range(len(calls))]


def probe_machine() -> Ratios:
    """The ratio of every kernel."""
    return probe_apart(list(KERNELS)) if has_amx() else dict(probe(KERNELS))


PROBE = """
import sys
from regard import documents
from regard.models.int8_probe import probe
for ratio in probe(sys.argv[1:]):
    print(documents.dumps(ratio), flush=True)
"""


def probe_apart(names: list[str], script: str = PROBE) -> Ratios:
    """`probe` in a process of its own. A kernel that kills it counts as not exact; the others go on."""
    ratios: Ratios = {}
    while left := [name for name in names if name not in ratios]:
        command = [sys.executable, "-c", script, *left]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        ratios |= dict(json.loads(line) for line in result.stdout.splitlines())
        crashed = next((name for name in left if name not in ratios), None)
        ratios |= {} if crashed is None else {crashed: None}
    return ratios


# --- the machine, and what is remembered of it ----------------------------------------------------


def read_cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def has_amx() -> bool:
    """Whether the CPU reports AMX."""
    return "amx_int8" in read_cpuinfo()


def describe_machine() -> str:
    """CPU, PyTorch, and the variables that restrict instructions."""
    fields = [line.partition(":") for line in read_cpuinfo().splitlines()]
    cpu = {name.strip(): value.strip() for name, _, value in fields}
    flags = f"{zlib.crc32(cpu.get('flags', '').encode()):08x}"
    limits = [f"{name}={os.environ[name]}" for name in CAPABILITIES if name in os.environ]
    parts = [cpu.get("model name", "CPU"), flags, torch.__version__]
    return ", ".join([*parts, *limits])


def recall(machine: str, compute: Callable[[], Ratios]) -> Ratios:
    """What is remembered of the machine; else it is computed, and remembered if the cache can be written."""
    path = cache_dir() / "int8.json"
    try:
        known = documents.read(path, RememberedRatios)
    except UserError:  # missing or damaged
        known = {}
    ratios = known.get(machine, {})
    if ratios.keys() != KERNELS.keys():
        ratios = compute()
        with suppress(OSError, UserError):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, documents.dumps(known | {machine: ratios}, indent=2))
    return ratios
