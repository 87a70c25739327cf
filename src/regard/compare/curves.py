"""Learning curves: validation loss against training steps, mean over seeds with a min-max band."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from regard import documents, schemas


def read_curve(folder: Path) -> dict[int, float]:
    """Step -> validation loss, from a run's metrics.jsonl."""
    events = documents.read_lines(folder / "metrics.jsonl", schemas.event_schema)
    return {event["step"]: event["loss"] for event in events if event["event"] == "validation"}


def draw_curves(systems: Mapping[str, Sequence[Path]], out: Path, theme: str = "light") -> None:
    """Write `out`/curves.png; a system without a validation in all of its logs has no curve."""
    from regard.diagrams import save
    from regard.diagrams.charts import Line, chart

    lines = []
    for label, folders in systems.items():
        curves = [read_curve(folder) for folder in folders]
        # Runs may stop early at different steps: only steps that every seed has reached are drawn.
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        if steps:
            lines.append(Line(label, steps, [[curve[step] for curve in curves] for step in steps]))
    if not lines:
        return
    seeds = max(len(folders) for folders in systems.values())
    figure = chart(
        {"validation loss (nats per token)": lines},
        x_label="training steps",
        title="Learning curves",
        note="mean over seeds; band: minimum to maximum" if seeds > 1 else "",
        theme=theme,
    )
    save(figure, out / "curves.png")
