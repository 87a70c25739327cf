"""Models give long sequences a rule instead of a mask: the same outputs and gradients, for each of them."""

import json
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.attention import long
from regard.config import Config
from tests.models.conftest import MODELS
from tests.models.stepping import assert_close

PARTS = ("kind", "attention", "attention_mask", "position")


def select_names() -> list[str]:
    """One Transformer of MODELS for each kind of self-attention, mask and position."""
    by_parts = {}
    for name, table in MODELS.items():
        if table["kind"] in ("transformer", "decoder-only") and "mixer" not in table:
            by_parts[json.dumps([table.get(part) for part in PARTS])] = name
    return list(by_parts.values())


NAMES = select_names()


def compute(model, example) -> list[torch.Tensor]:
    """The logits of real source and target tokens, and the gradients of all parameters."""
    for parameter in model.parameters():
        parameter.grad = None
    logits = model(example.source, example.mask, example.target)
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    (logits * weights).sum().backward()
    used = [p.grad for p in model.parameters() if p.grad is not None]
    return [logits.detach(), *used]


class LargestTensor(TorchDispatchMode):
    """How many elements the largest tensor has that any operation computes, forwards or backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return result


def needs_matrix(table: dict[str, Any]) -> bool:
    """Other kinds than scaled-dot and softmax, and rotations by the number of keys."""
    attention = Config.model_validate({"model": table}).model.attention
    kinds = attention.score.kind, attention.normaliser.kind
    scaling = isinstance(table.get("position"), dict) and table["position"].get("scaling")
    return kinds != ("scaled-dot", "softmax") or scaling == "dynamic-ntk"


@pytest.mark.parametrize("name", NAMES)
def test_no_tensor_is_as_large_as_a_matrix(name, make, monkeypatch):
    """In self-attention, of a long source and of a long target, with every kind of attention and position."""
    monkeypatch.setattr(long, "LONG", 64)
    monkeypatch.setattr(long, "BLOCK_QUERIES", 8)
    model, length = make(name).float().train(), 120
    ids = torch.ones(1, length, dtype=torch.int64)
    short = ids if model.is_decoder_only else ids[:, :5]
    with LargestTensor() as largest:
        model.encode(ids, ids == 1).states.square().mean().backward()
        model.features(model.encode(short, short == 1), ids).square().mean().backward()
    assert (largest.elements >= length**2) == needs_matrix(MODELS[name])


@pytest.mark.parametrize("name", NAMES)
def test_rules_change_neither_outputs_nor_gradients(name, make, example, monkeypatch):
    model = make(name)
    expected = compute(model, example)
    monkeypatch.setattr(long, "LONG", 1)
    monkeypatch.setattr(long, "BLOCK_QUERIES", 4)
    for one, two in zip(compute(model, example), expected, strict=True):
        assert_close(one, two)
    weights = model.attention_weights(example.source, example.mask, example.target)
    monkeypatch.undo()
    before = model.attention_weights(example.source, example.mask, example.target)
    for mechanism in before:
        assert torch.equal(weights[mechanism], before[mechanism])


def test_short_sequences_have_matrices(make, example, monkeypatch):
    """What training and translation of sentences compute has not changed."""
    model = make("transformer-window")
    monkeypatch.setattr(long.MaskRule, "within", lambda *_: pytest.fail("a rule was used"))
    model(example.source, example.mask, example.target)
    monkeypatch.setattr(long, "LONG", 1)
    with pytest.raises(pytest.fail.Exception, match="a rule was used"):
        model(example.source, example.mask, example.target)
