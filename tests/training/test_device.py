"""Devices and precisions: which one is selected on which machine, with fakes for what is not here."""

import subprocess
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from regard.devices import resolve_device
from regard.errors import UserError
from regard.training.device import get_rng_states, select_dtype, set_rng_states, use_cuda_stream


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """machine(gpus=2, mps=False, ...): pretend to be a machine with these devices."""

    def pretend(
        gpus: int = 0, mps: bool = False, bfloat16: bool = False, capability: Any = (7, 5)
    ) -> list[str]:
        """Returns the CUDA devices that become the current one."""
        selected: list[str] = []

        @contextmanager
        def select(name: str):
            selected.append(name)
            yield
            selected.append("previous")

        def is_bf16_supported(including_emulation: bool = True) -> bool:
            assert not including_emulation  # emulated bfloat16 is slower than float32
            return bfloat16

        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "device", select)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        return selected

    return pretend


@pytest.mark.parametrize(
    ("devices", "name", "expected"),
    [
        ({"gpus": 0}, "auto", "cpu"),
        ({"gpus": 1}, "auto", "cuda"),
        ({"gpus": 2, "mps": True}, "auto", "cuda"),
        ({"mps": True}, "auto", "cpu"),
        ({"mps": True}, "mps", "mps"),
        ({"gpus": 1}, "cpu", "cpu"),
        ({"gpus": 1}, "cuda", "cuda"),
        ({"gpus": 1}, "cuda:0", "cuda:0"),
        ({"gpus": 12}, "cuda:11", "cuda:11"),
    ],
)
def test_resolve_device(machine, devices: dict, name: str, expected: str) -> None:
    machine(**devices)
    assert resolve_device(name) == expected


@pytest.mark.parametrize(
    ("gpus", "name", "message"),
    [
        (0, "cuda", "PyTorch finds no CUDA device here: use the device cpu"),
        (0, "cuda:1", "PyTorch finds no CUDA device here: use the device cpu"),
        (1, "cuda:1", "no device cuda:1: PyTorch finds one CUDA device here, use cuda:0$"),
        (3, "cuda:3", "cuda:3: PyTorch finds 3 CUDA devices here, use cuda:0 to cuda:2$"),
        (1, "mps", "PyTorch finds no MPS device here: use the device cpu"),
        (1, "cdua", r'is auto, cpu, cuda, cuda:N or mps: got "cdua"\. Did you mean "cuda"\?'),
        (1, "CUDA", 'Did you mean "cuda"'),
        (1, "gpu", 'Did you mean "cuda"'),
        (1, "gpu:0", 'Did you mean "cuda"'),
        (1, "cuda:", 'got "cuda:"'),
        (1, "cuda:-1", 'got "cuda:-1"'),
        (1, "cuda:one", 'got "cuda:one"'),
        (1, "tpu", 'got "tpu"'),
        (1, "", 'got ""'),
    ],
)
def test_unknown_devices_are_rejected(machine, gpus: int, name: str, message: str) -> None:
    machine(gpus=gpus)
    with pytest.raises(UserError, match=message):
        resolve_device(name)


@pytest.mark.parametrize(
    ("name", "gpu", "expected"),
    [
        ("cpu", {}, torch.float32),
        ("mps", {}, torch.float32),
        ("cuda", {"bfloat16": True, "capability": (9, 0)}, torch.bfloat16),
        ("cuda:1", {"bfloat16": True, "capability": (8, 0)}, torch.bfloat16),
        ("cuda:1", {"capability": (7, 5)}, torch.float16),
        ("cuda", {"capability": (7, 0)}, torch.float16),
        ("cuda", {"capability": (6, 1)}, torch.float32),
    ],
)
def test_auto_precision(machine, name: str, gpu: dict, expected: torch.dtype) -> None:
    """The capabilities of the device in use, which need not be the first one."""
    selected = machine(gpus=2, **gpu)
    assert select_dtype("auto", name) == expected
    assert selected == ([name, "previous"] if name.startswith("cuda") else [])
    for precision in ("float32", "bfloat16", "float16"):
        if name != "cpu":
            assert select_dtype(precision, name) == getattr(torch, precision)


def test_float16_is_rejected_on_a_cpu() -> None:
    with pytest.raises(UserError, match=r"float16 is for a GPU.*training\.precision=float32"):
        select_dtype("float16", "cpu")


def test_bfloat16_is_probed_in_another_process(monkeypatch) -> None:
    """A CPU that reports bfloat16 and crashes ends the probe, not the user's process."""
    crashed = subprocess.CompletedProcess([], -4)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: crashed)
    with pytest.raises(UserError, match=r"training\.precision=float32.*ONEDNN_MAX_CPU_ISA"):
        select_dtype("bfloat16", "cpu")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))
    assert select_dtype("bfloat16", "cpu") == torch.bfloat16


class FakeStream:
    """A CUDA stream of the device that was the current one when it was made."""

    def __init__(self, device: str) -> None:
        self.device, self.waits_for = device, []

    def wait_stream(self, other: "FakeStream") -> None:
        self.waits_for.append(other.device)


def test_side_stream_is_on_the_selected_device(machine, monkeypatch) -> None:
    """Streams, graphs and random generators are those of the current device."""
    selected, used = machine(gpus=2), []
    default = FakeStream("default")
    monkeypatch.setattr(torch.cuda, "Stream", lambda: FakeStream(selected[-1]))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: default)

    @contextmanager
    def stream(side: FakeStream):
        used.append(side.device)
        yield

    monkeypatch.setattr(torch.cuda, "stream", stream)
    with use_cuda_stream("cuda:1"):
        assert selected == ["cuda:1"]
    assert selected == ["cuda:1", "previous"]
    assert used == default.waits_for == ["cuda:1"]
    with use_cuda_stream("cpu"), use_cuda_stream("mps"):
        assert selected == ["cuda:1", "previous"]


def test_random_states_are_those_of_the_device_in_use(machine, monkeypatch) -> None:
    machine(gpus=2, mps=True)
    state, restored = torch.arange(3, dtype=torch.uint8), []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: state + device.index)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *args: restored.append(args))
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda *args: restored.append(args))
    second, cpu, mps = torch.device("cuda:1"), torch.device("cpu"), torch.device("mps")
    assert get_rng_states(cpu).keys() == {"cpu"}
    assert get_rng_states(mps).keys() == {"cpu", "mps"}
    states = get_rng_states(second)
    assert states["cuda"].tolist() == [1, 2, 3]
    draws = torch.rand(3)
    for other in (cpu, mps):  # a run that is resumed on another kind of device
        set_rng_states(other, states)
        assert torch.equal(torch.rand(3), draws)
    assert not restored
    set_rng_states(second, states)
    assert restored == [(states["cuda"], second)]
    set_rng_states(mps, get_rng_states(mps))
    assert restored[1:] == [(state,)]
