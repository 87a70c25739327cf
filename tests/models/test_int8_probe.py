"""The probe accepts exact kernels only, the fastest is chosen, a crash is survived, the answer remembered."""

import json
import sys
import time

import pytest
import torch

from regard.models import int8_probe
from regard.models.int8_kernels import KERNELS, IntMm
from regard.models.int8_probe import choose, is_exact, measure, probe_apart, recall


class Saturated(IntMm):
    """A kernel that adds pairs of products in 16 bits, as AVX2's instruction does."""

    def __init__(self, weight, scales):
        self.weight = weight.float()

    def __call__(self, x):
        zero_point = self.levels + 1
        products = ((x * self.levels).round() + zero_point)[:, None] * self.weight
        pairs = products.unflatten(-1, (-1, 2)).sum(-1).clamp(-(2**15), 2**15 - 1)
        return (pairs.sum(-1) - zero_point * self.weight.sum(-1)) / self.levels


class HalfSaturated(Saturated):
    levels = 63


class Sleepy(IntMm):
    def __call__(self, x):
        time.sleep(0.01)
        return super().__call__(x)


class Instant(IntMm):
    def __call__(self, x):
        return torch.empty(len(x), len(self.scales))


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_exact_or_refused(name):
    kernel = KERNELS[name]
    ratio = dict(int8_probe.probe([name]))[name]
    assert (ratio is not None) == (kernel.is_available() and is_exact(kernel))
    assert ratio is None or ratio > 0


def test_sums_that_overflow_are_not_exact():
    assert is_exact(IntMm)
    assert not is_exact(Saturated)
    assert is_exact(HalfSaturated)


def test_a_missing_kernel_is_refused(monkeypatch):
    monkeypatch.setattr(KERNELS["fbgemm"], "is_available", lambda: False)
    assert dict(int8_probe.probe(["fbgemm"])) == {"fbgemm": None}


def test_a_slow_kernel_measures_above_1_and_a_fast_one_below():
    threads = torch.get_num_threads()
    assert measure(Sleepy) > 1 > measure(Instant)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("ratios", "chosen"),
    [
        ({"onednn": 0.7, "int_mm": 0.4, "fbgemm": 0.6}, "int_mm"),
        ({"onednn": 0.7, "int_mm": 0.55, "fbgemm": 0.6}, "fbgemm"),  # as fast, up to noise
        ({"onednn": 1.2, "int_mm": 9.0, "fbgemm": 1.0}, None),
        ({"onednn": None, "int_mm": 0.9, "fbgemm": None, "fbgemm-7-bit": 0.6}, "fbgemm-7-bit"),
        ({"int_mm": 0.9, "fbgemm": 0.8, "fbgemm-7-bit": 0.6}, "fbgemm"),
        ({"onednn": None}, None),
        ({}, None),
    ],
)
def test_the_fastest_kernel_is_chosen_if_it_beats_float32(ratios, chosen):
    assert choose(ratios) == chosen


CRASHES = """
import json, os, sys
for name in sys.argv[1:]:
    if name == "onednn":
        os.abort()
    print(json.dumps([name, 0.5]), flush=True)
"""


def test_a_crash_of_the_probe_is_survived():
    ratios = probe_apart(list(KERNELS), CRASHES)
    assert ratios == {name: None if name == "onednn" else 0.5 for name in KERNELS}
    assert probe_apart(["fbgemm", "int_mm"], "import os; os.abort()") == {
        "fbgemm": None,
        "int_mm": None,
    }


def test_with_amx_the_probe_runs_in_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(int8_probe, "probe_apart", lambda names: dict.fromkeys(names, 0.25))
    monkeypatch.setattr(int8_probe, "read_cpuinfo", lambda: "flags : avx2 amx_int8")
    assert int8_probe.probe_machine() == dict.fromkeys(KERNELS, 0.25)


def test_the_script_of_that_process_prints_each_ratio(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["-c", "int_mm"])
    exec(int8_probe.PROBE, {})
    name, ratio = json.loads(capsys.readouterr().out)
    assert name == "int_mm"
    assert ratio > 0


def test_the_answer_is_remembered_for_each_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "new"))
    calls = []

    def compute(ratio):
        calls.append(ratio)
        return dict.fromkeys(KERNELS, ratio)

    assert recall("a", lambda: compute(0.25)) == recall("a", lambda: compute(0.5))
    assert recall("b", lambda: compute(0.75))["int_mm"] == 0.75
    assert recall("a", lambda: compute(0.5))["int_mm"] == 0.25
    assert calls == [0.25, 0.75]
    for damage in ("{", "[]", '{"a": {"other": 1}}', '{"a": 3}'):
        (tmp_path / "new" / "int8.json").write_text(damage)
        assert recall("a", lambda: compute(0.5))["int_mm"] == 0.5
    assert len(calls) == 6


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file" / "inside"))
    assert recall("a", lambda: {"int_mm": 0.5}) == {"int_mm": 0.5}


def test_a_machine_is_its_cpu_pytorch_and_restrictions(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(int8_probe, "read_cpuinfo", lambda: "model name : X 1\nflags : sse avx2\n")
    plain = int8_probe.describe_machine()
    assert plain.startswith("X 1, ")
    assert torch.__version__ in plain
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert int8_probe.describe_machine() != plain
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    monkeypatch.setattr(int8_probe, "read_cpuinfo", lambda: "model name : X 1\nflags : sse\n")
    assert int8_probe.describe_machine() != plain
