"""int8 approximates float32, row by row; unsupported uses raise an error."""

import pytest
import torch

from regard.config import Config
from regard.errors import UserError
from regard.linear import Linear
from regard.models import build, int8, quantize_int8
from regard.models.int8 import Int8Backend, check_int8, quantize

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


@pytest.fixture(params=[True, False], ids=["packed", "plain"], autouse=True)
def kernel(request, monkeypatch) -> None:
    """With oneDNN's int8 kernel, where there is one, and without."""
    monkeypatch.setattr(int8, "MIN_OUTPUTS", 0)
    if not request.param:
        monkeypatch.setattr(int8, "can_pack_int8", lambda: False)


@torch.inference_mode()
def test_a_product_approximates_float32_and_rows_are_independent():
    x, weight, bias = torch.randn(7, 3, 64), torch.randn(29, 64), torch.randn(29)
    backend = Int8Backend(weight, bias)
    exact, approximate = torch.nn.functional.linear(x, weight, bias), backend(x, weight, bias)
    assert ((approximate - exact).norm() / exact.norm()) < 0.02
    x[1:] *= 1000
    assert torch.equal(backend(x, weight, bias)[0], approximate[0])
    assert torch.equal(backend(x[:1], weight, bias)[0], approximate[0])


@torch.inference_mode()
@pytest.mark.parametrize("name", TABLES)
def test_an_int8_model_approximates_the_model(name):
    plain, quantized = make(name), quantize_int8(make(name))
    assert isinstance(quantized.backend, Int8Backend)
    backends = [type(m.backend) for m in quantized.modules() if isinstance(m, Linear)]
    assert name == "recurrent" or Int8Backend in backends
    source, target = torch.randint(3, 300, (5, 11)), torch.randint(3, 300, (5, 7))
    mask = torch.ones_like(source, dtype=torch.bool)
    exact, approximate = (model(source, mask, target) for model in (plain, quantized))
    assert 0 < (approximate - exact).norm() / exact.norm() < 0.05


def test_an_int8_model_cannot_be_trained():
    model = quantize_int8(make("transformer")).train()
    ids = torch.randint(3, 300, (2, 5))
    with pytest.raises(UserError, match="an int8 model cannot be trained: load it without int8"):
        model(ids, torch.ones_like(ids, dtype=torch.bool), ids)


def test_int8_is_for_a_cpu():
    with pytest.raises(UserError, match="int8 is for a CPU, and this model is on meta"):
        quantize_int8(make("transformer").to("meta"))


def test_a_cpu_that_crashes_on_int8_raises_an_error():
    check_int8(True)
    check_int8(False, "import os; os.abort()")
    with pytest.raises(UserError, match="int8 products fail on this machine's CPU"):
        check_int8(True, "import os; os.abort()")
