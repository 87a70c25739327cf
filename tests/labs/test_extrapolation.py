"""Extrapolation: every kind of position is tested, and incorrect positions are detected."""

import random
from itertools import pairwise

import pytest
import torch

from regard import UserError
from regard.attention import POSITIONS
from regard.attention.positions import SCALINGS, Learned, Relative, Rotary
from regard.config import Interleaved, kinds
from regard.config import Relative as RelativeTable
from regard.labs.extrapolation import (
    SCALED,
    TRAINED,
    ExtrapolationParameters,
    bias,
    make_config,
    scale_rotary,
)
from regard.labs.measurements.extrapolation_summary import (
    judge_effect,
    note_interleaving,
    positions_of,
    slowest_frequency,
)
from regard.labs.measurements.recall_task import accuracy_by_position, sample_pairs, sample_text
from regard.labs.measurements.training import init_model
from regard.text.tokenizer import TokenizerPair

FEW_STEPS = {"train_size": 100, "epochs": 1.0}
ROTARY = {"positions": "rotary", "train_size": 1500}  # it learns sooner than the others


def failed(checks):
    return [check.name for check in checks if not check.passed]


def test_every_position_is_tested():
    assert {table["kind"] for table in TRAINED.values()} == {*POSITIONS, *kinds(Interleaved)}
    forms = {table["form"] for table in TRAINED.values() if table["kind"] == "relative"}
    assert forms == set(RelativeTable.model_fields["form"].annotation.__args__)
    assert {"none", *SCALED} == set(SCALINGS)


def test_unscaled_frequencies_are_detected(lab, small, monkeypatch):
    monkeypatch.setitem(SCALINGS, "yarn", SCALINGS["none"])
    result = lab.run(**small(lab) | ROTARY)
    assert [name for name in failed(result.effect) if "rotary" in name] == [
        "rotary, yarn, far beyond it: worst seed",
        "accuracy gained by yarn over rotary, far beyond it: worst seed",
    ]
    assert failed(result.law) == [
        "rotary, scaled: angle of the slowest pair over s T, relative to T before"
    ]


def test_bias_by_absolute_position_is_detected(lab, small, monkeypatch):
    class Absolute(Relative):
        def bias(self, query, query_position_ids, key_position_ids):
            return super().bias(query, 0 * query_position_ids, key_position_ids)

    monkeypatch.setitem(POSITIONS, "relative", Absolute)
    result = lab.run(**small(lab) | {"positions": "relative-query"})
    assert "relative-query, beyond it: worst seed" in failed(result.effect)


def test_distances_that_are_not_clipped_are_detected(lab, small, monkeypatch):
    class Unclipped(Relative):
        def bias(self, query, query_position_ids, key_position_ids):
            distances = query_position_ids[:, None, :, None] - key_position_ids[:, None, None]
            return super().bias(query, query_position_ids, key_position_ids) - 1e-3 * distances

    monkeypatch.setitem(POSITIONS, "relative", Unclipped)
    result = lab.run(**small(lab) | FEW_STEPS | {"positions": "relative-query"})
    assert failed(result.law) == ["relative: change of the bias beyond the clipped distance"]


def test_model_that_sees_the_future_is_detected(lab, small, monkeypatch):
    monkeypatch.setattr(
        "regard.attention.masks.causal_mask",
        lambda queries, keys: torch.ones(*queries.shape, keys.shape[1], dtype=torch.bool),
    )
    result = lab.run(**small(lab) | FEW_STEPS | {"positions": "rotary"})
    assert failed(result.law) == [
        "logits up to the training length: change when the sequence goes on, all kinds"
    ]


def test_table_that_training_reaches_beyond_its_length_is_detected(lab, small, monkeypatch):
    class Shared(Learned):
        def embed(self, x, position_ids):
            return super().embed(x, position_ids) + 0.01 * self.table.sum(0)

    monkeypatch.setitem(POSITIONS, "learned", Shared)
    result = lab.run(**small(lab) | FEW_STEPS | {"positions": "learned", "epochs": 8.0})
    assert failed(result.law) == [
        "learned: 1 - cosine of a row beyond the training length, before and after training"
    ]


def test_untrained_models_are_called_not_trained(lab, small):
    result = lab.run(**small(lab) | FEW_STEPS | {"positions": "rotary"})
    assert result.law_holds
    assert any("Not trained" in check.message for check in result.effect if not check.passed)


@pytest.mark.parametrize(
    ("interleaved", "verdict"),
    [([0.4, 0.3], "contradicts this"), ([0.9, 0.3], "is mixed"), ([0.9, 0.9], "agrees")],
)
def test_note_says_whether_interleaving_helped(interleaved, verdict):
    (note,) = note_interleaving({"rotary": [0.5, 0.5], "interleaved": interleaved})
    assert f"Our measurement {verdict}" in note
    assert note_interleaving({"rotary": [0.5]}) == []


def test_nan_in_any_seed_fails():
    good = {"learned": [0.9, 0.9]}
    for seeds in ([float("nan"), 0.2], [0.2, float("nan")]):
        names = failed(judge_effect(good, {"learned": seeds}, good))
        assert "learned, beyond it: best seed" in names


