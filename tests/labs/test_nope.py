"""NoPE: 1, 1/2, 1/3, .. through the causal mask alone; a leak, a position or no mask is noticed."""

import pytest
import torch

from regard.attention import POSITIONS, SCORES, causal_mask
from regard.attention.heads import ManyHeads
from regard.labs import nope
from regard.labs.nope import keys_values


def failed(result):
    return [number for number, check in enumerate(result.checks) if not check.passed]


def test_one_half_third(lab):
    found = lab.run(length=7, width=5, trials=3).figures
    assert found["outputs"] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6, 1 / 7])
    assert found["without_mask"] == pytest.approx([1 / 7] * 7)
    assert found["lengths"] == [1, 2, 3, 5, 7]


def test_short_and_long(lab):
    shortest = lab.run(length=2, width=2, trials=1)
    assert shortest.passed
    lab.plot(shortest).canvas.draw()
    assert lab.run(length=97).passed


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_it_holds_for_other_scores(lab, monkeypatch, score):
    """All that counts is that equal keys have equal scores."""
    monkeypatch.setitem(SCORES, "scaled-dot", SCORES[score])
    assert lab.run().passed


def test_one_leaked_token_is_noticed(lab, monkeypatch):
    monkeypatch.setattr(nope, "causal_mask", lambda query, key: causal_mask(query + 1, key))
    assert failed(lab.run()) == [0, 1]


def test_a_position_is_noticed(lab, monkeypatch):
    monkeypatch.setitem(POSITIONS, "none", POSITIONS["alibi"])
    assert failed(lab.run()) == [0, 1, 3, 4]


def test_a_mask_nobody_asked_for_is_noticed(lab, monkeypatch):
    monkeypatch.setattr(
        ManyHeads, "_mask", lambda self, mask, query, key: causal_mask(query, key)[:, None]
    )
    assert failed(lab.run()) == [3, 4]


def _with(change):
    def changed(width):
        w_k, w_v = keys_values(width)
        change(w_k, w_v)
        return w_k, w_v

    return changed


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda w_k, w_v: w_k.copy_(w_k.mT.clone()), "all keys must be alike"),
        (lambda w_k, w_v: w_k.fill_diagonal_(1), "all keys must be alike"),
        (lambda w_k, w_v: w_v.copy_(w_v.mT.clone()), "as column 2 is"),
        (lambda w_k, w_v: w_v.mul_(2), "as column 2 is"),
        (lambda w_k, w_v: w_v[1].fill_(1), "Only column 1 of W_V"),
    ],
)
def test_wrong_answers_fail_with_a_word_of_why(lab, change, why):
    remarks = [one for one in lab.exercise.grade(_with(change)) if not one.passed]
    assert why in remarks[0].message
    assert "a random W_Q" in remarks[0].message


@pytest.mark.parametrize(
    "change",
    [lambda w_k, w_v: w_k.zero_(), lambda w_k, w_v: w_k[0].copy_(torch.arange(w_k.shape[1]))],
)
def test_other_right_answers_pass(lab, change):
    assert all(remark.passed for remark in lab.exercise.grade(_with(change)))
