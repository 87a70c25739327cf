"""Sampling follows the model's probabilities and depends on nothing but the seed."""

import importlib

import pytest
import torch
from torch import Tensor

from regard.errors import UserError
from regard.models import Model
from regard.search import greedy, sample
from regard.text.tokenizer import BOS, EOS, PAD
from regard.translator import Sampling

VOCAB, LENGTHS, MAX_LENGTHS = 11, (7, 2, 5, 1, 3), (9, 17, 1, 13, 5)
SEEDS = [3, 1, 4, 1, 5]


@pytest.fixture
def any_model(name, build_model) -> Model:
    return build_model(name, VOCAB)


@pytest.fixture
def model(build_model) -> Model:
    """For tests of the choice of a token, which sees probabilities only."""
    return build_model("gru", VOCAB)


@pytest.fixture
def source(random_sources) -> tuple[Tensor, Tensor]:
    return random_sources(VOCAB, LENGTHS)


def run_sample(model, source, max_lengths=MAX_LENGTHS, seeds=SEEDS, **options):
    return sample(model, model.encode(*source), torch.tensor(max_lengths), list(seeds), **options)


def count_first_tokens(model, source, count: int, **options) -> Tensor:
    """Counts of the first token in samples from one source."""
    repeated = [tensor[:1].expand(count, -1) for tensor in source]
    results = run_sample(model, repeated, [1] * count, range(count), **options)
    return torch.bincount(torch.tensor([h.ids[0] for h in results]), minlength=VOCAB).double()


def first_probs(model, source, temperature: float = 1.0) -> Tensor:
    """Probabilities of the first token: the softmax without PAD and BOS."""
    logits = model(*(tensor[:1] for tensor in source), torch.tensor([[BOS]]))[0, 0] / temperature
    logits[[PAD, BOS]] = float("-inf")
    return logits.softmax(-1)


def test_samples_depend_on_the_seed_alone(any_model, source):
    assert run_sample(any_model, source) == run_sample(any_model, source)
    other_seeds = run_sample(any_model, source, seeds=[seed + 100 for seed in SEEDS])
    assert [h.ids for h in other_seeds] != [h.ids for h in run_sample(any_model, source)]
    torch.manual_seed(7)  # the global generator is not used
    assert run_sample(any_model, source) == run_sample(any_model, source)


def test_samples_do_not_depend_on_the_batch(any_model, source):
    expected = run_sample(any_model, source)
    order = [3, 0, 4, 2, 1]
    options = {"max_lengths": [MAX_LENGTHS[r] for r in order], "seeds": [SEEDS[r] for r in order]}
    permuted = run_sample(any_model, [tensor[order] for tensor in source], **options)
    assert [h.ids for h in permuted] == [expected[row].ids for row in order]
    for row, length in enumerate(LENGTHS):
        single = [tensor[row : row + 1, :length] for tensor in source]
        [result] = run_sample(any_model, single, [MAX_LENGTHS[row]], [SEEDS[row]])
        assert result.ids == expected[row].ids
        assert result.score == pytest.approx(expected[row].score, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_frequencies_of_first_tokens_follow_the_softmax(model, source, temperature):
    count = 4000
    expected = count * first_probs(model, source, temperature)
    counts = count_first_tokens(model, source, count, temperature=temperature)
    assert counts[[PAD, BOS]].sum() == 0
    frequent = expected > 5
    chi_square = ((counts - expected) ** 2 / expected)[frequent].sum()
    assert chi_square < 30  # at most 8 degrees of freedom: p = 1 / 5,000


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.6}, {"top_k": 4, "top_p": 0.9}])
def test_top_k_and_top_p_truncate_and_renormalise(model, source, options):
    probs, order = first_probs(model, source).sort(descending=True)
    before = probs.cumsum(0) - probs
    kept = (before < options.get("top_p", 2)) & (torch.arange(VOCAB) < options.get("top_k", VOCAB))
    counts = count_first_tokens(model, source, 2000, **options)[order]
    assert counts[~kept].sum() == 0
    expected = 2000 * probs[kept] / probs[kept].sum()
    assert ((counts[kept] - expected) ** 2 / expected).sum() < 30


