"""Bottleneck: blind attention is detected; gradients, accuracies and the fit are correct."""

import random

import numpy as np
import pytest

from regard import UserError, evaluation
from regard.attention import SCORES
from regard.evaluation import Likelihood
from regard.labs.bottleneck import (
    MODELS,
    BottleneckParameters,
    check_baseline,
    context,
    make_config,
)
from regard.labs.bottleneck_metrics import (
    accuracy_by_length,
    expected_accuracy,
    fit_capacity,
    gradient_norms,
    sample_pairs,
)
from regard.labs.training import init_model
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import TokenizerPair


def test_blind_attention_is_detected(lab, small, monkeypatch):
    monkeypatch.setitem(SCORES, "scaled-dot", SCORES["dummy"])
    result = lab.run(**small(lab))
    failed = [check.name for check in result.checks if not check.passed]
    assert any(name.startswith("accuracy gained by attention on the longest") for name in failed)
    assert any("gradient of the last loss at the first letter" in name for name in failed)


def test_pairs_follow_the_case_task():
    pairs = sample_pairs(37, range(3, 6), 5, random.Random(0))
    assert {len(target) for _, target in pairs} == {3, 4, 5}
    for source, target in pairs:
        symbol, text = source.split(" ")
        assert target == {"<U>": text.upper(), "<L>": text.lower()}[symbol]
        assert set(text) <= set("abcdeABCDE")


@pytest.fixture
def models():
    """An init_model model of each kind, and a source whose tokens are all distinct."""
    pairs = [("<U> abcde", "ABCDE")]
    params = BottleneckParameters(hidden_dim=7)
    configs = [make_config(kind, params, seed=3) for kind in MODELS]
    tokenizers = TokenizerPair.train(configs[0].tokenizer, pairs, ("<U>", "<L>"))
    batch = EncodedPairs.from_pairs(pairs, tokenizers).batch([0])
    return [init_model(config, tokenizers) for config in configs], batch, tokenizers


def test_gradient_at_a_position_is_the_embedding_gradient_of_its_token(models):
    for model in models[0]:
        batch = models[1]
        logits = model(batch.source, batch.source_mask, batch.target)[:, 4]
        loss = -logits.log_softmax(-1)[0, batch.labels[0, 4]]
        loss.backward()
        rows = model.encoder.embedding.weight.grad[batch.source[0]]
        assert gradient_norms(model, batch, 4) == pytest.approx(
            rows.norm(dim=-1).tolist(), rel=1e-4
        )


def test_models_differ_only_in_attention_and_positions(models):
    baseline, attention, positions = (
        {name: p.shape for name, p in m.named_parameters()} for m in models[0]
    )
    assert attention == positions
    assert {name: attention[name] for name in baseline if name != "output.weight"} == {
        name: baseline[name] for name in baseline if name != "output.weight"
    }


def test_accuracy_by_length_bin(models, monkeypatch):
    pairs = [("<U> ab", "AB"), ("<U> abc", "ABC"), ("<U> abcd", "ABCD")]
    results = [Likelihood(0.0, tokens=3, correct=3), Likelihood(0.0, 4, 0), Likelihood(0.0, 5, 4)]
    monkeypatch.setattr(evaluation, "likelihoods", lambda model, data: results)
    model, tokenizers = models[0][0], models[2]
    assert accuracy_by_length(model, tokenizers, pairs, [2, 3, 4, 5]) == [1, 0, 4 / 5]
    assert accuracy_by_length(model, tokenizers, pairs, [2, 4, 5]) == [3 / 7, 4 / 5]


def test_fit_recovers_the_capacity():
    lengths = [5.0, 9.0, 14.0]
    capacity, error = fit_capacity(lengths, [expected_accuracy(3.7, n, 6) for n in lengths], 6)
    assert capacity == pytest.approx(3.7, abs=0.006)
    assert error < 0.01
    assert expected_accuracy(3.7, 2, 6) == 1
    assert expected_accuracy(0, 7, 5) == pytest.approx(1 / 5)
    assert fit_capacity(lengths, [0.9, 0.2, 0.9], 6)[1] > 1


def test_rnn_check_holds_when_nothing_is_stored(lab, small):
    result = lab.run(**small(lab) | {"cell": "rnn"})
    assert result.passed, [check.message for check in result.checks if not check.passed]
    assert any("letters stored by an rnn" in check.name for check in result.checks)


@pytest.mark.parametrize(
    ("cell", "capacity", "passed"),
    [("rnn", 0.4, True), ("rnn", 3, False), ("gru", 3, True), ("lstm", 3, True), ("gru", 0, False)],
)
def test_baseline_check_by_cell(cell, capacity, passed):
    lengths, letters = [5.0, 9.0, 14.0], 7
    curve = [expected_accuracy(capacity, n, letters) for n in lengths]
    runs = np.array([[1 / letters] * 3 if cell == "rnn" else curve, curve])
    params = BottleneckParameters(cell=cell, letters=letters)
    assert check_baseline(params, lengths, runs).passed is passed


def test_positions_are_not_checked(lab, small):
    result = lab.run(**small(lab) | {"train_size": 100, "epochs": 1.0, "seeds": 2})
    assert not any("position" in check.name for check in result.checks)
    assert isinstance(result.figures["positions_gain"], float)
    assert len(result.figures["gap_interval"]) == 1
    assert len(result.figures["gradient_norms"][0]) == 12 + 2
    assert [len(runs) for runs in result.figures["accuracies"]] == [2, 2, 2]


def test_unknown_cell(lab):
    with pytest.raises(UserError, match='lab bottleneck: cell: got "gruu"; choose gru, lstm, rnn'):
        lab.run(cell="gruu")


@pytest.mark.parametrize(
    ("wrong", "explanation"),
    [
        (lambda d, h, mask: (h @ d).softmax(0) @ h, "minus infinity"),
        (lambda d, h, mask: ((h @ d).softmax(0) * mask) @ h, "minus infinity"),
        (lambda d, h, mask: ((h @ d) * mask).softmax(0) @ h, "minus infinity"),
        (lambda d, h, mask: h[mask].mean(0), "e^(d . h_j)"),
        (lambda d, h, mask: context(d / 2, h, mask), "e^(d . h_j)"),
        (lambda d, h, mask: ((h @ d).exp() * mask) / ((h @ d).exp() * mask).sum() @ h, "overflow"),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong, explanation):
    messages = [check.message for check in lab.exercise.grade(wrong) if not check.passed]
    assert any(explanation in message and "source positions" in message for message in messages)
