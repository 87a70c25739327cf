"""Decoder-only: one sequence, read in two parts, is the same as read in one."""

import pytest
import torch

from regard.attention import POSITIONS
from regard.models import weights
from regard.models.kv_cache import KVCache
from regard.models.mixers import AttentionInputs
from regard.search import beam, greedy

KINDS = [*(f"at-{kind}" for kind in POSITIONS), "location", "after", "llama", "space", "untied"]
TIGHT = {"atol": 1e-9, "rtol": 1e-9}


def whole(model, source, target):
    """Logits after each target token, of one sentence, all of it read at once without any cache."""
    both = torch.cat([source, target], dim=1)
    at = torch.arange(both.shape[1])[None]
    x = model.source_embedding(source), model.target_embedding(target)
    x = model.position.embed(torch.cat(x, dim=1) * model.scale, at)
    reading = AttentionInputs(at, at, at[:, None] <= at[..., None])
    for block in model.decoder:
        x, _ = block(x, reading, block.mixer.init_cache(1), need_weights=False)
    return model.project(model.norm(x)[:, source.shape[1] :])


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_two_parts_are_one_sequence(kind, make, example):
    model = make(f"decoder-only-{kind}")
    together = model(example.source, example.mask, example.target)
    for row in range(len(example.lengths)):
        source, _, target = example.alone(row)
        found = whole(model, source, target)
        torch.testing.assert_close(together[row : row + 1], found, **TIGHT)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_through_the_past_are_those_of_one_sequence(kind, make, example):
    model = make(f"decoder-only-{kind}")
    source, mask, target = example.alone(2)
    losses = model(source, mask, target), whole(model, source, target)
    found, wanted = (
        torch.autograd.grad(logits.log_softmax(-1)[..., 5].sum(), list(model.parameters()))
        for logits in losses
    )
    names = [name for name, _ in model.named_parameters()]
    for name, one, other in zip(names, found, wanted, strict=True):
        torch.testing.assert_close(one, other, **TIGHT, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("grad", [False, True])
def test_a_past_that_a_gradient_goes_through_is_never_written_over(grad):
    old, new = torch.randn(2, 3, 5, 7, requires_grad=grad), torch.randn(2, 3, 1, 7)
    past = KVCache()
    past.add(old, old)
    room = past.add(new, new)[0]
    again = past.add(new, new)[0]
    assert (again.data_ptr() == room.data_ptr()) != grad
    assert torch.equal(again, torch.cat([old, new, new], dim=2))


def test_the_vocabularies_may_be_joint_or_apart(make):
    table = {"kind": "decoder-only", "d_model": 12}
    apart, joint = make(table), make(table, joint=True)
    assert apart.source_embedding.weight.shape == (23, 12)
    assert joint.source_embedding is joint.target_embedding
    assert apart.parameter_count - joint.parameter_count == 23 * 12
    assert len(weights.state_tensors(joint)) == len(weights.state_tensors(apart)) - 1


@torch.no_grad()
def test_a_joint_vocabulary_pads_and_steps_alike(make, example):
    model = make("decoder-only-llama", joint=True)
    source = example.source.clamp(max=18)
    state = model.init_state(model.encode(source, example.mask))
    wanted = model(source, example.mask, example.target)
    for t in range(5):
        logits, state = model.step(example.target[:, t], state)
        torch.testing.assert_close(logits, wanted[:, t], **TIGHT)


@pytest.mark.parametrize("kind", ["llama", "space", "location"])
def test_a_search_finds_the_same_in_a_padded_batch_and_alone(kind, make, example):
    model = make(f"decoder-only-{kind}")
    limits = torch.full((len(example.lengths),), 7)
    memory = model.encode(example.source, example.mask)
    together = beam(model, memory, limits, 3, 3)
    assert [best[0].ids for best in beam(model, memory, limits, 1)] == [
        found.ids for found in greedy(model, memory, limits)
    ]
    for row in range(len(example.lengths)):
        source, mask, _ = example.alone(row)
        alone = beam(model, model.encode(source, mask), limits[:1], 3, 3)[0]
        assert [found.ids for found in alone] == [found.ids for found in together[row]]


def test_the_source_is_held_once_however_many_beginnings(make, example):
    model = make("decoder-only-llama")
    with torch.no_grad():
        state = model.init_state(model.encode(example.source, example.mask)).expand(7)
        _, state = model.step(torch.ones(35, dtype=torch.int64), state)
    assert [past.length for past in state.caches] == [11 + 7] * 2
    assert state.caches[0].keys.shape[0] == 5
