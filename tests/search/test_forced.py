"""Forced decoding: a given output has the log-probability that one step at a time gives it."""

import math

import pytest

from regard.errors import UserError
from regard.search.forced import ScoredPair


def test_score_and_perplexity_of_a_pair() -> None:
    pair = ScoredPair(["a"], ["b", "<end>"], [math.log(0.5), math.log(0.125)])
    assert pair.score == pytest.approx(math.log(1 / 16))
    assert pair.perplexity == pytest.approx(4)
    with pytest.raises(UserError, match=r"score\(pairs, attention=True\)"):
        pair.attention  # noqa: B018
    assert ScoredPair([], ["x"], [-1e9]).perplexity == math.exp(700)  # no overflow
