"""Scaling: fitted exponents and byte counts are correct, and stored attention weights are detected."""

import time

import numpy as np
import pytest
import torch

from regard import UserError
from regard.attention import heads
from regard.attention.scores import ScaledDot
from regard.labs.measurements.profiling import PowerLaw, peak_memory, thread_seconds
from regard.labs.scaling import fold
from regard.models.state_space import StateSpace
from regard.statistics import critical_t

SIZES = [5, 7, 11, 19, 23]


@pytest.fixture
def timed_once(monkeypatch):
    """For what is no matter of time: no more rounds until the exponents of time are precise."""
    monkeypatch.setattr("regard.labs.scaling.EXTRA_ROUNDS", 0)


def test_exponent_is_recovered():
    fit = PowerLaw.fit(SIZES, [3 * x**1.7 for x in SIZES])
    assert fit.exponent == pytest.approx(1.7)
    assert fit.constant == pytest.approx(3)
    assert fit.interval < 1e-9
    assert fit.predict(13) == pytest.approx(3 * 13**1.7)


def test_no_growth_is_not_a_number():
    assert np.isnan(PowerLaw.fit(SIZES, [1, 2, 3, 4, 5], offset=2).exponent)


def test_interval_is_that_of_least_squares():
    values = [3.1, 4.7, 8.3, 12.9, 19.7]
    fit = PowerLaw.fit(SIZES, values)
    line, spread = np.polyfit(np.log(SIZES), np.log(values), 1, cov=True)
    assert fit.exponent == pytest.approx(line[0])
    assert fit.interval == pytest.approx(critical_t(3) * spread[0, 0] ** 0.5)


@pytest.mark.parametrize(("power", "fixed"), [(1, 13), (1, 0), (2, 0), (2, 300)])
def test_constant_offset_is_fitted(power, fixed):
    fit = PowerLaw.fit_with_offset(SIZES, [fixed + 7 * x**power for x in SIZES])
    assert fit.exponent == pytest.approx(power, abs=0.02)
    assert fit.predict(13) == pytest.approx(fixed + 7 * 13**power, rel=0.01)


def test_peak_memory_counts_live_bytes():
    floats = torch.ones(1000)
    assert peak_memory(lambda: floats * floats) == 4000
    assert peak_memory(lambda: floats * floats * floats) == 8000
    assert peak_memory(lambda: (floats.clone(), floats.clone(), floats.clone())) == 12000
    assert peak_memory(lambda: [None for _ in range(3) if floats.clone() is None]) == 4000
    assert peak_memory(lambda: floats[:500]) == 0


def test_time_is_cpu_time_of_this_thread():
    x = torch.randn(307, 307)
    some, more = thread_seconds(lambda: x @ x), thread_seconds(lambda: [x @ x for _ in range(50)])
    assert 0 < some < more
    assert thread_seconds(lambda: time.sleep(0.05)) < 0.02


def test_fused_kernel_that_stores_the_weights_is_detected(lab, small, timed_once, monkeypatch):
    def unfused(query, keys, values, mask=None, bias=None, dropout_p=0.0, scale=1.0):
        return (query @ keys.mT / query.shape[-1] ** 0.5).softmax(-1) @ values

    monkeypatch.setattr(heads, "attend_fused", unfused)
    monkeypatch.setattr("regard.labs.scaling.count_flops", lambda _: 0)  # most of the time
    result = lab.run(**small(lab) | {"repeats": 1})
    memory = [check for check in result.checks if check.name.startswith("memory")]
    assert [check.name for check in memory if not check.passed] == [
        "memory, fused attention: exponent of length"
    ]


def failed(checks):
    return [check.name.split(":")[0] for check in checks if not check.passed]


SHORT = {"min_length": 64, "max_length": 128, "lengths": 4, "repeats": 1}


@pytest.mark.parametrize("d_model", [2, 17, 128])
def test_law_holds_at_any_dimension(lab, timed_once, d_model):
    assert lab.run(**SHORT, d_model=d_model).law_holds


def test_scores_computed_twice_are_detected(lab, timed_once, monkeypatch):
    score = ScaledDot.forward
    monkeypatch.setattr(
        ScaledDot, "forward", lambda self, q, k: (score(self, q, k) + score(self, q, k)) / 2
    )
    assert failed(lab.run(**SHORT).law) == ["naive attention"]


def test_state_space_that_is_not_linear_is_detected(lab, timed_once, monkeypatch):
    forward = StateSpace.forward

    def quadratic(self, x):
        return forward(self, x)[0] + (x @ x.mT) @ x

    monkeypatch.setattr(StateSpace, "forward", quadratic)
    assert failed(lab.run(**SHORT).law) == ["state space"]


def test_lengths_too_close(lab):
    with pytest.raises(
        UserError, match="max_length must be at least twice min_length: 2000, not 1792"
    ):
        lab.run(min_length=1000)


def without_correction(running_max, denominator, numerator, scores, values):
    """Does not rescale the old sums to the new maximum."""
    new = max(running_max, float(scores.max()))
    weights = (scores - new).exp()
    return new, denominator + float(weights.sum()), numerator + weights @ values


def without_max(running_max, denominator, numerator, scores, values):
    """Correct, but overflows."""
    weights = scores.exp()
    scale = torch.tensor(running_max).double().exp()
    return 0.0, float(denominator * scale + weights.sum()), numerator * scale + weights @ values


def last_block_only(running_max, denominator, numerator, scores, values):
    """Ignores all blocks but the last."""
    return fold(float(scores.min()), 0.0, numerator * 0, scores, values)


@pytest.mark.parametrize(
    ("wrong", "case"),
    [(without_correction, "increasing"), (without_max, "thousands"), (last_block_only, "two")],
)
def test_wrong_answers_fail_with_an_explanation(lab, wrong, case):
    messages = [check.message for check in lab.exercise.grade(wrong) if not check.passed]
    assert any(case in message and "overflows" in message for message in messages)


def test_equivalent_answer_passes(lab):
    """The maximum need not be tracked exactly: any number near it works."""

    def shifted(running_max, denominator, numerator, scores, values):
        new, denominator, numerator = fold(running_max, denominator, numerator, scores, values)
        factor = torch.tensor(0.5).double().exp()
        return new - 0.5, float(denominator * factor), numerator * factor

    assert all(check.passed for check in lab.exercise.grade(shifted))
