"""Forced tokens: every output has them, the model goes on from there, and scores are those of the model."""

import pytest
import torch

from regard.models import Model
from regard.search import Hypothesis, beam, force_tokens, greedy, sample
from regard.search.step import next_log_probs
from regard.text.tokenizer import BOS, EOS

VOCAB, LENGTHS, MAX_LENGTHS = 11, (7, 2, 5, 1, 3), (9, 17, 6, 13, 7)
SEEDS = [3, 1, 4, 1, 5]
SEARCHES = {
    "greedy": lambda *batch, **options: [[one] for one in greedy(*batch, **options)],
    "beam": lambda *batch, **options: beam(*batch, 4, 4, **options),
    "sample": lambda *batch, **options: [[one] for one in sample(*batch, SEEDS, **options)],
}


@pytest.fixture
def model(name, build_model) -> Model:
    return build_model(name, VOCAB)


@pytest.fixture(params=SEARCHES)
def search(request, model, random_sources):
    """search(constrain): the n-best lists of each source."""
    memory = model.encode(*random_sources(VOCAB, LENGTHS))
    find = SEARCHES[request.param]
    return lambda constrain=None: find(
        model, memory.copy(), torch.tensor(MAX_LENGTHS), constrain=constrain
    )


@pytest.fixture
def score(model, random_sources):
    """score(row, ids): their log-probability, one step at a time."""
    source, mask = random_sources(VOCAB, LENGTHS)

    def compute(row: int, ids: list[int]) -> float:
        length = LENGTHS[row]
        memory = model.encode(source[row : row + 1, :length], mask[row : row + 1, :length])
        state, total = model.init_state(memory), 0.0
        for before, token in zip([BOS, *ids], ids, strict=False):
            log_probs, state = next_log_probs(model, torch.tensor([before]), state)
            total += float(log_probs[0, token])
        return total

    return compute


def assert_equal(output: Hypothesis, expected: Hypothesis) -> None:
    assert output.ids == expected.ids
    assert output.score == pytest.approx(expected.score, abs=1e-5)


def test_forcing_the_output_that_there_is_changes_nothing(search):
    for row, nbest in enumerate(search()):
        forced = {step: [token] for step, token in enumerate(nbest[0].ids)}
        if len(forced) <= min(MAX_LENGTHS):
            assert_equal(search(force_tokens(forced))[row][0], nbest[0])


def test_every_output_has_the_forced_tokens_and_the_score_of_the_model(search, score):
    for row, nbest in enumerate(search(force_tokens({2: [8], 4: [10]}))):
        assert nbest
        for hypothesis in nbest:
            assert (hypothesis.ids[2], hypothesis.ids[4]) == (8, 10)
            assert EOS not in hypothesis.ids[:-1]
            assert hypothesis.score == pytest.approx(score(row, hypothesis.ids), abs=1e-5)


def test_no_output_ends_before_the_last_forced_token():
    log_probs = torch.randn(3, VOCAB).log_softmax(-1)
    constrain = force_tokens({2: [5, 7], 1: [4]})
    allowed = [constrain(log_probs.clone(), step) > float("-inf") for step in range(4)]
    tokens = [set(mask[0].nonzero()[:, 0].tolist()) for mask in allowed]
    assert tokens == [set(range(VOCAB)) - {EOS}, {4}, {5, 7}, set(range(VOCAB))]


def test_the_first_token_and_the_end_can_be_forced(search):
    for nbest in search(force_tokens({0: [7], 3: [EOS]})):
        for hypothesis in nbest:
            assert hypothesis.ids[0] == 7
            assert hypothesis.ids.index(EOS) == 3


def test_of_several_tokens_greedy_search_takes_the_most_probable(model, random_sources):
    memory = model.encode(*random_sources(VOCAB, LENGTHS))
    limits = torch.tensor(MAX_LENGTHS)
    for free in greedy(model, memory, limits):
        several = force_tokens({0: [free.ids[0], 5]})
        assert free in greedy(model, memory, limits, constrain=several)


def test_a_beam_of_one_is_greedy_search(model, random_sources):
    batch = model, model.encode(*random_sources(VOCAB, LENGTHS)), torch.tensor(MAX_LENGTHS)
    constrain = force_tokens({1: [6], 3: [4]})
    for one, best in zip(
        greedy(*batch, constrain=constrain), beam(*batch, 1, constrain=constrain), strict=True
    ):
        assert_equal(one, best[0])
