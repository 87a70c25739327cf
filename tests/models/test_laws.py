"""What every model promises, whatever it is made of."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.config import Config
from regard.models import build

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    tolerance = TOLERANCE[wanted.dtype]
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def stepped(model, state, target):
    """Logits after each target token, one step at a time, and the last state."""
    logits = []
    for tokens in target.T:
        found, state = model.step(tokens, state)
        logits.append(found)
    return torch.stack(logits, dim=1) if logits else None, state


def test_padding_changes_nothing(model, example):
    memory = model.encode(example.source, example.mask)
    together = model(example.source, example.mask, example.target)
    for row, length in enumerate(example.lengths):
        source, mask, target = example.alone(row)
        close(memory.states[row : row + 1, :length], model.encode(source, mask).states)
        close(together[row : row + 1], model(source, mask, target))


def test_what_stands_in_the_padding_does_not_matter(model, example):
    garbage = torch.where(example.mask, example.source, 22)
    wider = torch.nn.functional.pad(garbage, (0, 3), value=21)
    mask = torch.nn.functional.pad(example.mask, (0, 3), value=False)
    wanted = model(example.source, example.mask, example.target)
    close(model(wider, mask, example.target), wanted)


def test_neither_batch_size_nor_order_changes_anything(model, example):
    whole = model(example.source, example.mask, example.target)
    rows = torch.tensor([4, 0, 2, 1, 3, 0])
    close(model(example.source[rows], example.mask[rows], example.target[rows]), whole[rows])
    for row in range(len(example.lengths)):
        one = slice(row, row + 1)
        close(model(example.source[one], example.mask[one], example.target[one]), whole[one])


def test_batch_size_changes_little_in_single_precision(family, example):
    model = family.float()
    whole = model(example.source, example.mask, example.target)
    for row in range(len(example.lengths)):
        alone = model(*example.alone(row))
        torch.testing.assert_close(whole[row : row + 1], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("t", [0, 1, 9, 16])
def test_the_past_does_not_see_the_future(model, example, t):
    before = model(example.source, example.mask, example.target)
    changed = example.target.clone()
    changed[:, t] = changed[:, t] % 18 + 1
    after = model(example.source, example.mask, changed)
    close(after[:, :t], before[:, :t])
    assert (after[:, t] - before[:, t]).abs().amax(-1).min() > 1e-6


def test_the_source_matters(named, model, example):
    before = model(example.source, example.mask, example.target)
    after = model(example.source % 22 + 1, example.mask, example.target)
    if named[0] in ("transformer-dummy", "decoder-only-dummy"):  # nothing else joins the two halves
        close(after, before)
    else:
        assert (after - before).abs().amax((1, 2)).min() > 1e-6


def test_stepping_is_reading_at_once(model, example):
    memory = model.encode(example.source, example.mask)
    logits, _ = stepped(model, model.init_state(memory), example.target)
    close(logits, model(example.source, example.mask, example.target))


@pytest.mark.parametrize("t", [0, 1, 2, 9])
def test_select_follows_rows(model, example, t):
    state = model.init_state(model.encode(example.source, example.mask))
    _, state = stepped(model, state, example.target[:, :t])
    rows = torch.tensor([3, 0, 0, 4, 2, 3, 1])  # permuted, some twice
    state = state.select(rows)
    random = torch.Generator().manual_seed(3)
    tail = torch.randint(1, 19, (len(rows), 5), generator=random)  # twins go different ways
    first, state = stepped(model, state, tail[:, :3])
    fewer = torch.tensor([5, 1, 2])
    second, _ = stepped(model, state.select(fewer), tail[fewer, 3:])
    target = torch.cat([example.target[rows, :t], tail], dim=1)
    wanted = model(example.source[rows], example.mask[rows], target)[:, t:]
    close(first, wanted[:, :3])
    close(second, wanted[fewer, 3:])


@pytest.mark.parametrize("t", [0, 2])
def test_several_beginnings_of_a_sentence_go_their_own_ways(model, example, t):
    beam, random = 3, torch.Generator().manual_seed(3)
    batch = len(example.lengths)
    memory = model.encode(example.source, example.mask)
    _, state = stepped(model, model.init_state(memory), example.target[:, :t])
    state = state.expand(beam)
    said = example.target[:, None, :t].expand(-1, beam, -1)
    sentences = torch.arange(batch)
    for place in range(5):
        tokens = torch.randint(1, 19, (len(sentences), beam), generator=random)
        logits, state = model.step(tokens.flatten(), state)
        said = torch.cat([said, tokens[..., None]], dim=-1)
        rows = sentences.repeat_interleave(beam)
        read = model(example.source[rows], example.mask[rows], said.flatten(0, 1))
        close(logits, read[:, -1])
        slots = torch.randint(
            0, beam, tokens.shape, generator=random
        )  # some twice, some not at all
        state = state.reorder(slots)
        said = said.gather(1, slots[..., None].expand_as(said))
        if place == 2:
            kept = torch.tensor([4, 0, 2])  # a sentence takes all its beginnings along
            state, said, sentences = state.select(kept), said[kept], sentences[kept]
        if place == 3:
            state = state.copy()


def test_spread_by_one_and_reorder_in_place_change_nothing(model, example):
    memory = model.encode(example.source, example.mask)
    wanted, _ = stepped(model, model.init_state(memory), example.target[:, :5])
    _, state = stepped(model, model.init_state(memory), example.target[:, :2])
    same = torch.zeros(len(example.lengths), 1, dtype=torch.int64)
    state = state.reorder(same).expand(1).reorder(same)
    close(stepped(model, state, example.target[:, 2:5])[0], wanted[:, 2:])


@pytest.mark.parametrize("t", [0, 1, 3])
@pytest.mark.parametrize("first", ["original", "copy"])
def test_copy_branches(model, example, t, first):
    state = model.init_state(model.encode(example.source, example.mask))
    _, state = stepped(model, state, example.target[:, :t])
    branches = {"original": state, "copy": state.copy()}
    ways = {"original": example.target[:, t : t + 4], "copy": example.target[:, t + 4 : t + 8]}
    order = [first, *(name for name in branches if name != first)]
    found = {name: [] for name in order}
    for place in range(4):  # side by side, so that one would step on the other's toes
        for name in order:
            logits, branches[name] = model.step(ways[name][:, place], branches[name])
            found[name].append(logits)
    for name in order:
        target = torch.cat([example.target[:, :t], ways[name]], dim=1)
        wanted = model(example.source, example.mask, target)[:, t:]
        close(torch.stack(found[name], dim=1), wanted)


def test_a_copy_of_a_selection_and_a_selection_of_a_copy_agree(model, example):
    state = model.init_state(model.encode(example.source, example.mask))
    _, state = stepped(model, state, example.target[:, :3])
    rows = torch.tensor([2, 2, 0])
    one, other = state.copy().select(rows), state.copy().select(rows).copy()
    tail = example.target[rows, 3:6]
    close(stepped(model, one, tail)[0], stepped(model, other, tail)[0])


def test_one_memory_serves_many_searches(model, example):
    memory = model.encode(example.source, example.mask)
    wanted, _ = stepped(model, model.init_state(memory), example.target[:, :5])
    stepped(model, model.init_state(memory), example.target[:, 5:10])
    close(stepped(model, model.init_state(memory), example.target[:, :5])[0], wanted)
    close(model.project(model.features(memory, example.target[:, :5])), wanted)
    rows = torch.tensor([1, 1, 4])
    chosen, _ = stepped(model, model.init_state(memory.select(rows)), example.target[rows, :5])
    close(chosen, wanted[rows])


def test_a_model_in_training_mode_differs_and_in_eval_mode_repeats(family, example):
    inputs = (example.source, example.mask, example.target)
    assert torch.equal(family(*inputs), family(*inputs))
    family.train()
    assert not torch.equal(family(*inputs), family(*inputs))


def test_training_never_waits_for_a_number_that_only_the_device_knows(named, tables):
    """Fake tensors have shapes and no values: to read one, or to index by a mask, is an error."""
    table = tables[named[0]]
    if not named[1].supports_cuda_graphs:
        pytest.skip("it says so itself, and is trained without CUDA graphs")
    if "pretrained" in named[0]:
        pytest.skip("it knows a fake tensor when it sees one: test_pretrained has a law of its own")
    if "learned" in named[0]:
        pytest.skip("on a CPU it looks whether its table is long enough; on a GPU it does not")
    with FakeTensorMode(), torch.enable_grad():
        model = build(Config.model_validate({"model": table}).model, 23, 19, False).train()
        source, target = torch.zeros(5, 11).long(), torch.zeros(5, 17).long()
        features = model.features(model.encode(source, source == 0), target)
        features.sum().backward()
    assert features.shape[:2] == (5, 17)
