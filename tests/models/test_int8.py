"""int8 approximates float32, row by row, with every kernel; unsupported uses raise an error."""

import pytest
import torch

from regard.config import Config
from regard.errors import RegardWarning, UserError
from regard.linear import Linear, PackedBackend
from regard.models import build, int8, quantize_int8
from regard.models.int8 import Int8Backend, quantize
from regard.models.int8_kernels import KERNELS, Int8Kernel
from regard.models.int8_probe import is_exact

TABLES = {
    "recurrent": {"kind": "recurrent", "embedding_dim": 101, "hidden_dim": 211},
    "transformer": {"kind": "transformer", "d_model": 128, "d_ff": 1031},
    "decoder-only": {
        "kind": "decoder-only",
        "d_model": 128,
        "activation": "swiglu",
        "tie_embeddings": False,
    }
    | {"d_ff": 1031},
    "prefix": {"kind": "decoder-only", "d_model": 128, "d_ff": 1031, "attention_mask": "prefix"},
    "state-space": {"kind": "decoder-only", "d_model": 256, "mixer": "state-space"},
}


def make(name: str):
    torch.manual_seed(1)
    return build(Config.model_validate({"model": TABLES[name]}).model, 307, 311, False).eval()


def test_the_rounding_error_is_at_most_half_a_step():
    x = torch.randn(5, 37) * torch.tensor([1e-6, 1e-3, 1, 1e3, 0])[:, None]
    values, scales = quantize(x)
    assert values.dtype == torch.int8
    assert ((values * scales - x).abs() <= scales * 0.501).all()
    assert (values[:4].abs().amax(1) == 127).all()


@pytest.fixture(params=KERNELS, autouse=True)
def kernel(request, monkeypatch) -> type[Int8Kernel]:
    """Every kernel that the probe accepts on this machine."""
    kernel = KERNELS[request.param]
    if not kernel.is_available() or not is_exact(kernel):
        pytest.skip(f"{request.param} is missing or not exact here")
    monkeypatch.setattr(int8, "find_kernel", lambda: kernel)
    return kernel


@torch.inference_mode()
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_approximates_float32_and_rows_are_independent(kernel, bias):
    x, weight, added = torch.randn(7, 3, 64), torch.randn(29, 64), torch.randn(29)
    added = added if bias else None
    backend = Int8Backend(weight, added, kernel)
    exact, approximate = torch.nn.functional.linear(x, weight, added), backend(x, weight, added)
    assert ((approximate - exact).norm() / exact.norm()) < 2.54 / kernel.levels
    x[1:] *= 1000
    assert torch.equal(backend(x, weight, added)[0], approximate[0])
    assert torch.equal(backend(x[:1], weight, added)[0], approximate[0])


@torch.inference_mode()
def test_rows_of_zeros_and_of_nan_stay_what_they_are(kernel):
    x, weight, bias = torch.randn(5, 64), torch.randn(29, 64), torch.randn(29)
    x[1], x[3, 7], x[4, 2] = 0, float("nan"), float("inf")
    y = Int8Backend(weight, bias, kernel)(x, weight, bias)
    assert torch.equal(y[1], bias)
    assert y[[0, 2]].isfinite().all()
    assert not y[3:].isfinite().any()


@torch.inference_mode()
@pytest.mark.parametrize("name", TABLES)
def test_an_int8_model_approximates_the_model(name, kernel):
    plain, quantized = make(name), quantize_int8(make(name))
    assert isinstance(quantized.backend, Int8Backend)
    assert isinstance(quantized.backend.kernel, kernel)
    backends = [type(m.backend) for m in quantized.modules() if isinstance(m, Linear)]
    assert name == "recurrent" or Int8Backend in backends
    source, target = torch.randint(3, 300, (5, 11)), torch.randint(3, 300, (5, 7))
    mask = torch.ones_like(source, dtype=torch.bool)
    exact, approximate = (model(source, mask, target) for model in (plain, quantized))
    assert 0 < (approximate - exact).norm() / exact.norm() < 6.35 / kernel.levels


def test_an_int8_model_cannot_be_trained():
    model = quantize_int8(make("transformer")).train()
    ids = torch.randint(3, 300, (2, 5))
    with pytest.raises(UserError, match="an int8 model cannot be trained: load it without int8"):
        model(ids, torch.ones_like(ids, dtype=torch.bool), ids)


def test_int8_is_for_a_cpu():
    with pytest.raises(UserError, match="int8 is for a CPU, and this model is on meta"):
        quantize_int8(make("transformer").to("meta"))


def test_where_no_kernel_is_faster_float32_is_used_with_one_warning(monkeypatch, recwarn):
    monkeypatch.setattr(int8, "find_kernel", lambda: None)
    int8.warn_of_float32.cache_clear()
    models = [quantize_int8(make("transformer")) for _ in range(2)]
    assert [(w.category, str(w.message)) for w in recwarn] == [
        (RegardWarning, "int8 would be no faster than float32 on this CPU: float32 is used")
    ]
    for model in models:
        backends = [m.backend for m in model.modules() if isinstance(m, Linear)]
        assert all(type(one) is PackedBackend for one in [*backends, model.backend])
