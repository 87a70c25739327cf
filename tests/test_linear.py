"""Linear layers equal PyTorch's with every backend."""

import pickle
from copy import deepcopy

import pytest
import torch
from torch.nn.functional import linear

from regard.linear import Linear, PackedBackend, can_pack

INPUTS, OUTPUTS = 37, 101


@pytest.fixture
def layer() -> Linear:
    torch.manual_seed(1)
    layer = Linear(INPUTS, OUTPUTS)
    layer.backend = PackedBackend(layer.weight)
    return layer


@pytest.mark.parametrize("shape", [(1,), (3, 1), (41,), (5, 2, 23)])
def test_packed_equals_torch(layer, shape):
    x = torch.randn(*shape, INPUTS)
    expected = linear(x, layer.weight, layer.bias)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.skipif(not can_pack(), reason="this PyTorch has no oneDNN")
@pytest.mark.parametrize("fused", [True, False])
def test_training_a_weight_drops_its_packed_copy(layer, fused):
    x = torch.randn(64, INPUTS)
    with torch.inference_mode():
        layer(x)
    assert layer.backend.packed is not None
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1.0, fused=fused)
    layer(x).sum().backward()
    optimizer.step()
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), linear(x, layer.weight, layer.bias))


def test_loading_a_weight_drops_its_packed_copy(layer):
    x = torch.randn(64, INPUTS)
    layer.load_state_dict(Linear(INPUTS, OUTPUTS).state_dict())
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), linear(x, layer.weight, layer.bias))


def test_gradients_flow_and_copies_are_independent(layer):
    x = torch.randn(64, INPUTS)
    with torch.inference_mode():
        before = layer(x)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    for copy in (deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.no_grad():
            copy.weight.zero_()
        with torch.inference_mode():
            assert not torch.allclose(copy(x), before)
            torch.testing.assert_close(layer(x), before)
