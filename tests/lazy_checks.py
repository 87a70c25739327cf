"""Decorates functions with jaxtyping and beartype when they are first called in a checked test.

The import hook decorates every function where it is defined: all of the library in every test process, and a
nested function again at each call of the outer one. That took longer than the checks.

A test checks the first calls of each function: a search calls some thousands of times, with the same shapes.
"""

from collections.abc import Callable
from functools import partial, wraps
from types import FunctionType
from typing import Any

import jaxtyping
from jaxtyping import config, jaxtyped

CALLS = 10
_test = 0


def start_test(is_checked: bool) -> None:
    """Until the next test, check the first calls of each function, or none."""
    global _test
    _test += 1
    config.update("jaxtyping_disable", not is_checked)


def decorate_lazily(decorated: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """`jaxtyping.jaxtyped`, at the first call for which checks are enabled."""
    if decorated is None:
        return partial(decorate_lazily, typechecker=typechecker)
    if not isinstance(decorated, FunctionType):
        return jaxtyped(decorated, typechecker=typechecker)
    if config.jaxtyping_disable and "<locals>" in decorated.__qualname__:
        return decorated
    checked: Callable[..., Any] | None = None
    test, calls = 0, 0

    @wraps(decorated)
    def check_if_enabled(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked, test, calls
        if config.jaxtyping_disable:
            return decorated(*args, **kwargs)
        test, calls = _test, calls + 1 if test == _test else 1
        if calls > CALLS:
            return decorated(*args, **kwargs)
        if checked is None:
            checked = jaxtyped(decorated, typechecker=typechecker)
        return checked(*args, **kwargs)

    return check_if_enabled


def install() -> None:
    """The code that jaxtyping's import hook adds to a module looks this name up."""
    jaxtyping.jaxtyped = decorate_lazily
