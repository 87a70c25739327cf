"""Scaling: exponents are fitted right, bytes counted to the last, and weights that are kept noticed."""

import time

import numpy as np
import pytest
import torch

from regard import UserError
from regard.attention import heads
from regard.labs.profiling import PowerLaw, peak_memory, thread_seconds
from regard.labs.scaling import fold
from regard.statistics import T95

SIZES = [5, 7, 11, 19, 23]


def test_a_power_is_found():
    fit = PowerLaw.fit(SIZES, [3 * x**1.7 for x in SIZES])
    assert fit.exponent == pytest.approx(1.7)
    assert fit.constant == pytest.approx(3)
    assert fit.interval < 1e-9
    assert fit.predict(13) == pytest.approx(3 * 13**1.7)


def test_the_interval_is_that_of_least_squares():
    values = [3.1, 4.7, 8.3, 12.9, 19.7]
    fit = PowerLaw.fit(SIZES, values)
    line, spread = np.polyfit(np.log(SIZES), np.log(values), 1, cov=True)
    assert fit.exponent == pytest.approx(line[0])
    assert fit.interval == pytest.approx(T95[2] * spread[0, 0] ** 0.5)


@pytest.mark.parametrize(("power", "fixed"), [(1, 13), (1, 0), (2, 0), (2, 300)])
def test_what_is_fixed_is_told_from_what_grows(power, fixed):
    fit = PowerLaw.fit_with_offset(SIZES, [fixed + 7 * x**power for x in SIZES])
    assert fit.exponent == pytest.approx(power, abs=0.02)
    assert fit.predict(13) == pytest.approx(fixed + 7 * 13**power, rel=0.01)


def test_bytes_are_counted_while_they_are_held():
    floats = torch.ones(1000)
    assert peak_memory(lambda: floats * floats) == 4000
    assert peak_memory(lambda: floats * floats * floats) == 8000
    assert peak_memory(lambda: (floats.clone(), floats.clone(), floats.clone())) == 12000
    assert peak_memory(lambda: [None for _ in range(3) if floats.clone() is None]) == 4000
    assert peak_memory(lambda: floats[:500]) == 0


def test_only_this_threads_work_takes_time():
    x = torch.randn(307, 307)
    some, more = thread_seconds(lambda: x @ x), thread_seconds(lambda: [x @ x for _ in range(50)])
    assert 0 < some < more
    assert thread_seconds(lambda: time.sleep(0.05)) < 0.02


def test_a_fused_kernel_that_keeps_the_weights_is_noticed(lab, small, monkeypatch):
    def unfused(query, keys, values, mask=None, bias=None, dropped=0.0):
        return (query @ keys.mT / query.shape[-1] ** 0.5).softmax(-1) @ values

    monkeypatch.setattr(heads, "attend_fused", unfused)
    result = lab.run(**small(lab) | {"rounds": 1})
    memory = [check for check in result.checks if check.name.startswith("memory")]
    assert [check.name for check in memory if not check.passed] == [
        "memory, fused attention: exponent of length"
    ]


def test_lengths_that_hardly_differ(lab):
    with pytest.raises(UserError, match="longest must be twice shortest or more: 2000, not 1792"):
        lab.run(shortest=1000)


def summed(largest, total, gathered, scores, values):
    """Forgets that the old sums were taken with another largest score."""
    new = max(largest, float(scores.max()))
    weights = (scores - new).exp()
    return new, total + float(weights.sum()), gathered + weights @ values


def plain(largest, total, gathered, scores, values):
    """Right, but for what a number can hold."""
    weights = scores.exp()
    lifted = torch.tensor(largest).double().exp()
    return 0.0, float(total * lifted + weights.sum()), gathered * lifted + weights @ values


def forgetful(largest, total, gathered, scores, values):
    """Sees the last block alone."""
    return fold(float(scores.min()), 0.0, gathered * 0, scores, values)


@pytest.mark.parametrize(
    ("wrong", "where"), [(summed, "rising"), (plain, "thousands"), (forgetful, "two")]
)
def test_wrong_answers_fail_with_a_word_of_why(lab, wrong, where):
    failed = [remark.message for remark in lab.exercise.grade(wrong) if not remark.passed]
    assert any(where in told and "overflows" in told for told in failed)


def test_another_right_answer_passes(lab):
    """The largest score need not be tracked exactly: any number near it will do."""

    def shifted(largest, total, gathered, scores, values):
        new, total, gathered = fold(largest, total, gathered, scores, values)
        factor = torch.tensor(0.5).double().exp()
        return new - 0.5, float(total * factor), gathered * factor

    assert all(remark.passed for remark in lab.exercise.grade(shifted))
