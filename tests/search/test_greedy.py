"""Greedy search against a naive loop without a cache."""

import pytest
import torch

from regard.models import Model
from regard.search import greedy, watch
from regard.text.tokenizer import BOS, EOS, PAD

VOCAB, LENGTHS = 11, (7, 2, 5, 1, 3)
MAX_LENGTHS = (9, 19, 1, 13, 5)


@pytest.fixture
def model(name, build_model) -> Model:
    return build_model(name, VOCAB)


def bias_logits(model: Model, **biases: float) -> None:
    """Add a bias to the logits of special tokens, so that outputs end soon, or never."""
    bias = torch.zeros(VOCAB, dtype=torch.float64)
    for name, value in biases.items():
        bias[{"eos": EOS, "bos": BOS, "pad": PAD}[name]] = value
    for member in model.members:
        project = member.project
        member.project = lambda features, project=project: project(features) + bias


@pytest.fixture
def source(random_sources) -> tuple[torch.Tensor, torch.Tensor]:
    return random_sources(VOCAB, LENGTHS)


def naive(model, source, mask, max_length: int) -> tuple[list[int], float]:
    """One sentence; the model reads the whole prefix again for every token."""
    ids, score = [BOS], 0.0
    while len(ids) <= max_length and ids[-1] != EOS:
        logits = model(source, mask, torch.tensor([ids]))[0, -1].float()
        log_probs = logits.log_softmax(-1).tolist()
        best = max((i for i in range(VOCAB) if i not in (PAD, BOS)), key=log_probs.__getitem__)
        ids.append(best)
        score += log_probs[best]
    return ids[1:], score


def search(model, source, max_lengths=MAX_LENGTHS):
    return greedy(model, model.encode(*source), torch.tensor(max_lengths))


@pytest.mark.parametrize("eos", [-2.0, 2.0])
def test_greedy_equals_a_naive_loop(model, source, eos):
    bias_logits(model, eos=eos)
    results = search(model, source)
    for row, (length, max_length) in enumerate(zip(LENGTHS, MAX_LENGTHS, strict=True)):
        ids, mask = (tensor[row : row + 1, :length] for tensor in source)
        expected_ids, score = naive(model, ids, mask, max_length)
        assert results[row].ids == expected_ids
        assert results[row].score == pytest.approx(score, abs=1e-4)
        assert results[row].normalised == results[row].score


def test_outputs_do_not_depend_on_the_check_interval(model, source):
    bias_logits(model, eos=1.0)
    memory, max_lengths = model.encode(*source), torch.tensor(MAX_LENGTHS)
    expected = greedy(model, memory, max_lengths)
    for check_every in (2, 3, 8, 100):
        results = greedy(model, memory, max_lengths, check_every)
        assert [h.ids for h in results] == [h.ids for h in expected]
        assert [h.score for h in results] == pytest.approx([h.score for h in expected], abs=1e-5)


def test_outputs_do_not_depend_on_the_batch(model, source):
    bias_logits(model, eos=1.0)
    expected = search(model, source)
    order = [3, 0, 4, 2, 1]
    permuted = search(model, [t[order] for t in source], [MAX_LENGTHS[row] for row in order])
    assert [h.ids for h in permuted] == [expected[row].ids for row in order]
    for row, max_length in enumerate(MAX_LENGTHS):
        single = search(model, [t[row : row + 1] for t in source], [max_length])[0]
        assert single.ids == expected[row].ids
        assert single.score == pytest.approx(expected[row].score, abs=1e-5)


def test_an_output_without_eos_stops_at_its_own_maximum_length(model, source):
    bias_logits(model, eos=-1000.0)
    assert [len(h.ids) for h in search(model, source)] == list(MAX_LENGTHS)


def test_an_output_may_be_eos_alone(model, source):
    bias_logits(model, eos=1000.0)
    results = search(model, source)
    assert [h.ids for h in results] == [[EOS]] * len(LENGTHS)
    assert [h.score for h in results] == pytest.approx([0.0] * len(LENGTHS), abs=1e-6)


def test_no_output_contains_pad_or_bos(model, source):
    bias_logits(model, pad=50.0, bos=60.0)
    results = search(model, source)
    assert not {PAD, BOS} & {i for h in results for i in h.ids}
    # Scores are not renormalised: excluded tokens keep their probability mass.
    assert all(h.score < -40 for h in results)


def test_eos_is_last_or_absent(model, source):
    bias_logits(model, eos=1.0)
    results = search(model, source)
    assert all(EOS not in h.ids[:-1] for h in results)
    assert all(
        h.ids[-1] == EOS or len(h.ids) == max_length
        for h, max_length in zip(results, MAX_LENGTHS, strict=True)
    )


def test_a_watched_search_shows_every_token(build_model, random_sources, name):
    model = build_model(name, 11)
    memory, limits = model.encode(*random_sources(11, (7, 2, 5))), torch.tensor([9, 4, 6])
    seen = [[], [], []]

    def record(search, live):
        for row, sentence in live.items():
            seen[sentence].append(search.tokens[row].item())

    with watch(record):
        outputs = greedy(model, memory, limits, check_every=1)
    assert seen == [output.ids for output in outputs]


def test_a_watched_search_can_be_given_up(build_model, random_sources, name):
    def give_up(search, live):
        raise TimeoutError

    model = build_model(name, 11)
    with watch(give_up), pytest.raises(TimeoutError):
        greedy(model, model.encode(*random_sources(11, (7,))), torch.tensor([9]))
