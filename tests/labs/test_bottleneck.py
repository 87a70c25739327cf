"""Bottleneck: blind attention and models not trained are detected; gradients, accuracies, fit are correct."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from regard import UserError
from regard.attention import SCORES
from regard.labs.bottleneck import MODELS, BottleneckParameters, context, make_model_config
from regard.labs.measurements import bottleneck_metrics
from regard.labs.measurements.bottleneck_metrics import (
    GeometricDecay,
    expected_accuracy,
    fit_capacity,
    gradient_norms,
    hidden_states_change,
    path_difference,
    source_gradient,
)
from regard.labs.measurements.bottleneck_summary import FORCED, FREE, NAMES, Measurement, summarise
from regard.labs.measurements.case_task import (
    ACCURACIES,
    accuracy_by_length,
    count_free_running,
    sample_pairs,
)
from regard.labs.measurements.training import init_model
from regard.models.recurrent import Recurrent
from regard.search import Hypothesis
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import EOS, TokenizerPair

FEW_STEPS = {"train_size": 100, "epochs": 1.0}


def failed(checks):
    return [check.name for check in checks if not check.passed]


def test_blind_attention_is_detected(lab, small, monkeypatch):
    """By its gradient, which needs no training."""
    monkeypatch.setitem(SCORES, "scaled-dot", SCORES["dummy"])
    names = failed(lab.run(**small(lab) | FEW_STEPS).effect)
    assert any("gradient of the last loss at the first letter" in name for name in names)


def test_leak_past_the_bottleneck_is_detected(lab, small, monkeypatch):
    """The law fails if the encoder states reach the decoder by any other path."""
    features = Recurrent.features

    def leak(self, memory, target):
        return features(self, memory, target) + memory.states.mean()

    monkeypatch.setattr(Recurrent, "features", leak)
    names = failed(lab.run(**small(lab) | FEW_STEPS).law)
    assert any("noise replaces all encoder states" in name for name in names)


def test_gradient_that_bypasses_both_paths_is_detected(models, monkeypatch):
    model, batch = models[0][1], models[1]
    assert path_difference(model, batch, 4) < 1e-6
    whole = source_gradient
    monkeypatch.setattr(
        bottleneck_metrics,
        "source_gradient",
        lambda *args: whole(*args) * (1 if args[3] else 1.01),
    )
    assert path_difference(model, batch, 4) > 1e-3


def test_start_state_is_all_that_a_decoder_without_attention_gets(models):
    baseline, attention, _ = models[0]
    assert hidden_states_change(baseline, models[1]) == 0
    assert hidden_states_change(attention, models[1]) > 1e-3


def test_pairs_follow_the_case_task():
    pairs = sample_pairs(37, range(3, 6), 5, random.Random(0))
    assert {len(target) for _, target in pairs} == {3, 4, 5}
    for source, target in pairs:
        symbol, text = source.split(" ")
        assert target == {"<U>": text.upper(), "<L>": text.lower()}[symbol]
        assert set(text) <= set("abcdeABCDE")


@pytest.fixture
def models():
    """A model of each kind at initialisation, and a source whose tokens are all distinct."""
    pairs = [("<U> abcde", "ABCDE")]
    params = BottleneckParameters(hidden_dim=7)
    configs = [make_model_config(kind, params, seed=3) for kind in MODELS]
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
    monkeypatch.setitem(ACCURACIES, FORCED, lambda model, data: [(3, 3), (0, 4), (4, 5)])
    model, tokenizers = models[0][0], models[2]
    assert accuracy_by_length(model, tokenizers, pairs, [2, 3, 4, 5], FORCED) == [1, 0, 4 / 5]
    assert accuracy_by_length(model, tokenizers, pairs, [2, 4, 5], FORCED) == [3 / 7, 4 / 5]


@pytest.mark.parametrize(
    ("output", "correct"),
    [
        ("ABCDE.", 6),  # with its end token
        ("ABCDEA", 5),  # does not end in time
        ("ABC.", 3),  # ends early: the letters it lacks, and its end, are wrong
        (".", 0),
        ("BACDE.", 4),
        ("BCDE.", 0),  # position by position, not aligned
    ],
)
def test_free_running_tokens_are_compared_position_by_position(
    models, monkeypatch, output, correct
):
    model, _, tokenizers = models[0][0], models[1], models[2]
    data = EncodedPairs.from_pairs([("<U> abcde", "ABCDE")], tokenizers)
    piece_to_id = tokenizers.target.piece_to_id
    ids = [EOS if letter == "." else piece_to_id[letter] for letter in output]
    limits = []

    def greedy(model, memory, max_lengths):
        limits.append(max_lengths.tolist())
        return [Hypothesis(ids, 0.0, 0.0)]

    monkeypatch.setattr("regard.labs.measurements.case_task.greedy", greedy)
    assert count_free_running(model, data) == [(correct, 6)]
    assert limits == [[6]]


def test_fit_recovers_the_capacity():
    lengths = [5.0, 9.0, 14.0]
    fit = fit_capacity(lengths, [expected_accuracy(3.7, n, 1 / 6) for n in lengths], 6)
    assert fit.capacity == pytest.approx(3.7, abs=0.006)
    assert fit.guess == pytest.approx(1 / 6)
    assert fit.error < 0.01
    assert fit.residual < 1e-3
    assert expected_accuracy(3.7, 2, 1 / 6) == 1
    assert expected_accuracy(0, 7, 1 / 5) == pytest.approx(1 / 5)


def test_fit_of_bad_guesses_and_of_no_closed_form():
    lengths = [5.0, 9.0, 14.0]
    poor = fit_capacity(lengths, [expected_accuracy(0.5, n, 1 / 12) for n in lengths], 6)
    assert (poor.capacity, poor.guess) == pytest.approx((0.5, 1 / 12), abs=0.02)
    assert fit_capacity(lengths, [0.9, 0.2, 0.9], 6).error > 1
    assert fit_capacity(lengths, [0.9, 0.2, 0.9], 6).residual > 0.2
    assert np.isnan(fit_capacity(lengths, [0.9, float("nan"), 0.2], 6).residual)


def test_geometric_decay_is_recovered():
    fit = GeometricDecay.fit([3 * 0.5 ** (13 - j) for j in range(13)])
    assert fit.factor == pytest.approx(0.5)
    assert fit.explained == pytest.approx(1)
    assert GeometricDecay.fit([1, 5, 2, 5, 1]).explained < 0.2
    underflowed = GeometricDecay.fit([0, 0, *(0.5 ** (13 - j) for j in range(13))])
    assert underflowed.factor == pytest.approx(0.5)
    assert GeometricDecay.fit([0.0] * 13) is None


@pytest.mark.filterwarnings("error")
def test_dead_start_state_has_no_gradient_and_keeps_the_law(lab):
    """With this seed every ReLU of the start state is dead, so that no gradient reaches the source."""
    few = {"hidden_dim": 2, "max_length": 12, "train_size": 100, "epochs": 0.1, "seeds": 1}
    result = lab.run(seed=1, **few)
    norms = dict(zip(result.figures["gradients"], result.figures["gradient_norms"], strict=True))
    assert not any(norms["no attention, before"])
    assert result.law_holds
    assert not result.effect_is_present
    assert result.figures["decay_per_step"] == []
    assert any("the gradient is 0" in note for note in result.notes)
    lab.plot(result)


def test_ratio_of_two_gradients_of_0_is_no_effect():
    measured = made_measurement()
    measured.gradient_norms |= {f"{name}, before": [0.0] * 3 for name in NAMES}
    names = failed(summarise(measured).effect)
    assert any(name.startswith("gradient of the last loss at the first letter") for name in names)


def made_measurement(baseline=3.0, attention=11.0):
    """A measurement of models that know so many tokens, in two seeds."""
    measured = Measurement(letters=5, lengths=[5.0, 9.0, 14.0])
    for kind in ACCURACIES:
        for name, capacity in zip(NAMES, (baseline, attention, attention), strict=True):
            curve = [expected_accuracy(capacity, n, 1 / 5) for n in measured.lengths]
            measured.accuracies[kind][name] = [curve, curve]
    for name, norms in zip(NAMES, ([1e-6, 1e-5, 1e-4], [0.1] * 3, [0.1] * 3), strict=True):
        measured.gradient_norms |= {f"{name}, before": norms, f"{name}, after": norms}
        measured.parameter_counts[name] = 1
    return replace(measured, path_differences=[1e-7], start_state_only=[0.0])


def test_trained_models_pass():
    findings = summarise(made_measurement())
    assert failed(findings.law) == failed(findings.effect) == []
    assert findings.figures["not_trained"] == []
    assert findings.figures["fit_residual"] < 1e-3


@pytest.mark.parametrize(("baseline", "attention"), [(1.0, 11.0), (3.0, 1.0)])
def test_model_that_knows_no_letter_is_called_not_trained(baseline, attention):
    findings = summarise(made_measurement(baseline, attention))
    assert failed(findings.law) == []
    messages = [check.message for check in findings.effect if not check.passed]
    assert any("Not trained" in message for message in messages)
    assert any(note.startswith("Not trained") for note in findings.notes)


@pytest.mark.parametrize("kind", [FORCED, FREE])
def test_nan_in_any_seed_fails(kind):
    for seed in (0, 1):
        measured = made_measurement()
        measured.accuracies[kind]["attention"][seed][-1] = float("nan")
        name = f"accuracy gained by attention on the longest sequences, {kind}, worst seed"
        assert name in failed(summarise(measured).effect)


def test_plain_rnn_is_not_trained_without_attention(lab, small):
    result = lab.run(**small(lab) | FEW_STEPS | {"cell": "rnn"})
    assert result.law_holds
    assert not result.passed
    assert "no attention" in result.figures["not_trained"]
    assert any(check.hint.startswith("Not trained") for check in result.effect if not check.passed)


def test_positions_are_not_checked_and_both_accuracies_are_shown(lab, small):
    result = lab.run(**small(lab) | FEW_STEPS | {"seeds": 2})
    assert not any("positions" in check.name for check in result.checks)
    assert isinstance(result.figures["positions_gain"], float)
    assert len(result.figures["gap_interval"]) == 1
    assert len(result.figures["gradient_norms"][0]) == 12 + 2
    assert [len(runs) for runs in result.figures["accuracies"]] == [2, 2, 2]
    kinds = [row[result.table.columns.index("accuracy")] for row in result.table.rows]
    assert kinds == ["teacher-forced", "free-running"] * 5
    assert "end early count as wrong" in result.notes[0].replace("ends", "end")


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
        (lambda d, h, mask: context(d, h, mask) + torch.tensor(float("nan")), "e^(d . h_j)"),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong, explanation):
    messages = [check.message for check in lab.exercise.grade(wrong) if not check.passed]
    assert any(explanation in message and "source positions" in message for message in messages)
