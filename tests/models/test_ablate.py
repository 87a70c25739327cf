"""Ablations of attention: what each computes, and that it restores the model."""

import copy

import pytest
import torch

from regard.attention import NORMALISERS, MultiHead, Position
from regard.attention.scores import Mean
from regard.models.ablate import NO_KEY, ablate_head, mask_keys, uniform_attention

# Each computes attention in another way: in one pass, step by step, with a bias, not fused, without softmax.
KINDS = [
    "gru-2-bidirectional",
    "recurrent-input-feeding",
    "recurrent-tutorial",
    "recurrent-sparsemax",
    "transformer-scaled-dot",
    "transformer-additive",
    "transformer-position-alibi",
    "transformer-none",
]
TRANSFORMERS = [name for name in KINDS if name.startswith("transformer")]


@pytest.fixture(params=KINDS)
def kind(request, make):
    return make(request.param)


def logits(model, example):
    with torch.no_grad():
        return model(example.source, example.mask, example.target)


def all_layers(model):
    return [layer for layers in model.attention_layers().values() for layer in layers]


@pytest.mark.parametrize("mechanism", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_ablating_a_head_equals_zeroing_its_output_columns(name, mechanism, make, example):
    model = make(name)
    for layer in range(2):
        for head in range(3):
            other = copy.deepcopy(model)
            with (
                torch.no_grad()
            ):  # heads are concatenated, 4 columns each, before the output projection
                columns = slice(4 * head, 4 * (head + 1))
                other.attention_layers()[mechanism][layer].output.weight[:, columns] = 0
            with ablate_head(model.attention_layers()[mechanism][layer], head):
                ablated = logits(model, example)
            torch.testing.assert_close(ablated, logits(other, example))
            assert not torch.allclose(ablated, logits(model, example))


@pytest.mark.parametrize("name", [name for name in KINDS if name not in TRANSFORMERS])
def test_ablating_a_single_head_zeroes_the_context(name, make, example):
    """As the score `dummy` does."""
    model = make(name)
    with ablate_head(model.decoder.attention, 0):
        weights = model.attention_weights(example.source, example.mask, example.target)["cross"]
        ablated = logits(model, example)
    assert (weights == 0).all()
    # The context is zero, so the values of the keys have no effect.
    memory = model.encode(example.source, example.mask)
    memory.states = memory.states + 1.0
    with ablate_head(model.decoder.attention, 0), torch.no_grad():
        torch.testing.assert_close(model.project(model.features(memory, example.target)), ablated)


def test_grouped_heads_are_numbered_in_order(make):
    """Heads may span several axes: [batch group head query key]."""
    layer = make("transformer-scaled-dot").attention_layers()["cross"][0]
    with ablate_head(layer, 4):
        weights = layer.normalise(torch.randn(7, 2, 3, 5, 11))
    ablated = (weights == 0).all(-1).all(-1).all(0)
    assert ablated.tolist() == [[False, False, False], [False, True, False]]


def test_uniform_attention_equals_the_score_mean(kind, example):
    other = copy.deepcopy(kind)
    for layer in all_layers(other):
        layer.score, layer.normalise = Mean(1, 1), NORMALISERS["softmax"]
        if isinstance(layer, MultiHead):
            layer.position = Position(13, 3, 4)
    with uniform_attention(all_layers(kind)):
        weights = kind.attention_weights(example.source, example.mask, example.target)
        ablated = logits(kind, example)
    expected = other.attention_weights(example.source, example.mask, example.target)
    for mechanism, uniform in weights.items():
        torch.testing.assert_close(uniform, expected[mechanism])
    torch.testing.assert_close(ablated, logits(other, example))


def test_uniform_attention_covers_the_unmasked_keys(kind, example):
    with uniform_attention(all_layers(kind)):
        weights = kind.attention_weights(example.source, example.mask, example.target)
    for row, length in enumerate(example.lengths):
        uniform = torch.full((length,), 1 / length, dtype=torch.float64)
        torch.testing.assert_close(weights["cross"][row, 0, 0, 3, :length], uniform)
        assert (weights["cross"][row, ..., length:] == 0).all()
    if "decoder" in weights:
        causal = torch.ones(17, 17).double().tril()
        expected = causal / causal.sum(-1, keepdim=True)
        torch.testing.assert_close(weights["decoder"][0, 0, 0], expected)


def test_a_masked_key_equals_a_memory_without_it(kind, example):
    model, key = kind, 2
    keys = torch.full_like(example.target, key)
    with mask_keys(model.attention_layers()["cross"], keys):
        ablated = logits(model, example)
    for row, length in enumerate(example.lengths):
        source, mask, target = example.unpadded(row)
        with torch.no_grad():
            memory = model.encode(source, mask)
            others = [index for index in range(length) if index != key]
            memory.states, memory.mask = memory.states[:, others], memory.mask[:, others]
            alone = model.project(model.features(memory, target))
        torch.testing.assert_close(ablated[row : row + 1], alone)


def test_each_target_token_has_its_own_masked_key(kind, example):
    random = torch.Generator().manual_seed(4)
    keys = torch.randint(NO_KEY, 5, example.target.shape, generator=random)
    with mask_keys(kind.attention_layers()["cross"], keys):
        weights = kind.attention_weights(example.source, example.mask, example.target)["cross"]
        again = kind.attention_weights(example.source, example.mask, example.target)["cross"]
    assert torch.equal(weights, again)  # a second pass starts again at the first target token
    masked = (keys[..., None] == torch.arange(11))[:, None, None]
    assert (weights.masked_fill(~masked, 0.0) == 0).all()
    if all_layers(kind)[0].normalise is NORMALISERS["softmax"]:  # never gives exactly 0
        unmasked = ~masked & example.mask[:, None, None, None]
        assert torch.equal(weights > 0, unmasked.expand_as(weights))


def test_masking_no_key_has_no_effect(kind, example):
    keys = torch.full_like(example.target, NO_KEY)
    with mask_keys(kind.attention_layers()["cross"], keys):
        ablated = logits(kind, example)
    torch.testing.assert_close(ablated, logits(kind, example))


def test_the_model_is_restored_exactly(kind, example):
    before = logits(kind, example)
    state = {name: value.clone() for name, value in kind.state_dict().items()}
    normalisers = [layer.normalise for layer in all_layers(kind)]
    keys = torch.zeros_like(example.target)
    with uniform_attention(all_layers(kind)), ablate_head(all_layers(kind)[0], 0):
        assert not torch.equal(logits(kind, example), before)
    with (
        pytest.raises(KeyboardInterrupt),
        mask_keys(kind.attention_layers()["cross"], keys),
        uniform_attention(all_layers(kind)),
    ):
        raise KeyboardInterrupt
    assert all(a.normalise is b for a, b in zip(all_layers(kind), normalisers, strict=True))
    assert all(torch.equal(value, state[name]) for name, value in kind.state_dict().items())
    assert torch.equal(logits(kind, example), before)
    assert not kind.training


@pytest.mark.parametrize("ablation", ["head", "uniform"])
def test_steps_equal_one_pass(kind, example, ablation):
    layers = all_layers(kind)
    ablated = ablate_head(layers[-1], 0) if ablation == "head" else uniform_attention(layers)
    with ablated, torch.no_grad():
        at_once = kind(example.source, example.mask, example.target)
        state = kind.init_state(kind.encode(example.source, example.mask))
        for t in range(example.target.shape[1]):
            step, state = kind.step(example.target[:, t], state)
            torch.testing.assert_close(step, at_once[:, t])
