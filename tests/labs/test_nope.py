"""NoPE: 1, 1/2, 1/3, .. from the causal mask alone; a leak, a position or a missing mask is detected."""

import math

import pytest
import torch

from regard.attention import POSITIONS, SCORES, causal_mask
from regard.attention.heads import MultiHeadBase
from regard.labs import nope
from regard.labs.nope import keys_values


def failed(result):
    return [i for i, check in enumerate(result.checks) if not check.passed]


def test_outputs_are_one_over_t(lab):
    figures = lab.run(length=7, d_model=5, trials=3).figures
    assert figures["outputs"] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6, 1 / 7])
    assert figures["without_mask"] == pytest.approx([1 / 7] * 7)
    assert figures["lengths"] == [1, 2, 3, 5, 7]


def test_short_and_long_sequences(lab):
    shortest = lab.run(length=2, d_model=2, trials=1)
    assert shortest.passed
    lab.plot(shortest).canvas.draw()
    assert lab.run(length=97).passed


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_other_scores(lab, monkeypatch, score):
    """Equal keys need equal scores, nothing else."""
    monkeypatch.setitem(SCORES, "scaled-dot", SCORES[score])
    assert lab.run().passed


def test_leaked_token_is_detected(lab, monkeypatch):
    monkeypatch.setattr(nope, "causal_mask", lambda query, key: causal_mask(query + 1, key))
    assert failed(lab.run()) == [0, 1, 4]  # 4: the first two tokens have the same output


def test_position_is_detected(lab, monkeypatch):
    monkeypatch.setitem(POSITIONS, "none", POSITIONS["alibi"])
    assert failed(lab.run()) == [0, 1, 3]


def test_unrequested_mask_is_detected(lab, monkeypatch):
    monkeypatch.setattr(
        MultiHeadBase,
        "_window_mask",
        lambda self, mask, query, key: causal_mask(query, key)[:, None],
    )
    assert failed(lab.run()) == [3]


def test_positions_cannot_be_decoded_without_the_mask(lab):
    result = lab.run(length=7, causal=False)
    assert result.law_holds
    assert not result.effect_is_present
    assert result.figures["outputs"] == pytest.approx([1 / 7] * 7)
    lab.plot(result).canvas.draw()


def changed_weights(change):
    def answer(d_model):
        w_k, w_v = keys_values(d_model)
        change(w_k, w_v)
        return w_k, w_v

    return answer


@pytest.mark.parametrize(
    ("change", "explanation"),
    [
        (lambda w_k, w_v: w_k.copy_(w_k.mT.clone()), "all keys must be equal"),
        (lambda w_k, w_v: w_k.fill_diagonal_(1), "all keys must be equal"),
        (lambda w_k, w_v: w_v.copy_(w_v.mT.clone()), "like column 2"),
        (lambda w_k, w_v: w_v.mul_(2), "like column 2"),
        (lambda w_k, w_v: w_v[1].fill_(1), "Only column 1 of W_V"),
        (lambda w_k, w_v: w_v.fill_(math.nan), "like column 2"),
    ],
)
def test_wrong_answers_fail_with_an_explanation(lab, change, explanation):
    checks = [check for check in lab.exercise.grade(changed_weights(change)) if not check.passed]
    assert explanation in checks[0].message
    assert "a random W_Q" in checks[0].message


@pytest.mark.parametrize(
    "change",
    [lambda w_k, w_v: w_k.zero_(), lambda w_k, w_v: w_k[0].copy_(torch.arange(w_k.shape[1]))],
)
def test_equivalent_answers_pass(lab, change):
    assert all(check.passed for check in lab.exercise.grade(changed_weights(change)))
