"""int8 is nearly float32, for each row by itself; what it cannot do, it says."""

import importlib

import pytest
import torch

from regard.config import Config
from regard.errors import UserError
from regard.linear import Linear
from regard.models import build, int8
from regard.models.int8 import Int8, check, rounded

module = importlib.import_module("regard.models.int8")

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
    "state-space": {"kind": "decoder-only", "d_model": 256, "mixer": "state-space"},
}


def make(name: str):
    torch.manual_seed(1)
    return build(Config.model_validate({"model": TABLES[name]}).model, 307, 311, False).eval()


def test_rounding_is_off_by_half_a_step_at_most():
    x = torch.randn(5, 37) * torch.tensor([1e-6, 1e-3, 1, 1e3, 0])[:, None]
    values, scales = rounded(x)
    assert values.dtype == torch.int8
    assert ((values * scales - x).abs() <= scales * 0.501).all()
    assert (values[:4].abs().amax(1) == 127).all()


@pytest.fixture(params=[True, False], ids=["in one go", "plain"], autouse=True)
def form(request, monkeypatch) -> None:
    """With oneDNN's own product, where there is one, and without."""
    monkeypatch.setattr(module, "ENOUGH", 0)
    if not request.param:
        monkeypatch.setattr(module, "fused", lambda: False)


@torch.inference_mode()
def test_a_product_is_nearly_float32_and_no_row_knows_of_another():
    x, weight, bias = torch.randn(7, 3, 64), torch.randn(29, 64), torch.randn(29)
    product = Int8(weight, bias)
    wanted, found = torch.nn.functional.linear(x, weight, bias), product(x, weight, bias)
    assert ((found - wanted).norm() / wanted.norm()) < 0.02
    x[1:] *= 1000
    assert torch.equal(product(x, weight, bias)[0], found[0])
    assert torch.equal(product(x[:1], weight, bias)[0], found[0])


@torch.inference_mode()
@pytest.mark.parametrize("name", TABLES)
def test_a_model_in_int8_is_nearly_the_model(name):
    plain, quick = make(name), int8(make(name))
    assert isinstance(quick.backend, Int8)
    kinds = [type(part.backend) for part in quick.modules() if isinstance(part, Linear)]
    assert name == "recurrent" or Int8 in kinds
    source, target = torch.randint(3, 300, (5, 11)), torch.randint(3, 300, (5, 7))
    mask = torch.ones_like(source, dtype=torch.bool)
    wanted, found = (model(source, mask, target) for model in (plain, quick))
    assert 0 < (found - wanted).norm() / wanted.norm() < 0.05


def test_it_cannot_be_trained():
    model = int8(make("transformer")).train()
    ids = torch.randint(3, 300, (2, 5))
    with pytest.raises(UserError, match="cannot be trained: load it without int8"):
        model(ids, torch.ones_like(ids, dtype=torch.bool), ids)


def test_it_is_for_a_cpu():
    with pytest.raises(UserError, match="int8 is for a CPU, and this model is on meta"):
        int8(make("transformer").to("meta"))


def test_a_cpu_that_faults_is_told_of_and_ends_nothing():
    check(True)
    check(False, "import os; os.abort()")
    with pytest.raises(UserError, match="int8 products fail on this machine's CPU"):
        check(True, "import os; os.abort()")
