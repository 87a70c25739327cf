"""Models give long sequences a rule instead of a mask: the same outputs and gradients, for each of them."""

import pytest
import torch

from regard.attention import long
from tests.models.conftest import MODELS
from tests.models.stepping import assert_close

NAMES = [
    name
    for name, table in MODELS.items()
    if table["kind"] in ("transformer", "decoder-only") and "mixer" not in table
]


def compute(model, example) -> list[torch.Tensor]:
    """The logits of real source and target tokens, and the gradients of all parameters."""
    for parameter in model.parameters():
        parameter.grad = None
    logits = model(example.source, example.mask, example.target)
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    (logits * weights).sum().backward()
    used = [p.grad for p in model.parameters() if p.grad is not None]
    return [logits.detach(), *used]


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