@pytest.mark.parametrize(
    "options",
    [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-6}, {"temperature": 1e-300}],
    ids=str,
)
def test_extreme_parameters_equal_greedy_search(model, source, options):
    expected = greedy(model, model.encode(*source), torch.tensor(MAX_LENGTHS))
    results = run_sample(model, source, **options)
    assert [h.ids for h in results] == [h.ids for h in expected]
    assert [h.score for h in results] == pytest.approx([h.score for h in expected], abs=1e-4)


def test_a_very_high_temperature_samples_uniformly(model, source):
    counts = count_first_tokens(model, source, 3600, temperature=1e30)
    assert counts[[PAD, BOS]].sum() == 0
    assert ((counts[EOS:] - 400) ** 2 / 400).sum() < 30


def test_top_k_and_top_p_that_include_all_tokens_change_nothing(model, source):
    assert run_sample(model, source, top_k=VOCAB, top_p=1.0) == run_sample(model, source)
    assert run_sample(model, source, top_k=1000) == run_sample(model, source)


@pytest.mark.parametrize("uniform", [0.0, 1.0])
def test_extreme_uniform_draws_select_no_token_of_probability_zero(
    model, source, uniform, monkeypatch
):
    """A draw just below 1 may round to 1."""
    module = importlib.import_module("regard.search.sample")  # regard.search.sample is the function
    monkeypatch.setattr(module, "uniform_draws", lambda seed, count: torch.full((count,), uniform))
    for options in ({}, {"top_k": 2}, {"top_p": 0.3}):
        results = run_sample(model, source, **options)
        assert not {PAD, BOS} & {i for h in results for i in h.ids}
    expected = greedy(model, model.encode(*source), torch.tensor(MAX_LENGTHS))
    assert [h.ids for h in run_sample(model, source, top_k=1)] == [h.ids for h in expected]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_scores_are_log_probabilities_at_temperature_1(model, source, temperature):
    for row, result in enumerate(run_sample(model, source, temperature=temperature)):
        inputs = [tensor[row : row + 1, : LENGTHS[row]] for tensor in source]
        logits = model(*inputs, torch.tensor([[BOS, *result.ids[:-1]]]))[0]
        log_probs = logits.log_softmax(-1)[torch.arange(len(result.ids)), result.ids]
        assert result.score == pytest.approx(float(log_probs.sum()), abs=1e-4)
        assert len(result.ids) <= MAX_LENGTHS[row]
        assert result.ids[-1] == EOS or len(result.ids) == MAX_LENGTHS[row]


def test_several_samples_differ_and_are_sorted_by_score(model, source):
    memory, max_lengths = model.encode(*source), torch.tensor(MAX_LENGTHS)
    samples = Sampling(seed=3).sample(model, memory, max_lengths, list(range(5)), 4)
    assert [len(row) for row in samples] == [4] * 5
    assert len({tuple(h.ids) for h in samples[1]}) > 1
    for row in samples:
        assert [h.score for h in row] == sorted((h.score for h in row), reverse=True)
    rows = [3, 1]
    selected = memory.select(torch.tensor(rows))
    subset = Sampling(seed=3).sample(model, selected, max_lengths[rows], rows, 4)
    assert [[h.ids for h in row] for row in subset] == [[h.ids for h in samples[r]] for r in rows]


INVALID = {
    "temperature": {
        0.0: r"must be above 0 and at most 1e\+06, not 0.0; 0 would be greedy",
        -1.0: "above 0 .*, not -1",
        float("inf"): "not inf",
        float("nan"): "not nan",
    },
    "top_k": {0: "top-k must be from 1 to 1,000,000,000, not 0", -3: "not -3"},
    "top_p": {
        0.0: "top-p must be above 0 and at most 1, not 0",
        1.5: "at most 1, not 1.5",
        float("nan"): "above 0 and at most 1, not nan",
    },
}
CASES = [(name, value, text) for name, errors in INVALID.items() for value, text in errors.items()]


@pytest.mark.parametrize(("name", "value", "message"), CASES)
def test_invalid_sampling_parameters_are_rejected(name, value, message):
    with pytest.raises(UserError, match=message):
        Sampling(**{name: value})
