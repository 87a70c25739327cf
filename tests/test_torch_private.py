"""Each private PyTorch function gives the same result as the public fallback that replaces it."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import linear

from regard import torch_private
from regard.linear import Linear, PackedBackend

ROWS, INPUTS, OUTPUTS = 23, 37, 41
SHAPES = [(3, 5), (7,), (), (2, 1, 11)]
FOREACH = ["_foreach_copy_", "_foreach_sub", "_foreach_mul_", "_foreach_add_"]


PRIVATE = re.compile(
    r"torch(\.\w+)*\._[a-z]|torch\.ops\.|\._version\b|from torch\S* import .*\b_[a-z]"
)


def test_no_other_module_uses_a_private_name():
    module = Path(inspect.getfile(torch_private))
    paths = [
        path for path in module.parent.rglob("*.py") if PRIVATE.search(path.read_text("utf-8"))
    ]
    assert paths == [module]


def without(monkeypatch, *names: str) -> None:
    """Act as a PyTorch that lacks these functions of `torch`."""
    for name in names:
        monkeypatch.delattr(torch, name)


def without_onednn(monkeypatch) -> None:
    """Act as a PyTorch that lacks oneDNN's operators."""
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    monkeypatch.setattr(torch.ops, "onednn", SimpleNamespace())
    for name in ("can_pack", "can_pack_int8"):  # not the cached answers
        monkeypatch.setattr(torch_private, name, inspect.unwrap(getattr(torch_private, name)))


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random).to(dtype) for shape in SHAPES]


def run_foreach() -> list[list[torch.Tensor]]:
    copied, means, factor = tensors(1), tensors(2), torch.tensor(0.3)
    torch_private.foreach_copy_(copied, tensors(3, torch.bfloat16))
    steps = torch_private.foreach_sub(tensors(4), means)
    scaled = [step.clone() for step in steps]
    torch_private.foreach_mul_(scaled, factor)
    torch_private.foreach_add_(means, scaled)
    return [copied, steps, scaled, means]


def test_foreach_functions_equal_their_loops(monkeypatch):
    private = run_foreach()
    without(monkeypatch, *FOREACH)
    public = run_foreach()
    for fast, slow in zip(private, public, strict=True):
        assert len(fast) == len(slow) == len(SHAPES)
        assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))
    assert all(
        torch.equal(a, b.float())
        for a, b in zip(public[0], tensors(3, torch.bfloat16), strict=True)
    )


@pytest.mark.parametrize("foreach", [torch_private.foreach_copy_, torch_private.foreach_add_])
def test_the_loops_refuse_lists_of_different_lengths(foreach, monkeypatch):
    without(monkeypatch, *FOREACH)
    with pytest.raises(ValueError, match="zip"):
        foreach(tensors(1), tensors(2)[:-1])


def int8(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(
        -127, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed)
    )


def test_int_mm_equals_float64_matmul(monkeypatch):
    x, weight = int8(1, ROWS, INPUTS), int8(2, OUTPUTS, INPUTS)
    private = torch_private.int_mm(x, weight.T)
    without(monkeypatch, "_int_mm")
    public = torch_private.int_mm(x, weight.T)
    assert private.dtype == public.dtype == torch.int32
    assert torch.equal(private, public)
    assert torch.equal(public.long(), (x.long()[:, None] * weight.long()).sum(-1))


def run_packed_int8() -> torch.Tensor:
    weight, scales = int8(2, OUTPUTS, INPUTS), torch.linspace(0.001, 0.1, OUTPUTS)
    x = (int8(1, ROWS, INPUTS).to(torch.int16) + 128).to(torch.uint8)
    zero_points = torch.zeros(OUTPUTS, dtype=torch.int8)
    packed = torch_private.pack_int8_weight(weight)
    return torch_private.packed_int8_linear(x, 128, packed, scales, zero_points)


def test_packed_int8_linear_equals_int_mm(monkeypatch):
    private = run_packed_int8()
    without_onednn(monkeypatch)
    assert not torch_private.can_pack_int8()
    torch.testing.assert_close(run_packed_int8(), private)
    without(monkeypatch, "_int_mm")
    torch.testing.assert_close(run_packed_int8(), private)


