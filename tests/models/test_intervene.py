"""Interventions on attention, on every model: what each computes, and that it restores the model."""

import copy
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import pytest
import torch

from regard.attention import NORMALISERS, MultiHead, Position, SingleHead
from regard.attention.scores import Mean
from regard.interventions import MECHANISMS, Ablate, Force, Mask, SetWeights
from regard.models.ensemble import Ensemble, EnsembleState
from regard.models.intervene import (
    NO_KEY,
    count_heads,
    intervene,
    mask_keys,
    patch_normalisers,
    uniform_attention,
)
from regard.search import beam, greedy
from regard.search.forced import force
from regard.text.batch import EncodedPairs

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


def ablate_head(model, mechanism, layer, head):
    """In a decoder-only model, for source and target tokens."""
    mechanisms = MECHANISMS if model.is_decoder_only else (mechanism,)
    return intervene(model, [Ablate(mechanism=m, layer=layer, head=head) for m in mechanisms])


def test_ablating_a_head(attentive_model, example):
    name, model = attentive_model
    intact_logits, intact = logits(model, example), attention_weights(model, example)
    for mechanism, [layer, *_] in model.attention_layers().items():
        heads = intact[mechanism].shape[2]
        with zero_context(layer, heads - 1, heads):
            expected = logits(model, example)
        with ablate_head(model, mechanism, 0, heads - 1):
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
        for layer, head in product(range(len(layers)), range(heads)):
            with zero_context(layers[layer], head, heads):
                expected = logits(model, example)
            with ablate_head(model, mechanism, layer, head):
                assert_close(logits(model, example), expected)


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


# --- interventions --------------------------------------------------------------------------------


def interventions_on(model):
    """One of each kind on every mechanism that the model has, at several places."""
    return [
        one
        for mechanism, (layers, heads) in count_heads(model).items()
        for one in (
            Mask(mechanism=mechanism, step=2, keys=(1, 4)),
            Mask(mechanism=mechanism, head=0, keys=(2,)),
            SetWeights(mechanism=mechanism, layer=layers - 1, step=3, weights={0: 0.25, 2: 0.5}),
            Ablate(mechanism=mechanism, layer=0, head=heads - 1, step=1),
        )
    ]


def test_no_intervention_changes_nothing(attentive_model, example):
    _, model = attentive_model
    normalisers = [layer.normalise for layer in all_layers(model)]
    before = logits(model, example)
    with intervene(model, []), intervene(model, [Force(step=0, token="x")]):
        # The same functions: so the fused kernel is used, where it was.
        assert [layer.normalise for layer in all_layers(model)] == normalisers
        assert torch.equal(logits(model, example), before)


def test_setting_the_weights_that_there_are_changes_nothing(attentive_model, example):
    name, model = attentive_model
    source, mask, target = example.unpadded(4)
    before, weights = model(source, mask, target), model.attention_weights(source, mask, target)
    if any(bool((w < 0).any()) for w in weights.values()):
        assert name.endswith("-none")  # without normalisation, and only there
        return
    for mechanism, by_layer in weights.items():
        layers, heads, queries, _ = by_layer.shape[1:]
        rows = [
            SetWeights(
                mechanism=mechanism,
                layer=layer,
                head=head,
                step=step,
                weights=dict(enumerate(by_layer[0, layer, head, step].tolist())),
            )
            for layer, head, step in product(range(layers), range(heads), range(queries))
        ]
        with intervene(model, rows):
            assert_close(model(source, mask, target), before)
            assert_close(model.attention_weights(source, mask, target)[mechanism], by_layer)


def test_weights_are_those_that_were_set(attentive_model, load_model, example):
    name, model = attentive_model
    other = load_model(name.replace("-dummy", "-mean"))  # which attends to all that it may
    for mechanism, (layers, heads) in count_heads(model).items():
        place = {"mechanism": mechanism, "layer": layers - 1, "head": heads - 1, "step": 2}
        one = SetWeights(**place, weights={1: 0.25, 2: 0.5, 6: 9})
        with intervene(model, [one, Mask(**place, keys=(2,))]):  # of scores, which no longer matter
            row = attention_weights(model, example)[mechanism][0, -1, -1, 2]
        expected = torch.zeros_like(row)
        expected[1], expected[2], expected[6] = 0.25, 0.5, 9
        visible = attention_mask(other, example, mechanism)[0, -1, -1, 2]
        assert_close(row, expected * visible.to(row.dtype))
        assert row[2] == 0.5 or "window" in name
        assert mechanism != "decoder" or row[6] == 0  # a later token


def test_the_last_intervention_counts(make, example):
    model = make("transformer-scaled-dot")
    one = SetWeights(layer=0, head=1, weights={0: 0.5})
    with intervene(model, [Ablate(layer=0), one]):
        weights = attention_weights(model, example)["cross"][:, 0]
    assert (weights[:, 1, :, 0] == 0.5).all()
    assert (weights[:, [0, 2]] == 0).all()
    with intervene(model, [one, Ablate(layer=0)]):
        assert (attention_weights(model, example)["cross"][:, 0] == 0).all()


