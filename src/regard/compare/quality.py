"""Quality against a number that was varied: the share of the data, say, or a width."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.compare.plan import System, short

LEAST = 3  # values that make a line


def numbers(systems: Sequence[System]) -> tuple[str, dict[str, float]] | None:
    """(the one varied key that takes three numbers or more, its value by system), if there is one."""
    found: dict[str, dict[str, float]] = {}
    words: set[str] = set()
    for system in systems:
        for setting in system.settings:
            key, _, text = setting.partition("=")
            value = number(text)
            if value is None:
                words.add(key)
            else:
                found.setdefault(key, {})[system.label] = value
    axes = [
        (key, values)
        for key, values in found.items()
        if key not in words and len(set(values.values())) >= LEAST
    ]
    return axes[0] if len(axes) == 1 else None


def number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def line_of(system: System, key: str) -> str:
    """What sets a line apart from the others: everything but the number along the axis."""
    others = [short(setting) for setting in system.settings if setting.partition("=")[0] != key]
    return ", ".join([Path(system.preset).stem, *others])


def draw_quality(
    systems: Sequence[System], results: Sequence[dict[str, Any]], out: Path, theme: str = "light"
) -> Path | None:
    """`out`/quality.png, where exactly one varied key takes three numbers or more."""
    path, axis = out / "quality.png", numbers(systems)
    if axis is None:
        path.unlink(missing_ok=True)  # of an earlier comparison
        return None
    from regard.diagrams import save
    from regard.diagrams.charts import Line, chart

    key, value = axis
    known = {result["system"]: result["runs"] for result in results}
    lines: dict[str, list[System]] = {}
    for system in sorted(dict.fromkeys(systems), key=lambda system: value[system.label]):
        if system.label in known:
            lines.setdefault(line_of(system, key), []).append(system)
    measures = {
        "BLEU lower": lambda run: run["results"][0]["bleu_lower"],
        "bits per character (lower is better)": lambda run: run["bits_per_character"],
    }
    panels = {
        y_label: [
            Line(
                name,
                [value[system.label] for system in mine],
                [[measure(run) for run in known[system.label]] for system in mine],
            )
            for name, mine in lines.items()
        ]
        for y_label, measure in measures.items()
    }
    seeds = max(len(runs) for runs in known.values())
    figure = chart(
        panels,
        x_label=key,
        title=f"Quality against {key}",
        note="points: seeds; line: their mean; band: least to greatest" if seeds > 1 else "",
        ticks=sorted(set(value.values())),
        points=True,
        theme=theme,
    )
    save(figure, path)
    return path
