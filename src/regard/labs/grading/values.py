"""The arguments and results of an exercise: describe, inspect and convert them."""

import cmath
from typing import Any

import torch
from torch import Tensor

from regard.labs.grading.worker.wire import Unsupported

INTEGER_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def summarize(value: Any) -> str:
    """A number or string as it is, anything larger as its type and shape."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return repr(value) if isinstance(value, int | str) else describe_type(value)


def describe_type(value: Any) -> str:
    """The type and shape of a value, in words."""
    match value:
        case None:
            return "None"
        case Tensor():
            tails = {torch.bool: " of booleans"} | dict.fromkeys(INTEGER_DTYPES, " of integers")
            tail = " of complex numbers" if value.is_complex() else tails.get(value.dtype, "")
            nonfinite = " with NaN" if value.isnan().any() else " with infinity"
            nonfinite = "" if value.isfinite().all() else nonfinite
            return f"a tensor {list(value.shape)}{tail}{nonfinite}"
        case bool():
            return "a boolean"
        case int() | float() | complex():
            return "a number" if cmath.isfinite(value) else f"{value}"
        case str():
            return "a string"
        case tuple() | list():
            parts = ", ".join(dict.fromkeys(map(describe_type, value[:50])))  # each type once
            return f"a {type(value).__name__} of {len(value)} ({parts})"
        case dict():
            return f"a dict with keys {', '.join(list(value)[:50])}"
        case Unsupported():
            return value.description
        case _:
            raise TypeError(f"cannot send a value of type {type(value).__name__} to the sandbox")


def count_numbers(value: Any) -> int:
    """The number of elements in a value."""
    match value:
        case Tensor():
            return value.numel()
        case tuple() | list():
            return sum(map(count_numbers, value))
        case dict():
            return sum(map(count_numbers, value.values()))
        case str():
            return len(value)
        case _:
            return 1


def has_nan(value: Any) -> bool:
    """Is there a NaN anywhere in a value?"""
    match value:
        case Tensor():
            return bool(value.isnan().any())
        case float() | complex():
            return cmath.isnan(value)
        case tuple() | list():
            return any(map(has_nan, value))
        case dict():
            return any(map(has_nan, value.values()))
        case _:
            return False


def cast_like(value: Any, like: Any) -> Any:
    """`value` with the dtype of `like`; numbers and one-element tensors are converted into each other.

    A value of another type or shape stays as it is: `grade` decides whether it can be used.
    """
    match value, like:
        case Tensor(), bool() | int() | float() if value.numel() == 1:
            return value.item()
        case int() | float(), Tensor() if like.ndim == 0:
            return like.new_tensor(value)
        case Tensor(), Tensor() if torch.can_cast(value.dtype, like.dtype):
            return value.to(like.dtype)
        case (tuple() | list(), tuple() | list()) if len(value) == len(like):
            return type(like)(cast_like(v, other) for v, other in zip(value, like, strict=True))
        case dict(), dict() if value.keys() == like.keys():
            return {key: cast_like(value[key], like[key]) for key in like}
        case _:
            return value
