"""Quality against a varied numeric setting, such as the fraction of the data or the model dimension."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard import files
from regard.compare.plan import System, short_label
from regard.evaluation.metrics import METRICS

MIN_VALUES = 3  # fewer do not make a line


def find_numeric_axis(systems: Sequence[System]) -> tuple[str, dict[str, float]] | None:
    """(key, value by system label) of the only key that varies over MIN_VALUES numbers or more, else None."""
    numeric: dict[str, dict[str, float]] = {}
    other: set[str] = set()
    for system in systems:
        for setting in system.settings:
            key, _, text = setting.partition("=")
            value = parse_number(text)
            if value is None:
                other.add(key)
            else:
                numeric.setdefault(key, {})[system.label] = value
    axes = [
        (key, values)
        for key, values in numeric.items()
        if key not in other and len(set(values.values())) >= MIN_VALUES
    ]
    return axes[0] if len(axes) == 1 else None


def parse_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def line_label(system: System, key: str) -> str:
    """The preset and all varied settings except the one on the x axis."""
    others = [
        short_label(setting) for setting in system.settings if setting.partition("=")[0] != key
    ]
    return ", ".join([Path(system.preset).stem, *others])


def draw_quality(
    systems: Sequence[System],
    results: Sequence[dict[str, Any]],
    out: Path,
    theme: str = "light",
    metric: str = "bleu_lower",
) -> Path | None:
    """Write `out`/quality.png if exactly one varied key takes MIN_VALUES numbers or more."""
    path, axis = out / "quality.png", find_numeric_axis(systems)
    if axis is None:
        files.remove(path)  # left by an earlier comparison
        return None
    from regard.diagrams import save
    from regard.diagrams.charts import Line, chart

    key, values = axis
    runs_of = {result["system"]: result["runs"] for result in results}
    lines: dict[str, list[System]] = {}
    for system in sorted(dict.fromkeys(systems), key=lambda system: values[system.label]):
        if system.label in runs_of:
            lines.setdefault(line_label(system, key), []).append(system)
    measures = {
        METRICS[metric].heading: lambda run: run["results"][0][metric],
        "bits per character (lower is better)": lambda run: run["bits_per_character"],
    }
    measures = {  # unknown tokens in the references: no bits per character
        y_label: measure
        for y_label, measure in measures.items()
        if all(measure(run) is not None for runs in runs_of.values() for run in runs)
    }
    panels = {
        y_label: [
            Line(
                name,
                [values[system.label] for system in group],
                [[measure(run) for run in runs_of[system.label]] for system in group],
            )
            for name, group in lines.items()
        ]
        for y_label, measure in measures.items()
        if all(measure(run) is not None for runs in runs_of.values() for run in runs)
    }
    seeds = max(len(runs) for runs in runs_of.values())
    figure = chart(
        panels,
        x_label=key,
        title=f"Quality against {key}",
        note="points: seeds; line: mean; band: minimum to maximum" if seeds > 1 else "",
        ticks=sorted(set(values.values())),
        points=True,
        theme=theme,
    )
    save(figure, path)
    return path
