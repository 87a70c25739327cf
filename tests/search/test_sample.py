"""Sampling: draws that follow the model's own chances, from a seed and nothing else."""

import importlib

import pytest
import torch
from torch import Tensor

from regard.errors import UserError
from regard.models import Model
from regard.search import greedy, sample
from regard.text.tokenizer import BOS, EOS, PAD
from regard.translator import Sampling

VOCAB, LENGTHS, LIMITS = 11, (7, 2, 5, 1, 3), (9, 17, 1, 13, 5)
SEEDS = [3, 1, 4, 1, 5]


@pytest.fixture(params=["gru", "tutorial", "transformer"])
def model(request, lively) -> Model:
    return lively(request.param, VOCAB)


@pytest.fixture
def source(sources) -> tuple[Tensor, Tensor]:
    return sources(VOCAB, LENGTHS)


def draw(model, source, limits=LIMITS, seeds=SEEDS, **choices):
    return sample(model, model.encode(*source), torch.tensor(limits), list(seeds), **choices)


def first_tokens(model, source, count: int, **choices) -> Tensor:
    """How often each token came first, in draws from one source."""
    one = [tensor[:1].expand(count, -1) for tensor in source]
    found = draw(model, one, [1] * count, range(count), **choices)
    return torch.bincount(torch.tensor([h.ids[0] for h in found]), minlength=VOCAB).double()


def first_chances(model, source, temperature: float = 1.0) -> Tensor:
    """What those counts should be like: the softmax without padding and begin."""
    one = [tensor[:1] for tensor in source]
    logits = model(*one, torch.tensor([[BOS]]))[0, 0] / temperature
    logits[[PAD, BOS]] = float("-inf")
    return logits.softmax(-1)


def test_a_seed_decides_and_another_decides_otherwise(model, source):
    assert draw(model, source) == draw(model, source)
    others = draw(model, source, seeds=[seed + 100 for seed in SEEDS])
    assert [h.ids for h in others] != [h.ids for h in draw(model, source)]
    torch.manual_seed(7)  # the global generator has no say
    assert draw(model, source) == draw(model, source)


def test_a_draw_does_not_depend_on_its_batch(model, source):
    together = draw(model, source)
    order = [3, 0, 4, 2, 1]
    choices = {"limits": [LIMITS[r] for r in order], "seeds": [SEEDS[r] for r in order]}
    turned = draw(model, [tensor[order] for tensor in source], **choices)
    assert [h.ids for h in turned] == [together[row].ids for row in order]
    for row, length in enumerate(LENGTHS):
        alone = [tensor[row : row + 1, :length] for tensor in source]
        [found] = draw(model, alone, [LIMITS[row]], [SEEDS[row]])
        assert found.ids == together[row].ids
        assert found.score == pytest.approx(together[row].score, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_first_tokens_are_as_frequent_as_the_softmax_says(model, source, temperature):
    count = 4000
    wanted = count * first_chances(model, source, temperature)
    found = first_tokens(model, source, count, temperature=temperature)
    assert found[[PAD, BOS]].sum() == 0
    likely = wanted > 5
    squares = ((found - wanted) ** 2 / wanted)[likely].sum()
    assert squares < 30  # chi-square with at most 8 degrees of freedom: one in 5,000


@pytest.mark.parametrize("choices", [{"top_k": 3}, {"top_p": 0.6}, {"top_k": 4, "top_p": 0.9}])
def test_only_the_likeliest_are_drawn_in_proportion(model, source, choices):
    chances, order = first_chances(model, source).sort(descending=True)
    before = chances.cumsum(0) - chances
    kept = (before < choices.get("top_p", 2)) & (torch.arange(VOCAB) < choices.get("top_k", VOCAB))
    found = first_tokens(model, source, 2000, **choices)[order]
    assert found[~kept].sum() == 0
    wanted = 2000 * chances[kept] / chances[kept].sum()
    assert ((found[kept] - wanted) ** 2 / wanted).sum() < 30


@pytest.mark.parametrize(
    "choices",
    [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-6}, {"temperature": 1e-300}],
    ids=str,
)
def test_the_limits_are_greedy(model, source, choices):
    wanted = greedy(model, model.encode(*source), torch.tensor(LIMITS))
    found = draw(model, source, **choices)
    assert [h.ids for h in found] == [h.ids for h in wanted]
    assert [h.score for h in found] == pytest.approx([h.score for h in wanted], abs=1e-4)