def attention_mask(model, example, mechanism):
    """1 where a query may attend to a key: softmax never gives exactly 0."""
    with patch_normalisers(all_layers(model), lambda _: NORMALISERS["softmax"]):
        return (attention_weights(model, example)[mechanism] > 0).to(torch.float64)


def test_masked_keys_have_no_weight_and_the_others_their_share(attentive_model, example):
    name, model = attentive_model
    intact = {m: w[..., 2, :] for m, w in attention_weights(model, example).items()}
    softmaxed = all(layer.normalise is NORMALISERS["softmax"] for layer in all_layers(model))
    for mechanism, (layers, _) in count_heads(model).items():
        # At one step only: the context of a step enters the next, in some forms.
        one = Mask(mechanism=mechanism, layer=layers - 1, step=2, keys=(1,))
        with intervene(model, [one]):
            weights = {m: w[..., 2, :] for m, w in attention_weights(model, example).items()}
        assert (weights[mechanism][:, -1, :, 1] == 0).all()
        assert_close(weights[mechanism][:, :-1], intact[mechanism][:, :-1])
        if softmaxed and not name.endswith("-dummy"):
            changed, before = weights[mechanism][:, -1], intact[mechanism][:, -1].clone()
            before[..., 1] = 0
            if model.is_decoder_only and mechanism != "encoder":
                # One softmax over source and target.
                other = "decoder" if mechanism == "cross" else "cross"
                changed = torch.cat([changed, weights[other][:, -1]], dim=-1)
                before = torch.cat([before, intact[other][:, -1]], dim=-1)
            total = before.sum(-1, keepdim=True)
            kept = total > 1e-6
            assert_close(changed, torch.where(kept, before / total.where(kept, 1.0), 0.0))


def test_an_intervention_at_a_step_changes_no_output_before(attentive_model, example):
    name, model = attentive_model
    before = logits(model, example)
    for mechanism in count_heads(model).keys() - {"encoder"}:
        kinds = (
            Mask(mechanism=mechanism, step=3, keys=(0,)),
            SetWeights(mechanism=mechanism, step=3, weights={0: 2.0}),
            Ablate(mechanism=mechanism, step=3),
        )
        for one in kinds:
            with intervene(model, [one]):
                after = logits(model, example)
            assert_close(after[:, :3], before[:, :3])
            # A masked key may have had no weight before.
            had_none = name.endswith(("-argmax", "-sparsemax", "-dummy")) or "window" in name
            if not had_none or (isinstance(one, SetWeights) and "window" not in name):
                assert not torch.allclose(after[0, 3], before[0, 3]), one
    if "encoder" in count_heads(model):
        with intervene(model, [Ablate(mechanism="encoder")]):
            assert name.endswith("-dummy") or not torch.allclose(logits(model, example), before)


def test_steps_equal_one_pass(attentive_model, example):
    _, model = attentive_model
    with intervene(model, interventions_on(model)):
        expected = logits(model, example)
        state = model.init_state(model.encode(example.source, example.mask))
        for t, tokens in enumerate(example.target.T):
            step_logits, state = model.step(tokens, state)
            assert_close(step_logits, expected[:, t])
    assert not torch.allclose(logits(model, example), expected)


def test_padding_and_batch_do_not_matter(attentive_model, example):
    _, model = attentive_model
    with intervene(model, interventions_on(model)):
        batched, weights = logits(model, example), attention_weights(model, example)
        for row in (0, 2, 3):  # of 11, 7 and 1 tokens
            source, mask, target = example.unpadded(row)
            assert_close(batched[row : row + 1], model(source, mask, target))
            for name, alone in model.attention_weights(source, mask, target).items():
                queries, keys = alone.shape[-2:]
                cropped = weights[name][row : row + 1, ..., :queries, :keys]
                assert_close(cropped, alone)


def test_a_mask_equals_a_memory_without_the_token(attentive_model, example):
    name, model = attentive_model
    if name.startswith("decoder-only") and name.endswith(("-location", "-dynamic-ntk")):
        return  # as in `test_masked_keys`
    memory = model.encode(example.source, example.mask)
    keys = torch.full_like(example.target, 2)
    with intervene(model, [Mask(keys=(2,))]):
        masked = logits(model, example)
    assert_close(masked, run_masked_steps(model, memory, example.target, keys))


def search_all(model, example, width):
    memory = model.encode(example.source, example.mask)
    limits = torch.full((len(example.lengths),), 6)
    if width == 1:
        return [[output] for output in greedy(model, memory, limits)]
    return beam(model, memory, limits, width, nbest=width)