WITHIN = {"learned": [0.9], "relative-query": [0.9], "rotary": [0.9]}
BEYOND = {"learned": [0.3], "relative-query": [0.9], "rotary": [0.4]}
FAR = {"rotary": [0.2], "rotary, linear": [0.9], "rotary, yarn": [0.9]}


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("learned", "Not measured: add sinusoidal or learned to positions"),
        ("relative-query", "Not measured: add relative-query to positions"),
        ("rotary", "Not measured: add rotary to positions"),
    ],
)
def test_part_of_the_claim_without_a_model_is_absent(kind, hint):
    assert failed(judge_effect(WITHIN, BEYOND, FAR)) == []
    parts = [
        {name: values for name, values in means.items() if not name.startswith(kind)}
        for means in (WITHIN, BEYOND, FAR)
    ]
    messages = [check.message for check in judge_effect(*parts) if not check.passed]
    assert messages
    assert all(hint in message for message in messages)


def test_scaled_rotary_must_work_not_only_gain():
    far = FAR | {"rotary": [0.05], "rotary, yarn": [0.36]}
    assert failed(judge_effect(WITHIN, BEYOND, far)) == ["rotary, yarn, far beyond it: worst seed"]


def test_every_answer_is_the_latest_capital():
    rng, count = random.Random(0), 0
    for _ in range(50):
        sequence = sample_text(37, rng)
        assert len(sequence) == 37
        for i, (character, following) in enumerate(pairwise(sequence)):
            if character == "?":
                capitals = [letter for letter in sequence[:i] if letter.isupper()]
                assert following == capitals[-1].lower()
                count += 1
    assert count > 100


@pytest.fixture
def setup():
    """Lab settings, long sequences, a tokenizer and a config."""
    params = ExtrapolationParameters(train_length=18, factor=2)
    pairs = sample_pairs(53, 36, 36, random.Random(1))
    config = make_config(TRAINED["rotary"], params, seed=3)
    return params, pairs, TokenizerPair.train(config.tokenizer, pairs, ()), config


def test_accuracy_by_position(setup):
    _, pairs, tokenizers, _ = setup

    def answer_first_half(source, mask, target):
        ids = [tokenizers.target.encode(sequence) for _, sequence in pairs]
        labels = torch.tensor(ids)
        labels[:, 18:] = tokenizers.target.piece_to_id["a"]
        logits = torch.nn.functional.one_hot(labels, tokenizers.target.vocab_size).float()
        logits[:, :, tokenizers.target.piece_to_id["?"]] = 2  # not a letter, so never an answer
        return torch.nn.functional.pad(logits, (0, 0, 0, 1))

    accuracies = accuracy_by_position(answer_first_half, tokenizers, pairs, 3)  # type: ignore[arg-type]
    assert accuracies[:6] == [1] * 6
    questions = [
        (position, letter)
        for _, sequence in pairs
        for position, letter in enumerate(sequence)
        if position and sequence[position - 1] == "?"
    ]
    for i in range(6, 12):
        letters = [letter for position, letter in questions if position // 3 == i]
        assert accuracies[i] == pytest.approx(letters.count("a") / len(letters))


def test_scaling_changes_only_the_frequencies(setup):
    params, _, tokenizers, config = setup
    model = init_model(config, tokenizers)
    for variant in scale_rotary(model, tokenizers, params).values():
        for name, weight in model.state_dict().items():
            assert torch.equal(variant.state_dict()[name], weight)
        old, new = (positions_of(each, Rotary) for each in (model, variant))
        assert len(old) == len(new) > 0
        for before, after in zip(old, new, strict=True):
            assert (after.omega <= before.omega).all()
            long = params.factor * params.train_length
            assert slowest_frequency(after, long) < slowest_frequency(before, long)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"positions": "rotery"}, 'no kind of position "rotery".*Did you mean "rotary"'),
        (
            {"positions": "alibi,none"},
            "no claim is made about alibi,none: add sinusoidal, learned",
        ),
        ({"train_length": 20}, "train_length: got 20; it should be a multiple of 6"),
    ],
)
def test_invalid_parameters(lab, params, message):
    with pytest.raises(UserError, match=message):
        lab.run(**params)


@pytest.mark.parametrize(
    ("wrong", "explanation"),
    [
        (lambda q, k, heads: bias(q, k, heads).abs(), "subtracts 2"),
        (lambda q, k, heads: bias(q, k, 2 * heads)[:heads], "subtracts 2"),
        (
            lambda q, k, heads: bias(q, k, heads).flip(0) if heads > 1 else 0 * bias(q, k, 1),
            "steepest",
        ),
        (
            lambda q, k, heads: bias(q, k, heads) * (1 + q.double()[:, None]),
            "did not occur in training",
        ),
        (lambda q, k, heads: bias(q, k - 1, heads), "distance 0"),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong, explanation):
    messages = [check.message for check in lab.exercise.grade(wrong) if not check.passed]
    assert any(explanation in message and "heads = " in message for message in messages)
