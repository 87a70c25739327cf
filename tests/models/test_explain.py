"""Where a model looks: every weight, on request, never None; and that gradients arrive."""

import pytest
import torch

from regard.models.ablate import patch_normaliser

SOURCE, TARGET = 11, 17
ONE_SEQUENCE = ("decoder-only", "pretrained-gpt2", "pretrained-llama")


# (layers, heads) of encoder and decoder, of the checkpoints that are made on the spot
PRETRAINED = {
    "gpt2": ((2, 3), (2, 3)),
    "llama": ((3, 6), (3, 6)),
    "marian": ((2, 7), (3, 7)),
    "t5": ((2, 3), (3, 3)),
}


def shapes(table) -> dict[str, tuple[int, ...]]:
    """What a model of this table has to show."""
    if table["kind"] == "pretrained":
        encoder, decoder = PRETRAINED[table["name"]]
        return {
            "cross": (5, *decoder, TARGET, SOURCE),
            "encoder": (5, *encoder, SOURCE, SOURCE),
            "decoder": (5, *decoder, TARGET, TARGET),
        }
    if table["kind"] == "recurrent":
        return {} if table["attention"] == "none" else {"cross": (5, 1, 1, TARGET, SOURCE)}
    if "attention" not in table:  # a state space, and nothing else
        return {}
    decoder, heads = table["decoder"]["layers"], table["attention"]["heads"]
    encoder = table.get("encoder", table["decoder"])["layers"]
    wanted = {
        "cross": (5, decoder, heads, TARGET, SOURCE),
        "encoder": (5, encoder, heads, SOURCE, SOURCE),
        "decoder": (5, decoder, heads, TARGET, TARGET),
    }
    return {"cross": wanted["cross"]} if "mixer" in table else wanted


def test_explain_shows_every_mechanism_the_model_has(named, tables, example):
    name, model = named
    weights = model.attention_weights(example.source, example.mask, example.target)
    found = {mechanism: tuple(w.shape) for mechanism, w in weights.items()}
    assert found == shapes(tables[name])


def test_weights_sum_to_one_or_zero_and_padding_and_future_get_exactly_zero(named, example):
    name, model = named
    weights = model.attention_weights(example.source, example.mask, example.target)
    future = {size: torch.ones(size, size).triu(1).bool() for size in (SOURCE, TARGET)}
    for mechanism, found in weights.items():
        assert found.isfinite().all()
        hidden = future[TARGET] if mechanism == "decoder" else ~example.mask[:, None, None, None]
        assert (found.masked_fill(~hidden, 0.0) == 0).all()
        if name.startswith(ONE_SEQUENCE) and mechanism == "encoder":
            real = example.mask[:, None, None, :, None]
            assert (found.masked_fill(~(future[SOURCE] & real), 0.0) == 0).all()
    if name.startswith(ONE_SEQUENCE) and weights:  # one look, over both sides
        weights["decoder"] = torch.cat([weights.pop("cross"), weights["decoder"]], dim=-1)
    for found in weights.values():
        if not name.endswith("-none") or "-at-" in name or "space" in name:
            wanted = 0.0 if name.endswith("-dummy") else 1.0  # the normaliser `none`: anything
            torch.testing.assert_close(found.sum(-1), torch.full_like(found[..., 0], wanted))


def test_a_row_alone_shows_the_same_weights(model, example):
    together = model.attention_weights(example.source, example.mask, example.target)
    for row, length in enumerate(example.lengths):
        alone = model.attention_weights(*example.alone(row))
        assert alone.keys() == together.keys()
        for mechanism, found in alone.items():
            query = length if mechanism == "encoder" else TARGET
            key = TARGET if mechanism == "decoder" else length
            cut = together[mechanism][row : row + 1, :, :, :query, :key]
            exact = 1e-9 if found.dtype == torch.float64 else 1e-5
            torch.testing.assert_close(found, cut, atol=exact, rtol=exact)


@pytest.mark.parametrize("kind", ["transformer", "decoder-only"])
def test_weights_differ_between_layers_and_heads(kind, make, example):
    weights = make(f"{kind}-scaled-dot").attention_weights(
        example.source, example.mask, example.target
    )
    for found in weights.values():
        flat = found[0].flatten(0, 1)  # [layers * heads query key]
        for i, one in enumerate(flat):
            assert all(not torch.allclose(one, other) for other in flat[:i])


def untouched(name: str, parameter: str) -> bool:
    """Where the mathematics says that no gradient arrives."""
    if name == "transformer-mean":  # equal weights: no query matters, nor what only makes queries
        return ".query." in parameter or "cross_norm" in parameter
    if name == "decoder-only-mean":
        return ".query." in parameter
    if name == "transformer-dummy":  # no attention at all: the source is never seen
        attends = (".mixer.", ".cross_attention")
        return any(part in parameter for part in attends) or parameter.startswith(
            ("encoder", "source_embedding")
        )
    if name == "decoder-only-dummy":
        return ".mixer." in parameter or parameter.startswith("source_embedding")
    return False


def test_gradients_are_finite_and_reach_every_parameter(named, example):
    name, model = named
    logits = model(example.source, example.mask, example.target)
    logits.log_softmax(-1)[..., 5].sum().backward()
    unreached = set()
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for parameter_name, parameter in learned.items():
        grad = parameter.grad
        if grad is None or not grad.abs().sum() > 0:
            unreached.add(parameter_name)
        assert grad is None or grad.isfinite().all(), parameter_name
    assert unreached == {parameter for parameter in learned if untouched(name, parameter)}


@pytest.mark.parametrize(
    "name",
    [
        "gru-1-both",
        "bottleneck-parallel",
        "transformer-at-rotary",
        "transformer-space",
        "decoder-only-at-rotary",
        "decoder-only-location",
        "decoder-only-space",
    ],
)
def test_no_gradient_reaches_the_padding(name, make, example):
    model = make(name)
    recurrent = name.startswith(("gru", "bottleneck"))
    embedding = model.encoder.embedding if recurrent else model.source_embedding
    model(example.source, example.mask, example.target).square().sum().backward()
    used = set(example.source[example.mask].tolist())
    touched = set(embedding.weight.grad.abs().sum(1).nonzero()[:, 0].tolist())
    assert touched == used


def test_attentions_are_the_layers_that_explain_shows(named, example):
    name, model = named
    weights = model.attention_weights(example.source, example.mask, example.target)
    layers = model.attention_layers()
    shown = {mechanism: found.shape[1] for mechanism, found in weights.items()}
    if name.startswith(ONE_SEQUENCE):  # one mechanism, shown in parts
        shown = {mechanism: count for mechanism, count in shown.items() if mechanism == "decoder"}
    assert {mechanism: len(found) for mechanism, found in layers.items()} == shown
    # Each is the one that made its weights: without it, these alone are zeros.
    for mechanism, found in layers.items():
        for number, layer in enumerate(found):
            with patch_normaliser(layer, lambda _: torch.zeros_like):
                without = model.attention_weights(example.source, example.mask, example.target)
            assert (without[mechanism][:, number] == 0).all()
            for other in set(range(len(found))) - {number}:
                still = (without[mechanism][:, other] != 0).any()
                assert still == (weights[mechanism][:, other] != 0).any()
