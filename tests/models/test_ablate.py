"""Ablations of attention, on every model: what each computes, and that it restores the model."""

import copy
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import pytest
import torch

from regard.attention import NORMALISERS, MultiHead, Position, SingleHead
from regard.attention.scores import Mean
from regard.errors import UserError
from regard.models.ablate import (
    NO_KEY,
    ablate_head,
    mask_keys,
    patch_normalisers,
    uniform_attention,
)

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
STEPS = 3


@pytest.fixture(params=KINDS)
def kind(request, make):
    return make(request.param)


@pytest.fixture
def example(example):
    """Shorter targets: many passes over each."""
    return replace(example, target=example.target[:, :7])


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def logits(model, example):
    return model(example.source, example.mask, example.target)


def attention_weights(model, example):
    return model.attention_weights(example.source, example.mask, example.target)


def all_layers(model):
    return [layer for layers in model.attention_layers().values() for layer in layers]


def assert_close(output, expected):
    tolerance = 1e-9 if expected.dtype == torch.float64 else 1e-4
    torch.testing.assert_close(output, expected, atol=tolerance, rtol=tolerance)


def run_steps(model, example):
    """Logits after each of the first target tokens, one step at a time."""
    state = model.init_state(model.encode(example.source, example.mask))
    all_logits = []
    for tokens in example.target[:, :STEPS].T:
        step_logits, state = model.step(tokens, state)
        all_logits.append(step_logits)
    return torch.stack(all_logits, dim=1)


# --- heads ----------------------------------------------------------------------------------------

PROJECTIONS = ("output", "o_proj", "c_proj", "o", "out_proj")  # ours, and those of Hugging Face


@contextmanager
def zero_context(layer, head, heads):
    """The reference: heads are concatenated before the output projection, where this one is zeroed."""

    def zero_output(_, __, outputs):
        return torch.zeros_like(outputs[0]), outputs[1]

    def zero_columns(_, inputs):
        contexts = inputs[0].unflatten(-1, (heads, -1)).clone()
        contexts[..., head, :] = 0
        return (contexts.flatten(-2),)

    if isinstance(layer, SingleHead):
        hook = layer.register_forward_hook(zero_output)
    else:
        projection = next(getattr(layer, name) for name in PROJECTIONS if hasattr(layer, name))
        hook = projection.register_forward_pre_hook(zero_columns)
    yield
    hook.remove()


def test_ablating_a_head(attentive_model, example):
    name, model = attentive_model
    intact_logits, intact = logits(model, example), attention_weights(model, example)
    for mechanism, [layer, *_] in model.attention_layers().items():
        heads = intact[mechanism].shape[2]
        with zero_context(layer, heads - 1, heads):
            expected = logits(model, example)
        with ablate_head(layer, heads - 1):
            assert_close(logits(model, example), expected)
            assert_close(run_steps(model, example), expected[:, :STEPS])
            weights = attention_weights(model, example)[mechanism][:, 0]
        assert (weights[:, -1] == 0).all()
        assert_close(weights[:, :-1], intact[mechanism][:, 0, :-1])
        if not name.endswith("-dummy"):  # which attends to nothing
            assert not torch.allclose(expected, intact_logits)


@pytest.mark.parametrize("name", ["decoder-only-grouped", "gru-1-bidirectional"])
def test_every_head_of_every_layer_can_be_ablated(name, make, example):
    model = make(name)
    intact = attention_weights(model, example)
    for mechanism, layers in model.attention_layers().items():
        heads = intact[mechanism].shape[2]
        for layer, head in product(layers, range(heads)):
            with zero_context(layer, head, heads):
                expected = logits(model, example)
            with ablate_head(layer, head):
                assert_close(logits(model, example), expected)
        for missing in (heads, -1):
            message = f"there is no head {missing}: this layer has {heads}, counted from 0"
            with ablate_head(layers[-1], missing), pytest.raises(UserError, match=message):
                logits(model, example)


# --- uniform weights ------------------------------------------------------------------------------


def test_uniform_attention_equals_the_score_mean(kind, example):
    other = copy.deepcopy(kind)
    for layer in all_layers(other):
        layer.score, layer.normalise = Mean(1, 1), NORMALISERS["softmax"]
        if isinstance(layer, MultiHead):
            layer.position = Position(13, 3, 4)
    with uniform_attention(all_layers(kind)):
        weights = attention_weights(kind, example)
        ablated = logits(kind, example)
    expected = attention_weights(other, example)
    for mechanism, uniform in weights.items():
        torch.testing.assert_close(uniform, expected[mechanism])
    torch.testing.assert_close(ablated, logits(other, example))


