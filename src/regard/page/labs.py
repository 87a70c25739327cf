"""Labs for a page, which has no Python: each is run at export, on a grid of values of its parameters.

Values of a parameter are its default, smaller and larger ones, and the one at which the effect is absent. All
combinations are measured where they are few; else one parameter varies at a time.
"""

import base64
import gzip
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from regard import documents
from regard.diagrams.themes import THEMES
from regard.errors import UserError
from regard.labs import LABS, Check, Lab, Result
from regard.labs.lab import Value, format_number
from regard.labs.report import changed_parameters, format_cells, lab_command
from regard.page.plots import Glyphs, draw_svg, palette

SEED = 0
MOST_POINTS = 36  # of one lab
STEPS = ((0.25, 0.5, 2, 4), (0.5, 2))  # factors of the default: many, or few
DECADES = 1e4  # a parameter with so wide a range changes by powers of ten instead
Point = dict[str, Value]


def quick_labs() -> list[Lab]:
    """Those that train and time nothing."""
    return [lab for lab in LABS.values() if not lab.quick]


# --- the grid -------------------------------------------------------------------------------------


def choose_points(lab: Lab) -> list[Point]:
    """The settings to measure, the default first: a product of values, or one parameter at a time."""
    many, few = (dict(list_values(lab, steps)) for steps in STEPS)
    default, absent = (lab.parameters(**chosen).model_dump() for chosen in ({}, lab.absent))
    grids = all_combinations(many), all_combinations(few), one_at_a_time(default, many)
    for grid in (*grids, one_at_a_time(default, few)):
        found = [default, absent]
        for point in filter(lambda point: is_valid(lab, point), grid):
            found += [point] if point not in found else []
            if len(found) > MOST_POINTS:
                break
        else:
            return found
    raise AssertionError(f"lab {lab.name} has too many parameters for {MOST_POINTS} points")


def all_combinations(values: Mapping[str, Sequence[Value]]) -> Iterator[Point]:
    return (dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


def one_at_a_time(default: Point, values: Mapping[str, Sequence[Value]]) -> Iterator[Point]:
    return (default | {name: value} for name, listed in values.items() for value in listed)


def is_valid(lab: Lab, point: Point) -> bool:
    try:
        lab.validate_parameters(point)
    except UserError:
        return False  # more keys than dimensions, heads that groups do not divide
    return True


def list_values(lab: Lab, steps: Sequence[float]) -> Iterator[tuple[str, list[Value]]]:
    """Each parameter with its values in order, derived from its default and its range."""
    for name, field in lab.parameters.model_json_schema().get("properties", {}).items():
        default = field["default"]
        if field["type"] == "boolean":
            values = {False, True}
        elif "enum" in field:
            values = set(field["enum"])
        elif field["type"] == "string":
            values = {default}
        else:
            values = {default, *scale(field, steps)}
        values |= {lab.absent[name]} if name in lab.absent else set()
        yield name, [value for value in sorted(values) if is_valid(lab, {name: value})]


def scale(field: Mapping[str, Any], steps: Sequence[float]) -> Iterator[Value]:
    """The default of a number times each step, within its range."""
    default, whole = field["default"], field["type"] == "integer"
    least, most = field.get("minimum", 0), field.get("maximum", math.inf)
    if any(bound > 0 and DECADES <= most / bound < math.inf for bound in (default, least)):
        steps = [10 ** math.copysign(1 if 0.3 < step < 3 else 2, step - 1) for step in steps]
    multiple = field.get("multipleOf", 1)
    for step in steps:
        value = min(max(default * step, least), most)
        yield math.ceil(value / multiple) * multiple if whole else float(f"{value:.6g}")


# --- what the page gets ---------------------------------------------------------------------------


def measure_labs(
    labs: Sequence[Lab], report: Callable[[int, int, str], None] | None = None
) -> dict[str, Any]:
    """The labs as data for a page; `report(done, total, lab)` is called before each measurement.

    Labs take turns, so that the time of what is done tells the time of what is left.
    """
    points = {lab.name: choose_points(lab) for lab in labs}
    measured: dict[str, list[dict[str, Any]]] = {lab.name: [] for lab in labs}
    total = sum(map(len, points.values()))
    glyphs: Glyphs = {}
    turns = [(turn, lab, point) for lab in labs for turn, point in enumerate(points[lab.name])]
    for done, (_, lab, point) in enumerate(sorted(turns, key=lambda one: one[0])):
        if report is not None:
            report(done, total, lab.name)
        result = lab.run(SEED, **point)
        plot = draw_svg(lab, result, glyphs)
        measured[lab.name].append(describe_result(lab, result) | {"plot": plot})
    return {
        "labs": [
            describe_lab(lab, points[lab.name]) | {"results": compress(measured[lab.name])}
            for lab in labs
        ],
        "glyphs": compress(glyphs),
        "palettes": {name: palette(theme) for name, theme in THEMES.items()},
        "seed": SEED,
    }


def describe_lab(lab: Lab, points: Sequence[Point]) -> dict[str, Any]:
    """What is the same at every point, and the points: indices into the values of each parameter."""
    schema = lab.parameters.model_json_schema().get("properties", {})
    values = {name: sorted({point[name] for point in points}) for name in schema}
    parameters = [
        {
            "name": name,
            "description": field.get("description", ""),
            "values": values[name],
            "default": values[name].index(field["default"]),
        }
        for name, field in schema.items()
    ]
    return {
        "name": lab.name,
        "claim": lab.claim,
        "derivation": lab.derivation.strip(),
        "parameters": parameters,
        "points": [[values[name].index(point[name]) for name in schema] for point in points],
        "complete": len(points) == math.prod(map(len, values.values())),
    }


def describe_result(lab: Lab, result: Result) -> dict[str, Any]:
    return {
        "law": [describe_check(check) for check in result.law],
        "effect": [describe_check(check) for check in result.effect],
        "law_holds": result.law_holds,
        "effect_is_present": result.effect_is_present,
        "columns": list(result.table.columns),
        "rows": format_cells(result),
        "notes": list(result.notes),
        "command": lab_command(lab, result.seed, changed_parameters(lab, result)),
    }


def describe_check(check: Check) -> dict[str, Any]:
    tolerance = f"{check.tolerance:.2g}" if check.tolerance else ""
    return {
        "name": check.name,
        "measured": format_number(check.measured),
        "relation": check.relation,
        "expected": format_number(check.expected),
        "tolerance": tolerance,
        "passed": check.passed,
        "hint": "" if check.passed else check.hint,
    }


def compress(data: Any) -> str:
    """JSON, gzipped, in base64; the same data gives the same text."""
    text = documents.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode("ascii")
