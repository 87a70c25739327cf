"""Decoder-only: reading source, then target from the cache, equals reading both as one sequence."""

import pytest
import torch

from regard.attention import POSITIONS
from regard.models import weights
from regard.models.kv_cache import KVCache
from regard.models.mixers import AttentionInputs
from regard.search import beam, greedy

KINDS = [
    *(f"position-{kind}" for kind in POSITIONS),
    "location",
    "post-norm",
    "llama",
    "state-space",
    "untied",
    "prefix",
    "prefix-relative",
    "prefix-dynamic-ntk",
    "prefix-window",
    "prefix-latent",
    "prefix-location",
]
TOLERANCE = {"atol": 1e-9, "rtol": 1e-9}


def forward_at_once(model, source, target):
    """Logits after each target token of one sentence, read as one sequence without a cache."""
    position_ids = torch.arange(source.shape[1] + target.shape[1])[None]
    x = model.source_embedding(source), model.target_embedding(target)
    x = model.position.embed(torch.cat(x, dim=1) * model.scale, position_ids)
    visible = position_ids[:, None] <= position_ids[..., None]
    if model.is_prefix_lm:
        visible[:, : source.shape[1], : source.shape[1]] = True
    inputs = AttentionInputs(position_ids, position_ids, visible)
    for block in model.decoder:
        x, _ = block(x, inputs, block.mixer.init_cache(1), need_weights=False)
    return model.project(model.norm(x)[:, source.shape[1] :])


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_source_then_target_equals_one_sequence(kind, make, example):
    model = make(f"decoder-only-{kind}")
    logits = model(example.source, example.mask, example.target)
    for row in range(len(example.lengths)):
        source, _, target = example.unpadded(row)
        expected = forward_at_once(model, source, target)
        torch.testing.assert_close(logits[row : row + 1], expected, **TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("prefix")])
def test_a_prefix_lm_reads_its_source_in_both_directions(kind, make, tables, example):
    """A later source token changes the state of an earlier one, which a causal model's cannot know."""
    table = tables[f"decoder-only-{kind}"]
    source, mask, _ = example.unpadded(2)
    changed = source.clone()
    changed[:, -1] = source[:, -1] % 22 + 1
    for attention_mask in ("causal", "prefix"):
        model = make(table | {"attention_mask": attention_mask})
        before, after = (model.encode(tokens, mask).states for tokens in (source, changed))
        near, far = (after - before)[0, [-2, 0]].abs().amax(-1)
        assert (near > 1e-6) == (attention_mask == "prefix")
        # Two layers with a window of three see at most four tokens ahead.
        assert (far > 1e-6) == (attention_mask == "prefix" and kind != "prefix-window")


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 2])
def test_a_prefix_matters_from_the_second_layer(layers, make, tables, example):
    table = tables["decoder-only-prefix"] | {"decoder": {"layers": layers}}
    prefix, causal = (
        make(table | {"attention_mask": mask})(example.source, example.mask, example.target)
        for mask in ("prefix", "causal")
    )
    assert torch.allclose(prefix[0], causal[0]) == (layers == 1)
    torch.testing.assert_close(prefix[3], causal[3], **TOLERANCE)  # a source of one token


def test_a_prefix_lm_has_the_parameters_of_a_causal_model(make, tables):
    table = tables["decoder-only-prefix"]
    prefix, causal = make(table), make(table | {"attention_mask": "causal"})
    parameters = zip(prefix.named_parameters(), causal.named_parameters(), strict=True)
    assert all(a == b and torch.equal(p, q) for (a, p), (b, q) in parameters)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_through_the_cache_equal_those_of_one_sequence(kind, make, example):
    model = make(f"decoder-only-{kind}")
    source, mask, target = example.unpadded(2)
    grads, expected_grads = (
        torch.autograd.grad(logits.log_softmax(-1)[..., 5].sum(), list(model.parameters()))
        for logits in (model(source, mask, target), forward_at_once(model, source, target))
    )
    names = [name for name, _ in model.named_parameters()]
    for name, grad, expected in zip(names, grads, expected_grads, strict=True):
        torch.testing.assert_close(
            grad, expected, **TOLERANCE, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("grad", [False, True])
def test_kv_cache_is_not_written_in_place_when_it_requires_grad(grad):
    old, new = torch.randn(2, 3, 5, 7, requires_grad=grad), torch.randn(2, 3, 1, 7)
    cache = KVCache()
    cache.append(old, old)
    first = cache.append(new, new)[0]
    second = cache.append(new, new)[0]
    assert (second.data_ptr() == first.data_ptr()) != grad
    assert torch.equal(second, torch.cat([old, new, new], dim=2))


def test_vocabularies_may_be_joint_or_separate(make):
    table = {"kind": "decoder-only", "d_model": 12}
    separate, joint = make(table), make(table, joint=True)
    assert separate.source_embedding.weight.shape == (23, 12)
    assert joint.source_embedding is joint.target_embedding
    assert separate.parameter_count - joint.parameter_count == 23 * 12
    assert len(weights.state_tensors(joint)) == len(weights.state_tensors(separate)) - 1


@torch.no_grad()
def test_stepping_equals_the_full_forward_pass_with_a_joint_vocabulary(make, example):
    model = make("decoder-only-llama", joint=True)
    source = example.source.clamp(max=18)
    state = model.init_state(model.encode(source, example.mask))
    expected = model(source, example.mask, example.target)
    for t in range(5):
        logits, state = model.step(example.target[:, t], state)
        torch.testing.assert_close(logits, expected[:, t], **TOLERANCE)


@pytest.mark.parametrize("kind", ["llama", "state-space", "location", "prefix-dynamic-ntk"])
def test_search_does_not_depend_on_padding(kind, make, example):
    model = make(f"decoder-only-{kind}")
    max_lengths = torch.full((len(example.lengths),), 7)
    memory = model.encode(example.source, example.mask)
    batched = beam(model, memory, max_lengths, 3, 3)
    assert [nbest[0].ids for nbest in beam(model, memory, max_lengths, 1)] == [
        hypothesis.ids for hypothesis in greedy(model, memory, max_lengths)
    ]
    for row in range(len(example.lengths)):
        source, mask, _ = example.unpadded(row)
        single = beam(model, model.encode(source, mask), max_lengths[:1], 3, 3)[0]
        assert [h.ids for h in single] == [h.ids for h in batched[row]]


def test_hypotheses_share_the_source_cache(make, example):
    model = make("decoder-only-llama")
    with torch.no_grad():
        state = model.init_state(model.encode(example.source, example.mask)).expand(7)
        _, state = model.step(torch.ones(35, dtype=torch.int64), state)
    assert [cache.length for cache in state.caches] == [11 + 7] * 2
    assert state.caches[0].keys.shape[0] == 5