def test_fbgemm_linear_equals_int_mm():
    if not torch_private.has_fbgemm():
        pytest.skip("this PyTorch has no FBGEMM")
    engine = torch.backends.quantized.engine
    weight, scales = int8(2, OUTPUTS, INPUTS), torch.linspace(0.001, 0.1, OUTPUTS)
    x = int8(1, ROWS, INPUTS).clamp(-63, 63)  # the sums of 7 bits are exact on every CPU
    packed = torch_private.pack_fbgemm_weight(weight, scales)
    assert torch.backends.quantized.engine == engine
    y = torch_private.fbgemm_linear(x / 63, 63, packed)
    torch.testing.assert_close(y * 63, torch_private.int_mm(x, weight.T) * scales)


@pytest.mark.parametrize("bias", [True, False])
def test_packed_linear_equals_linear(bias, monkeypatch):
    torch.manual_seed(1)
    x, weight = torch.randn(3, ROWS, INPUTS), torch.randn(OUTPUTS, INPUTS)
    added = torch.randn(OUTPUTS) if bias else None
    private = torch_private.packed_linear(x, torch_private.pack_weight(weight, ROWS), added)
    without_onednn(monkeypatch)
    assert not torch_private.can_pack()
    public = torch_private.packed_linear(x, torch_private.pack_weight(weight, ROWS), added)
    assert torch.equal(public, linear(x, weight, added))
    torch.testing.assert_close(private, public)


def test_version_counts_modifications_in_place():
    tensor = torch.zeros(3)
    before = torch_private.version(tensor)
    assert torch_private.version(tensor) == before
    tensor += 1
    assert torch_private.version(tensor) != before


def test_without_a_version_every_tensor_counts_as_modified(monkeypatch):
    version, plain = inspect.unwrap(torch_private.version), SimpleNamespace()
    assert version(plain) != version(plain)
    monkeypatch.setattr("regard.linear.version", lambda tensor: float("nan"))
    layer = Linear(INPUTS, OUTPUTS)
    layer.backend = PackedBackend(layer.weight)
    x = torch.randn(5 * ROWS, ROWS, INPUTS)
    with torch.inference_mode():
        assert torch.equal(layer(x), linear(x, layer.weight, layer.bias))
    assert layer.backend.packed is None


def test_own_tensors_are_those_of_the_iterators(monkeypatch):
    norm = torch.nn.BatchNorm1d(3)
    norm.bias = None
    model = torch.nn.Sequential(norm, torch.nn.Linear(3, 2))
    own = [torch_private.own_tensors(module) for module in model.modules()]
    expected = [
        [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        for module in model.modules()
    ]
    assert [list(map(id, tensors)) for tensors in own] == [list(map(id, ts)) for ts in expected]
    assert sum(map(len, own)) == 6


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_has_hooks(register):
    module = torch.nn.Linear(3, 2)
    assert not torch_private.has_hooks(module)
    handle = getattr(module, register)(lambda *_: None)
    assert torch_private.has_hooks(module)
    handle.remove()
    assert not torch_private.has_hooks(module)


def train(kind: type[torch.optim.Optimizer]) -> list[float]:
    """Three updates of an optimizer, which is saved and loaded after each."""
    x = torch.nn.Parameter(torch.arange(3.0))
    optimizer = kind([{"params": [x], "weight_decay": 0.3}], lr=torch.tensor(0.1), fused=True)
    for _ in range(3):
        x.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
    return x.tolist()


def test_adamw_does_not_import_the_compiler():
    """In a new process, since another test may have imported it; the same update as PyTorch's."""
    script = f"""
import sys, torch
from regard.torch_private import AdamW
{inspect.getsource(train)}
print(train(AdamW), "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == f"{train(torch.optim.AdamW)} False\n", done.stderr


def test_functions_may_be_compiled_for_many_shapes():
    """By the name of the setting in newer or older versions of PyTorch; a larger number stays."""
    from torch._dynamo import config

    with config.patch(recompile_limit=8):
        torch_private.allow_recompilations(100)
        torch_private.allow_recompilations(50)
        assert config.recompile_limit == 100
