"""Attention weights: all of them, on request, never None; and gradients reach every parameter."""

import copy

import pytest
import torch

from regard.models.intervene import patch_normalisers
from tests.models.conftest import ENSEMBLES, MODELS

SOURCE, TARGET = 11, 17
DECODER_ONLY = ("decoder-only", "pretrained-gpt2", "pretrained-llama")


# (layers, heads) of encoder and decoder in the tiny test checkpoints
PRETRAINED = {
    "gpt2": ((2, 3), (2, 3)),
    "llama": ((3, 6), (3, 6)),
    "marian": ((2, 7), (3, 7)),
    "t5": ((2, 3), (3, 3)),
}


def expected_shapes(name) -> dict[str, tuple[int, ...]]:
    """The shape of each mechanism's weights in a model; the layers of an ensemble's members add up."""
    if name not in ENSEMBLES:
        return shapes_of(MODELS[name])
    found: dict[str, tuple[int, ...]] = {}
    for member in ENSEMBLES[name]:
        for mechanism, (batch, layers, *rest) in shapes_of(MODELS[member]).items():
            before = found.get(mechanism, (batch, 0))[1]
            found[mechanism] = (batch, before + layers, *rest)
    return found


def shapes_of(table) -> dict[str, tuple[int, ...]]:
    """The shape of each mechanism's weights in a single model with this table."""
    if table["kind"] == "pretrained":
        encoder, decoder = PRETRAINED[table["name"]]
        return {
            "cross": (5, *decoder, TARGET, SOURCE),
            "encoder": (5, *encoder, SOURCE, SOURCE),
            "decoder": (5, *decoder, TARGET, TARGET),
        }
    if table["kind"] == "recurrent":
        return {} if table["attention"] == "none" else {"cross": (5, 1, 1, TARGET, SOURCE)}
    if "attention" not in table:  # state-space mixers only
        return {}
    decoder, heads = table["decoder"]["layers"], table["attention"]["heads"]
    encoder = table.get("encoder", table["decoder"])["layers"]
    shapes = {
        "cross": (5, decoder, heads, TARGET, SOURCE),
        "encoder": (5, encoder, heads, SOURCE, SOURCE),
        "decoder": (5, decoder, heads, TARGET, TARGET),
    }
    return {"cross": shapes["cross"]} if "mixer" in table else shapes


@torch.no_grad()
def test_weights_of_every_mechanism_are_returned(named_model, example):
    name, model = named_model
    weights = model.attention_weights(example.source, example.mask, example.target)
    shapes = {mechanism: tuple(w.shape) for mechanism, w in weights.items()}
    assert shapes == expected_shapes(name)


@torch.no_grad()
def test_weights_sum_to_one_or_zero_and_are_zero_where_masked(named_model, example):
    name, model = named_model
    all_weights = model.attention_weights(example.source, example.mask, example.target)
    future = {size: torch.ones(size, size).triu(1).bool() for size in (SOURCE, TARGET)}
    for mechanism, weights in all_weights.items():
        assert weights.isfinite().all()
        masked = future[TARGET] if mechanism == "decoder" else ~example.mask[:, None, None, None]
        assert (weights.masked_fill(~masked, 0.0) == 0).all()
        if name.startswith(DECODER_ONLY) and mechanism == "encoder":
            query_mask = example.mask[:, None, None, :, None]
            on_future = weights.masked_fill(~(future[SOURCE] & query_mask), 0.0)
            assert (on_future != 0).any() if "prefix" in name else (on_future == 0).all()
    if name.startswith(DECODER_ONLY) and all_weights:  # one softmax over source and target
        both = [all_weights.pop("cross"), all_weights["decoder"]]
        all_weights["decoder"] = torch.cat(both, dim=-1)
    if name == "ensemble-mixed":
        return  # one softmax in some layers, two in others
    for weights in all_weights.values():
        if not name.endswith("-none") or "-position-" in name:  # the normaliser `none`: any sum
            expected = 0.0 if name.endswith("-dummy") else 1.0
            torch.testing.assert_close(weights.sum(-1), torch.full_like(weights[..., 0], expected))


