"""One check over many named cases, which names the case that fails."""

import math
from collections.abc import Mapping
from typing import Literal

from regard.labs.lab import Check


def check_cases(
    name: str,
    values: Mapping[str, float],
    relation: Literal["=", "<=", ">="],
    expected: float,
    tolerance: float = 0.0,
    hint: str = "In the case {}.",
) -> Check:
    """`Check.worst` over named cases; {} in the hint becomes the name of the worst case."""
    worst = Check.worst(name, values.values(), relation, expected, tolerance)
    case = next((case for case, x in values.items() if x == worst.measured or math.isnan(x)), "")
    hint = worst.hint or hint.format(case)
    return Check(name, worst.measured, relation, expected, tolerance, hint)