def test_beam_search_scores_are_those_of_teacher_forcing(attentive_model, example):
    """Hypotheses share a cache, whose keys are not in the order of any of them."""
    _, model = attentive_model
    with intervene(model, interventions_on(model)):
        one = beam(model, model.encode(example.source, example.mask), torch.full((5,), 6), 1)
        best, several = search_all(model, example, 1), search_all(model, example, 3)
        assert [row[0].ids for row in one] == [row[0].ids for row in best]
        found = [
            (example.unpadded(row)[0][0].tolist(), hypothesis)
            for search in (best, several)
            for row, nbest in enumerate(search)
            for hypothesis in nbest
        ]
        outputs = [hypothesis for _, hypothesis in found]
        pairs = EncodedPairs([source for source, _ in found], [h.ids[:-1] for h in outputs])
        batch = pairs.batch(range(len(found)))
        batch = replace(batch, labels=relabel(batch.labels, outputs))
        scores = force(model, batch)[0].sum(1)
        assert [h.score for h in outputs] == pytest.approx(scores.tolist(), abs=1e-4)


def relabel(labels, outputs):
    """The last token of an output is not EOS if it was cut."""
    labels = labels.clone()
    for row, hypothesis in enumerate(outputs):
        labels[row, : len(hypothesis.ids)] = torch.tensor(hypothesis.ids)
    return labels


# --- masked keys ----------------------------------------------------------------------------------


def init_state(model, memory):
    """With all keys of the source, also where a window would evict some."""
    if isinstance(model, Ensemble):
        pairs = zip(model.members, memory.members, strict=True)
        return EnsembleState(tuple(init_state(*pair) for pair in pairs))
    return getattr(model, "_init_whole_state", model.init_state)(memory)


def source_masks_of(state):
    """The part of a decoder state that says which source tokens may be attended to: views, by member."""
    if isinstance(state, EnsembleState):
        return [mask for member in state.members for mask in source_masks_of(member)]
    names = ("source_mask", "mask", "cache_mask")
    masks = [getattr(state, name) for name in names if hasattr(state, name)]
    return [(mask[:, 0] if mask.dim() == 3 else mask)[:, :11] for mask in masks[:1]]


def run_masked_steps(model, memory, target, keys):
    """The reference: before each step, the key is masked in the decoder state."""
    state, all_logits = init_state(model, memory).copy(), []
    for tokens, key in zip(target.T, keys.T, strict=True):
        masks = source_masks_of(state)
        before = [mask.clone() for mask in masks]
        for mask in masks:
            mask &= key[:, None] != torch.arange(11)
        step_logits, state = model.step(tokens, state)
        for mask, old in zip(source_masks_of(state), before, strict=True):
            mask.copy_(old)
        all_logits.append(step_logits)
    return torch.stack(all_logits, dim=1)


def random_keys(example):
    """A key for each target token, never the last of a source."""
    keys = torch.randint(0, 11, example.target.shape, generator=torch.Generator().manual_seed(4))
    return keys % torch.tensor(example.lengths)[:, None] - 1


def test_masked_keys(attentive_model, example):
    name, model = attentive_model
    keys = random_keys(example)
    assert (keys == NO_KEY).any()
    memory = model.encode(example.source, example.mask)
    with mask_keys(model, keys):
        ablated = model.project(model.features(memory, example.target))
        again = model.project(model.features(memory, example.target))
        whole = logits(model, example)  # the source is encoded as without the mask
    assert torch.equal(ablated, again)  # a second pass starts again at the first target token
    assert_close(ablated, whole)
    with mask_keys(model, keys):
        assert_close(run_steps(model, example), ablated[:, :STEPS])
    if name.startswith("decoder-only") and name.endswith(("-location", "-dynamic-ntk")):
        return  # a key masked in the state counts neither in the index of those after it nor in the length
    expected = run_masked_steps(model, memory, example.target, keys)
    assert_close(ablated, expected)
    if not name.endswith("-dummy"):
        assert not torch.allclose(ablated, logits(model, example))


@pytest.mark.parametrize("name", [*KINDS, "transformer-grouped", "transformer-latent-narrow"])
def test_masked_keys_have_no_weight(name, make, example):
    model, keys = make(name), random_keys(example)
    with mask_keys(model, keys):
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
    with uniform_attention(all_layers(kind)), intervene(kind, [Ablate(layer=0, head=0)]):
        assert not torch.equal(logits(kind, example), before)
    with (
        pytest.raises(KeyboardInterrupt),
        intervene(kind, [Mask(keys=(0,))]),
        mask_keys(kind, keys),
        uniform_attention(all_layers(kind)),
    ):
        raise KeyboardInterrupt
    assert all(a.normalise is b for a, b in zip(all_layers(kind), normalisers, strict=True))
    assert all(torch.equal(value, state[name]) for name, value in kind.state_dict().items())
    assert torch.equal(logits(kind, example), before)
    assert not kind.training