@torch.no_grad()
def test_padding_does_not_change_the_weights(model, example):
    batched = model.attention_weights(example.source, example.mask, example.target)
    for row in (0, 2, 3):  # of 11, 7 and 1 tokens
        length = example.lengths[row]
        unpadded = model.attention_weights(*example.unpadded(row))
        assert unpadded.keys() == batched.keys()
        for mechanism, weights in unpadded.items():
            query = length if mechanism == "encoder" else TARGET
            key = TARGET if mechanism == "decoder" else length
            cropped = batched[mechanism][row : row + 1, :, :, :query, :key]
            tolerance = 1e-9 if weights.dtype == torch.float64 else 1e-5
            torch.testing.assert_close(weights, cropped, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", ["transformer", "decoder-only"])
def test_weights_differ_between_layers_and_heads(kind, make, example):
    all_weights = make(f"{kind}-scaled-dot").attention_weights(
        example.source, example.mask, example.target
    )
    for weights in all_weights.values():
        heads = weights[0].flatten(0, 1)  # [layers * heads query key]
        for i, head in enumerate(heads):
            assert all(not torch.allclose(head, other) for other in heads[:i])


def has_no_gradient(name: str, parameter: str) -> bool:
    """True where the gradient is zero by construction."""
    if name == "transformer-mean":  # uniform weights: neither queries nor their norm have an effect
        return ".query." in parameter or "cross_norm" in parameter
    if name == "decoder-only-mean":
        return ".query." in parameter
    if name == "transformer-dummy":  # no attention: the source has no effect
        attention = (".mixer", ".cross")
        return any(part in parameter for part in attention) or parameter.startswith(
            ("encoder", "source_embedding")
        )
    if name == "decoder-only-dummy":
        return ".mixer" in parameter or parameter.startswith("source_embedding")
    return False


def test_gradients_are_finite_and_reach_every_parameter(named_model, example):
    name, model = named_model[0], copy.deepcopy(named_model[1])
    logits = model(example.source, example.mask, example.target)
    logits.log_softmax(-1)[..., 5].sum().backward()
    without_gradient = set()
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for parameter_name, parameter in trainable.items():
        grad = parameter.grad
        if grad is None or not grad.abs().sum() > 0:
            without_gradient.add(parameter_name)
        assert grad is None or grad.isfinite().all(), parameter_name
    assert without_gradient == {p for p in trainable if has_no_gradient(name, p)}


@pytest.mark.parametrize(
    "name",
    [
        "gru-1-bidirectional",
        "bottleneck-parallel",
        "transformer-position-rotary",
        "transformer-state-space",
        "decoder-only-position-rotary",
        "decoder-only-location",
        "decoder-only-state-space",
    ],
)
def test_padding_gets_no_gradient(name, make, example):
    model = make(name)
    recurrent = name.startswith(("gru", "bottleneck"))
    embedding = model.encoder.embedding if recurrent else model.source_embedding
    model(example.source, example.mask, example.target).square().sum().backward()
    tokens = set(example.source[example.mask].tolist())
    with_gradient = set(embedding.weight.grad.abs().sum(1).nonzero()[:, 0].tolist())
    assert with_gradient == tokens


@torch.no_grad()
def test_attention_layers_are_those_that_compute_the_weights(named_model, example):
    name, model = named_model
    if name == "ensemble-mixed":
        pytest.skip("its layers are of two sorts, so that asking for them is an error")
    weights = model.attention_weights(example.source, example.mask, example.target)
    layers = model.attention_layers()
    counts = {mechanism: w.shape[1] for mechanism, w in weights.items()}
    if name.startswith(DECODER_ONLY):  # one mechanism, whose weights are returned in three parts
        counts = {mechanism: n for mechanism, n in counts.items() if mechanism == "decoder"}
    assert {mechanism: len(group) for mechanism, group in layers.items()} == counts
    # Zeroing one layer's weights zeroes exactly its entry.
    for mechanism, mechanism_layers in layers.items():
        for index, layer in enumerate(mechanism_layers):
            with patch_normalisers([layer], lambda _: torch.zeros_like):
                ablated = model.attention_weights(example.source, example.mask, example.target)
            assert (ablated[mechanism][:, index] == 0).all()
            for other in set(range(len(mechanism_layers))) - {index}:
                nonzero = (ablated[mechanism][:, other] != 0).any()
                assert nonzero == (weights[mechanism][:, other] != 0).any()
