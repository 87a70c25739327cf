"""Attention taken away for a moment: what each ablation computes, and that it leaves no trace."""

import copy

import pytest
import torch

from regard.attention import NORMALISERS, MultiHead, Position
from regard.attention.scores import Mean
from regard.models.ablate import NOTHING, masked, silenced, uniform

# Each with a different way to the same attention: at once, word by word, biased, not fused, no softmax.
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


def read(model, example):
    with torch.no_grad():
        return model(example.source, example.mask, example.target)


def every(model):
    return [layer for layers in model.attention_layers().values() for layer in layers]


@pytest.mark.parametrize("mechanism", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_silenced_head_is_a_head_without_its_columns(name, mechanism, make, example):
    model = make(name)
    for layer in range(2):
        for head in range(3):
            other = copy.deepcopy(model)
            with torch.no_grad():  # heads stand side by side, 4 wide, before the output map
                columns = slice(4 * head, 4 * (head + 1))
                other.attention_layers()[mechanism][layer].output.weight[:, columns] = 0
            with silenced(model.attention_layers()[mechanism][layer], head):
                found = read(model, example)
            torch.testing.assert_close(found, read(other, example))
            assert not torch.allclose(found, read(model, example))


@pytest.mark.parametrize("name", [name for name in KINDS if name not in TRANSFORMERS])
def test_a_silenced_single_head_gives_no_context(name, make, example):
    """What the score `dummy` gives: zeros where the context would be."""
    model = make(name)
    with silenced(model.decoder.attention, 0):
        weights = model.attention_weights(example.source, example.mask, example.target)["cross"]
        found = read(model, example)
    assert (weights == 0).all()
    # The context, wherever it goes, is now nothing: change the words' values, and nothing changes.
    memory = model.encode(example.source, example.mask)
    memory.states = memory.states + 1.0
    with silenced(model.decoder.attention, 0), torch.no_grad():
        torch.testing.assert_close(model.project(model.features(memory, example.target)), found)


def test_heads_in_groups_count_in_their_order(make):
    """A layer may lay its heads out in several axes: [batch group head query key]."""
    layer = make("transformer-scaled-dot").attention_layers()["cross"][0]
    with silenced(layer, 4):
        weights = layer.normalise(torch.randn(7, 2, 3, 5, 11))
    silent = (weights == 0).all(-1).all(-1).all(0)
    assert silent.tolist() == [[False, False, False], [False, True, False]]


def test_uniform_weights_are_those_of_the_score_mean(kind, example):
    other = copy.deepcopy(kind)
    for layer in every(other):
        layer.score, layer.normalise = Mean(1, 1), NORMALISERS["softmax"]
        if isinstance(layer, MultiHead):
            layer.position = Position(13, 3, 4)
    with uniform(every(kind)):
        weights = kind.attention_weights(example.source, example.mask, example.target)
        found = read(kind, example)
    wanted = other.attention_weights(example.source, example.mask, example.target)
    for mechanism, seen in weights.items():
        torch.testing.assert_close(seen, wanted[mechanism])
    torch.testing.assert_close(found, read(other, example))


def test_uniform_is_over_what_may_be_seen(kind, example):
    with uniform(every(kind)):
        weights = kind.attention_weights(example.source, example.mask, example.target)
    for row, length in enumerate(example.lengths):
        level = torch.full((length,), 1 / length, dtype=torch.float64)
        torch.testing.assert_close(weights["cross"][row, 0, 0, 3, :length], level)
        assert (weights["cross"][row, ..., length:] == 0).all()
    if "decoder" in weights:
        past = torch.ones(17, 17).double().tril()
        torch.testing.assert_close(weights["decoder"][0, 0, 0], past / past.sum(-1, keepdim=True))


def test_a_masked_word_is_a_key_that_is_not_there(kind, example):
    """The same word hidden from every target token equals a memory without it."""
    model, word = kind, 2
    words = torch.full_like(example.target, word)
    with masked(model.attention_layers()["cross"], words):
        found = read(model, example)
    for row, length in enumerate(example.lengths):
        source, mask, target = example.unpadded(row)
        with torch.no_grad():
            memory = model.encode(source, mask)
            left = [place for place in range(length) if place != word]
            memory.states, memory.mask = memory.states[:, left], memory.mask[:, left]
            alone = model.project(model.features(memory, target))
        torch.testing.assert_close(found[row : row + 1], alone)


def test_each_target_token_has_a_word_of_its_own(kind, example):
    random = torch.Generator().manual_seed(4)
    words = torch.randint(NOTHING, 5, example.target.shape, generator=random)
    with masked(kind.attention_layers()["cross"], words):
        seen = kind.attention_weights(example.source, example.mask, example.target)["cross"]
        again = kind.attention_weights(example.source, example.mask, example.target)["cross"]
    assert torch.equal(seen, again)  # a reading that is over leaves the next one to start anew
    hidden = (words[..., None] == torch.arange(11))[:, None, None]
    assert (seen.masked_fill(~hidden, 0.0) == 0).all()
    if every(kind)[0].normalise is NORMALISERS["softmax"]:  # which gives all that is left a weight
        left = ~hidden & example.mask[:, None, None, None]
        assert torch.equal(seen > 0, left.expand_as(seen))


def test_masking_nothing_changes_nothing(kind, example):
    words = torch.full_like(example.target, NOTHING)
    with masked(kind.attention_layers()["cross"], words):
        found = read(kind, example)
    torch.testing.assert_close(found, read(kind, example))


def test_a_model_comes_back_bit_for_bit(kind, example):
    before = read(kind, example)
    state = {name: value.clone() for name, value in kind.state_dict().items()}
    kept = [layer.normalise for layer in every(kind)]
    words = torch.zeros_like(example.target)
    with uniform(every(kind)), silenced(every(kind)[0], 0):
        assert not torch.equal(read(kind, example), before)
    with (
        pytest.raises(KeyboardInterrupt),
        masked(kind.attention_layers()["cross"], words),
        uniform(every(kind)),
    ):
        raise KeyboardInterrupt
    assert all(a.normalise is b for a, b in zip(every(kind), kept, strict=True))
    assert all(torch.equal(value, state[name]) for name, value in kind.state_dict().items())
    assert torch.equal(read(kind, example), before)
    assert not kind.training


@pytest.mark.parametrize("change", ["silenced", "uniform"])
def test_stepping_equals_reading_at_once(kind, example, change):
    layers = every(kind)
    ablation = silenced(layers[-1], 0) if change == "silenced" else uniform(layers)
    with ablation, torch.no_grad():
        whole = kind(example.source, example.mask, example.target)
        state = kind.init_state(kind.encode(example.source, example.mask))
        for place in range(example.target.shape[1]):
            logits, state = kind.step(example.target[:, place], state)
            torch.testing.assert_close(logits, whole[:, place])