def test_uniform_attention_covers_the_unmasked_keys(attentive_model, example):
    model = attentive_model[1]
    layers = all_layers(model)
    with patch_normalisers(layers, lambda _: NORMALISERS["softmax"]):  # never gives exactly 0
        support = attention_weights(model, example)
    with uniform_attention(layers):
        uniform = attention_weights(model, example)
        assert_close(run_steps(model, example), logits(model, example)[:, :STEPS])
    if "decoder" in model.attention_layers() and "cross" not in model.attention_layers():
        for weights in (support, uniform):  # decoder-only: one softmax over source and target
            weights["decoder"] = torch.cat([weights.pop("cross"), weights["decoder"]], dim=-1)
    for mechanism, weights in uniform.items():
        allowed = (support[mechanism] > 0).to(weights.dtype)
        assert_close(weights, allowed / allowed.sum(-1, keepdim=True).clamp(min=1))


# --- masked keys ----------------------------------------------------------------------------------


def source_layers(model):
    layers = model.attention_layers()
    return layers.get("cross") or layers.get("decoder", [])


def init_state(model, memory):
    """With all keys of the source, also where a window would evict some."""
    return getattr(model, "_init_whole_state", model.init_state)(memory)


def source_mask_of(state):
    """The part of a decoder state that says which source tokens may be attended to: a view."""
    names = ("source_mask", "mask", "cache_mask")
    mask = next(getattr(state, name) for name in names if hasattr(state, name))
    return (mask[:, 0] if mask.dim() == 3 else mask)[:, :11]


def run_masked_steps(model, memory, target, keys):
    """The reference: before each step, the key is masked in the decoder state."""
    state, all_logits = init_state(model, memory).copy(), []
    for tokens, key in zip(target.T, keys.T, strict=True):
        mask = source_mask_of(state)
        before = mask.clone()
        mask &= key[:, None] != torch.arange(11)
        step_logits, state = model.step(tokens, state)
        source_mask_of(state).copy_(before)
        all_logits.append(step_logits)
    return torch.stack(all_logits, dim=1)


def random_keys(example):
    """A key for each target token, never the last of a source."""
    keys = torch.randint(0, 11, example.target.shape, generator=torch.Generator().manual_seed(4))
    return keys % torch.tensor(example.lengths)[:, None] - 1


def test_masked_keys(attentive_model, example):
    name, model = attentive_model
    layers, keys = source_layers(model), random_keys(example)
    assert (keys == NO_KEY).any()
    memory = model.encode(example.source, example.mask)
    with mask_keys(layers, keys):
        ablated = model.project(model.features(memory, example.target))
        again = model.project(model.features(memory, example.target))
    assert torch.equal(ablated, again)  # a second pass starts again at the first target token
    with mask_keys(layers, keys[:, :STEPS]):
        state = init_state(model, memory)
        for t in range(STEPS):
            step_logits, state = model.step(example.target[:, t], state)
            assert_close(step_logits, ablated[:, t])
    if name.startswith("decoder-only") and name.endswith(("-location", "-dynamic-ntk")):
        return  # a key masked in the state counts neither in the index of those after it nor in the length
    expected = run_masked_steps(model, memory, example.target, keys)
    assert_close(ablated, expected)
    if not name.endswith("-dummy"):
        assert not torch.allclose(ablated, logits(model, example))


@pytest.mark.parametrize("name", [*KINDS, "transformer-grouped", "transformer-latent-narrow"])
def test_masked_keys_have_no_weight(name, make, example):
    model, keys = make(name), random_keys(example)
    with mask_keys(model.attention_layers()["cross"], keys):
        weights = attention_weights(model, example)["cross"]
    masked = (keys[..., None] == torch.arange(11))[:, None, None]
    assert (weights.masked_fill(~masked, 0.0) == 0).all()
    if all_layers(model)[0].normalise is NORMALISERS["softmax"]:  # never gives exactly 0
        unmasked = ~masked & example.mask[:, None, None, None]
        assert torch.equal(weights > 0, unmasked.expand_as(weights))


# --- afterwards -----------------------------------------------------------------------------------


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
