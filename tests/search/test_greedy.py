"""Greedy search against a naive loop over whole sentences."""

import pytest
import torch

from regard.models import Model
from regard.search import greedy
from regard.text.tokenizer import BOS, EOS, PAD

VOCAB, LENGTHS = 11, (7, 2, 5, 1, 3)
LIMITS = (9, 19, 1, 13, 5)
NAMES = ["gru", "bottleneck", "rnn-2", "transformer", "rotary", "grouped-window", "latent"]


@pytest.fixture(params=NAMES)
def model(request, lively) -> Model:
    return lively(request.param, VOCAB)


def lean(model: Model, **towards: float) -> None:
    """Lean all logits towards some tokens: outputs that end soon, or never."""
    leaning = torch.zeros(VOCAB, dtype=torch.float64)
    for name, weight in towards.items():
        leaning[{"end": EOS, "begin": BOS, "pad": PAD}[name]] = weight
    plain = model.project
    model.project = lambda features: plain(features) + leaning


@pytest.fixture
def source(sources) -> tuple[torch.Tensor, torch.Tensor]:
    return sources(VOCAB, LENGTHS)


def naive(model, source, mask, limit: int) -> tuple[list[int], float]:
    """One sentence; the whole output is read again for every word."""
    ids, score = [BOS], 0.0
    while len(ids) <= limit and ids[-1] != EOS:
        logits = model(source, mask, torch.tensor([ids]))[0, -1].float()
        chances = logits.log_softmax(-1).tolist()
        best = max((i for i in range(VOCAB) if i not in (PAD, BOS)), key=chances.__getitem__)
        ids.append(best)
        score += chances[best]
    return ids[1:], score


def search(model, source, limits=LIMITS):
    return greedy(model, model.encode(*source), torch.tensor(limits))


@pytest.mark.parametrize("end", [-2.0, 0.0, 2.0])
def test_greedy_is_the_naive_loop(model, source, end):
    lean(model, end=end)
    found = search(model, source)
    for row, (length, limit) in enumerate(zip(LENGTHS, LIMITS, strict=True)):
        ids, mask = (tensor[row : row + 1, :length] for tensor in source)
        wanted, score = naive(model, ids, mask, limit)
        assert found[row].ids == wanted
        assert found[row].score == pytest.approx(score, abs=1e-4)
        assert found[row].normalised == found[row].score


@pytest.mark.parametrize("check_every", [2, 3, 8, 100])
def test_looking_rarely_for_what_has_ended_finds_the_same(model, source, check_every):
    lean(model, end=1.0)
    memory, limits = model.encode(*source), torch.tensor(LIMITS)
    found, wanted = greedy(model, memory, limits, check_every), greedy(model, memory, limits)
    assert [h.ids for h in found] == [h.ids for h in wanted]
    assert [h.score for h in found] == pytest.approx([h.score for h in wanted], abs=1e-5)


def test_rows_do_not_know_of_each_other(model, source):
    lean(model, end=1.0)
    together = search(model, source)
    order = [3, 0, 4, 2, 1]
    turned = search(model, [t[order] for t in source], [LIMITS[row] for row in order])
    assert [h.ids for h in turned] == [together[row].ids for row in order]
    for row, limit in enumerate(LIMITS):
        alone = search(model, [t[row : row + 1] for t in source], [limit])[0]
        assert alone.ids == together[row].ids
        assert alone.score == pytest.approx(together[row].score, abs=1e-5)


def test_an_output_that_never_ends_stops_at_its_own_limit(model, source):
    lean(model, end=-1000.0)
    assert [len(h.ids) for h in search(model, source)] == list(LIMITS)


def test_an_output_that_ends_at_once_is_its_end(model, source):
    lean(model, end=1000.0)
    found = search(model, source)
    assert [h.ids for h in found] == [[EOS]] * len(LENGTHS)
    assert [h.score for h in found] == pytest.approx([0.0] * len(LENGTHS), abs=1e-6)


def test_no_output_holds_padding_or_begin(model, source):
    lean(model, pad=50.0, begin=60.0)
    found = search(model, source)
    assert not {PAD, BOS} & {i for h in found for i in h.ids}
    # The score is the model's own probability: what may not be said still takes its share.
    assert all(h.score < -40 for h in found)


def test_the_end_stands_last_or_nowhere(model, source):
    lean(model, end=1.0)
    found = search(model, source)
    assert all(EOS not in h.ids[:-1] for h in found)
    assert all(h.ids[-1] == EOS or len(h.ids) == n for h, n in zip(found, LIMITS, strict=True))
