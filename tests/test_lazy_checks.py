"""Types and tensor shapes of the library's functions are checked in tests, where checks are enabled."""

import jaxtyping
import pytest
import torch

from regard.attention import attend
from tests import lazy_checks
from tests.lazy_checks import decorate_lazily


def test_a_wrong_shape_raises_an_error():
    scores = torch.zeros(2, 3, 5)
    attend(scores, torch.zeros(2, 5, 7))
    with pytest.raises(jaxtyping.TypeCheckError, match="values"):
        attend(scores, torch.zeros(2, 4, 7))  # one value too few


def test_nothing_is_decorated_where_checks_are_disabled(monkeypatch):
    calls = []

    def outer(x: int) -> int:
        return x

    def count(function):
        calls.append(function)
        return function

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    assert decorate_lazily(outer, typechecker=count) is outer  # a nested function
    outer.__qualname__ = "outer"
    decorated = decorate_lazily(outer, typechecker=count)
    assert decorated("not an integer") == "not an integer"
    assert calls == []
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", False)
    assert decorated(3) == decorated(3) == 3
    assert len(calls) == 2  # once: the parameters, and the result


def test_the_first_calls_of_each_test_are_checked(monkeypatch):
    def double(x: int) -> int:
        return 2 * x

    def check(function):
        def checked(x):
            checks.append(x)
            return function(x)

        return checked

    checks: list[int] = []
    monkeypatch.setattr(lazy_checks, "jaxtyped", lambda function, typechecker: check(function))
    decorated = decorate_lazily(double, typechecker=None)
    for number in range(1, 3):
        lazy_checks.start_test(is_checked=True)
        assert [decorated(x) for x in range(99)] == [2 * x for x in range(99)]
        assert checks == number * [*range(lazy_checks.CALLS)]
