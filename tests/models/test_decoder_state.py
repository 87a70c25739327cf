"""Invariants of decoder states: selecting, reordering, copying and branching change no output."""

import pytest
import torch

from regard.models.pretrained import Pretrained
from tests.models.stepping import assert_close, run_steps


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def test_select_selects_rows(model, example):
    memory = model.encode(example.source, example.mask)
    rows, subset = torch.tensor([3, 0, 0, 4, 2, 3, 1]), torch.tensor([5, 1, 2])  # some repeated
    generator = torch.Generator().manual_seed(3)
    for t in (0, 9):
        _, state = run_steps(model, model.init_state(memory), example.target[:, :t])
        tail = torch.randint(1, 19, (len(rows), 4), generator=generator)  # repeated rows diverge
        first, state = run_steps(model, state.select(rows), tail[:, :2])
        second, _ = run_steps(model, state.select(subset), tail[subset, 2:])
        target = torch.cat([example.target[rows, :t], tail], dim=1)
        expected = model(example.source[rows], example.mask[rows], target)[:, t:]
        assert_close(first, expected[:, :2])
        assert_close(second, expected[subset, 2:])


def test_hypotheses_of_a_sentence_are_independent(model, example):
    memory = model.encode(example.source, example.mask)
    for t in (0, 2):
        _, state = run_steps(model, model.init_state(memory), example.target[:, :t])
        check_hypotheses(model, example, state, t)


def check_hypotheses(model, example, state, t):
    """Read random tokens with several hypotheses, after the first t target tokens."""
    beam, generator = 3, torch.Generator().manual_seed(3)
    batch = len(example.lengths)
    state = state.expand(beam)
    hypotheses = example.target[:, None, :t].expand(-1, beam, -1)
    sentences = torch.arange(batch)
    for step in range(5):
        tokens = torch.randint(1, 19, (len(sentences), beam), generator=generator)
        logits, state = model.step(tokens.flatten(), state)
        hypotheses = torch.cat([hypotheses, tokens[..., None]], dim=-1)
        if step % 2 == 0:  # a wrong state stays wrong
            rows = sentences.repeat_interleave(beam)
            expected = model(example.source[rows], example.mask[rows], hypotheses.flatten(0, 1))
            assert_close(logits, expected[:, -1])
        # Some hypotheses are repeated, some dropped.
        beam_indices = torch.randint(0, beam, tokens.shape, generator=generator)
        state = state.reorder(beam_indices)
        hypotheses = hypotheses.gather(1, beam_indices[..., None].expand_as(hypotheses))
        if step == 2:
            selected = torch.tensor([4, 0, 2])  # each sentence with all its hypotheses
            state, hypotheses = state.select(selected), hypotheses[selected]
            sentences = sentences[selected]
        if step == 3:
            state = state.copy()


def test_expand_by_one_and_identity_reorder_change_nothing(model, example):
    memory = model.encode(example.source, example.mask)
    expected, _ = run_steps(model, model.init_state(memory), example.target[:, :5])
    _, state = run_steps(model, model.init_state(memory), example.target[:, :2])
    identity = torch.zeros(len(example.lengths), 1, dtype=torch.int64)
    state = state.reorder(identity).expand(1).reorder(identity)
    assert_close(run_steps(model, state, example.target[:, 2:5])[0], expected[:, 2:])


def test_copy_branches(model, example):
    memory = model.encode(example.source, example.mask)
    for t in (0, 3):
        _, state = run_steps(model, model.init_state(memory), example.target[:, :t])
        branches = [
            state.copy(),
            state,
            state.copy(),
        ]  # a copy steps before the original, one after
        tails = [example.target[:, i : i + 2] for i in (t, t + 2, t + 4)]
        logits = [[], [], []]
        for step in range(2):  # alternate, so that shared memory would be overwritten
            for i, (branch, tail) in enumerate(zip(branches, tails, strict=True)):
                step_logits, branches[i] = model.step(tail[:, step], branch)
                logits[i].append(step_logits)
        start = example.target[:, :t]
        target = torch.cat([torch.cat([start, tail], dim=1) for tail in tails])
        inputs = [part.repeat(len(tails), 1) for part in (example.source, example.mask)]
        expected = model(*inputs, target)[:, t:]
        assert_close(torch.cat([torch.stack(one, dim=1) for one in logits]), expected)


def test_copying_a_selection_changes_nothing(model, example):
    state = model.init_state(model.encode(example.source, example.mask))
    _, state = run_steps(model, state, example.target[:, :3])
    rows = torch.tensor([2, 2, 0])
    selected, copied = state.copy().select(rows), state.copy().select(rows).copy()
    tail = example.target[rows, 3:6]
    assert_close(run_steps(model, selected, tail)[0], run_steps(model, copied, tail)[0])


def test_memory_can_be_reused(model, example):
    memory = model.encode(example.source, example.mask)
    expected, _ = run_steps(model, model.init_state(memory), example.target[:, :5])
    run_steps(model, model.init_state(memory), example.target[:, 5:10])
    assert_close(run_steps(model, model.init_state(memory), example.target[:, :5])[0], expected)
    assert_close(model.project(model.features(memory, example.target[:, :5])), expected)
    rows = torch.tensor([1, 1, 4])
    state = model.init_state(memory.select(rows))
    selected, _ = run_steps(model, state, example.target[rows, :5])
    assert_close(selected, expected[rows])


def test_reserving_changes_no_output(model, example):
    """Steps of a reserved state change values in tensors of fixed shape."""
    memory = model.encode(example.source, example.mask)
    expected, _ = run_steps(model, model.init_state(memory), example.target[:, :6])
    first, _ = run_steps(model, model.init_state(memory).reserve(2), example.target[:, :2])
    assert_close(first, expected[:, :2])
    _, state = run_steps(model, model.init_state(memory), example.target[:, :1])
    state = state.reserve(3)
    structure = state.structure()
    middle, state = run_steps(model, state, example.target[:, 1:4])
    assert_close(middle, expected[:, 1:4])
    assert state.structure() == structure or isinstance(model.members[0], Pretrained)
    last, _ = run_steps(model, state.reserve(2), example.target[:, 4:6])  # more space
    assert_close(last, expected[:, 4:])


def test_hypotheses_of_a_reserved_state_are_independent(model, example):
    memory = model.encode(example.source, example.mask)
    _, state = run_steps(model, model.init_state(memory), example.target[:, :2])
    check_hypotheses(model, example, state.expand(1).reserve(20), 2)