def test_a_great_heat_makes_all_alike(model, source):
    found = first_tokens(model, source, 3600, temperature=1e30)
    assert found[[PAD, BOS]].sum() == 0
    assert ((found[EOS:] - 400) ** 2 / 400).sum() < 30


def test_everything_allowed_is_no_restriction(model, source):
    assert draw(model, source, top_k=VOCAB, top_p=1.0) == draw(model, source)
    assert draw(model, source, top_k=1000) == draw(model, source)


@pytest.mark.parametrize("luck", [0.0, 1.0])
def test_no_luck_draws_what_has_no_chance(model, source, luck, monkeypatch):
    """1 is what a die next to 1 may round to."""
    module = importlib.import_module("regard.search.sample")  # the package gives the function
    monkeypatch.setattr(module, "dice", lambda seed, count: torch.full((count,), luck))
    for choices in ({}, {"top_k": 2}, {"top_p": 0.3}):
        found = draw(model, source, **choices)
        assert not {PAD, BOS} & {i for h in found for i in h.ids}
    wanted = greedy(model, model.encode(*source), torch.tensor(LIMITS))
    assert [h.ids for h in draw(model, source, top_k=1)] == [h.ids for h in wanted]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_score_is_the_models_own_whatever_the_temperature(model, source, temperature):
    for row, found in enumerate(draw(model, source, temperature=temperature)):
        inputs = [tensor[row : row + 1, : LENGTHS[row]] for tensor in source]
        logits = model(*inputs, torch.tensor([[BOS, *found.ids[:-1]]]))[0]
        chances = logits.log_softmax(-1)[torch.arange(len(found.ids)), found.ids]
        assert found.score == pytest.approx(float(chances.sum()), abs=1e-4)
        assert len(found.ids) <= LIMITS[row]
        assert found.ids[-1] == EOS or len(found.ids) == LIMITS[row]


def test_several_draws_differ_and_come_likeliest_first(model, source):
    memory, limits = model.encode(*source), torch.tensor(LIMITS)
    drawn = Sampling(seed=3).draw(model, memory, limits, list(range(5)), 4)
    assert [len(row) for row in drawn] == [4] * 5
    assert len({tuple(h.ids) for h in drawn[1]}) > 1
    for row in drawn:
        assert [h.score for h in row] == sorted((h.score for h in row), reverse=True)
    fewer = Sampling(seed=3).draw(
        model, memory.select(torch.tensor([3, 1])), limits[[3, 1]], [3, 1], 4
    )
    assert [[h.ids for h in row] for row in fewer] == [[h.ids for h in drawn[r]] for r in (3, 1)]


WRONG = {
    "temperature": {0.0: "above 0, not 0; 0 would be greedy", -1.0: "above 0, not -1"},
    "top_k": {0: "top-k is 1 or more, not 0", -3: "not -3"},
    "top_p": {0.0: "top-p is above 0 and at most 1, not 0", 1.5: "at most 1, not 1.5"},
}
NO_NUMBERS = [("temperature", float("inf")), ("temperature", float("nan")), ("top_p", float("nan"))]
CASES = [(name, value, said) for name, wrong in WRONG.items() for value, said in wrong.items()]


@pytest.mark.parametrize(
    ("name", "value", "said"), [*CASES, *((*c, "above 0") for c in NO_NUMBERS)]
)
def test_what_cannot_be_drawn_with_is_refused(name, value, said):
    with pytest.raises(UserError, match=said):
        Sampling(**{name: value})
