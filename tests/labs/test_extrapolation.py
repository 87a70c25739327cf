"""Extrapolation: every kind is tried, and positions that lie are noticed."""

import random
from itertools import pairwise

import pytest
import torch

from regard import UserError
from regard.attention import POSITIONS
from regard.attention.positions import SCALINGS, Relative
from regard.config import Interleaved, kinds
from regard.config import Relative as RelativeTable
from regard.labs.extrapolation import (
    KINDS,
    SCALED,
    ExtrapolationParameters,
    bias,
    experiment,
    scaled,
)
from regard.labs.recall_task import accuracy_by_position, sample_pairs, sample_text
from regard.labs.training import init_model
from regard.text.tokenizer import TokenizerPair


def failed(result):
    return [check.name for check in result.checks if not check.passed]


def test_every_kind_of_position_is_tried():
    assert {table["kind"] for table in KINDS.values()} == {*POSITIONS, *kinds(Interleaved)}
    forms = {table["form"] for table in KINDS.values() if table["kind"] == "relative"}
    assert forms == set(RelativeTable.model_fields["form"].annotation.__args__)
    assert {"none", *SCALED} == set(SCALINGS)


def test_frequencies_that_are_not_scaled_are_noticed(lab, small, monkeypatch):
    monkeypatch.setitem(SCALINGS, "yarn", SCALINGS["none"])
    result = lab.run(**small(lab) | {"kinds": "rotary"})
    assert failed(result) == ["what yarn's scaling gains rotary, farthest out: worst seed"]


def test_distances_that_depend_on_the_place_are_noticed(lab, small, monkeypatch):
    class Absolute(Relative):
        def bias(self, query, query_at, key_at):
            return super().bias(query, 0 * query_at, key_at)

    monkeypatch.setitem(POSITIONS, "relative", Absolute)
    result = lab.run(**small(lab) | {"kinds": "relative-query"})
    assert failed(result) == ["relative-query, beyond it: worst seed"]


def test_every_question_is_answered_by_the_latest_capital():
    chance, asked = random.Random(0), 0
    for _ in range(50):
        said = sample_text(37, chance)
        assert len(said) == 37
        for place, (sign, after) in enumerate(pairwise(said)):
            if sign == "?":
                capitals = [letter for letter in said[:place] if letter.isupper()]
                assert after == capitals[-1].lower()
                asked += 1
    assert asked > 100


@pytest.fixture
def small_world():
    """Parameters, long texts, and how they are read."""
    params = ExtrapolationParameters(trained=18, factor=2)
    pairs = sample_pairs(53, 36, 36, random.Random(1))
    config = experiment(KINDS["rotary"], params, seed=3)
    return params, pairs, TokenizerPair.learn(config.tokenizer, pairs, ()), config


def test_answers_are_counted_at_their_places(small_world):
    _, pairs, tokenizers, _ = small_world

    def knows_the_first_half(source, mask, target):
        ids = [tokenizers.target.encode(said) for _, said in pairs]
        wanted = torch.tensor(ids)
        wanted[:, 18:] = tokenizers.target.ids["a"]
        right = torch.nn.functional.one_hot(wanted, tokenizers.target.size).float()
        right[:, :, tokenizers.target.ids["?"]] = 2  # no letter, so no answer
        return torch.nn.functional.pad(right, (0, 0, 0, 1))

    shares = accuracy_by_position(knows_the_first_half, tokenizers, pairs, 3)  # type: ignore[arg-type]
    assert shares[:6] == [1] * 6
    answers = [
        (place, letter)
        for _, said in pairs
        for place, letter in enumerate(said)
        if place and said[place - 1] == "?"
    ]
    for i in range(6, 12):
        asked = [letter for place, letter in answers if place // 3 == i]
        assert shares[i] == pytest.approx(asked.count("a") / len(asked))


def test_scaling_changes_frequencies_and_no_weight(small_world):
    params, _, tokenizers, config = small_world
    model = init_model(config, tokenizers)
    for slow in scaled(model, tokenizers, params).values():
        for name, weight in model.state_dict().items():
            assert torch.equal(slow.state_dict()[name], weight)
        old, new = (dict(one.named_buffers()) for one in (model, slow))
        assert all((new[name] <= old[name]).all() for name in old)
        assert any((new[name] < old[name]).any() for name in old)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"kinds": "rotery"}, 'no kind of position "rotery".*Did you mean "rotary"'),
        (
            {"kinds": "alibi,none"},
            "nothing is claimed of alibi,none alone: add sinusoidal, learned",
        ),
        ({"trained": 20}, "trained: got 20; it should be a multiple of 6"),
    ],
)
def test_wrong_knobs(lab, params, message):
    with pytest.raises(UserError, match=message):
        lab.run(**params)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda q, k, heads: bias(q, k, heads).abs(), "loses 2"),
        (lambda q, k, heads: bias(q, k, 2 * heads)[:heads], "loses 2"),
        (
            lambda q, k, heads: bias(q, k, heads).flip(0) if heads > 1 else 0 * bias(q, k, 1),
            "fastest",
        ),
        (lambda q, k, heads: bias(q, k, heads) * (1 + q.double()[:, None]), "never met"),
        (lambda q, k, heads: bias(q, k - 1, heads), "distance 0"),
    ],
)
def test_wrong_answers_fail_with_a_word_of_why(lab, wrong, why):
    remarks = [remark.message for remark in lab.exercise.grade(wrong) if not remark.passed]
    assert any(why in told and "heads = " in told for told in remarks)
