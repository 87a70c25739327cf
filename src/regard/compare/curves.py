"""Learning curves: validation loss against training steps, mean over seeds with a min-max band."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def read_curve(folder: Path) -> dict[int, float]:
    """Step -> validation loss, from a run's metrics.jsonl."""
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return {event["step"]: event["loss"] for event in events if event["event"] == "validation"}


def draw_curves(systems: Mapping[str, Sequence[Path]], out: Path, theme: str = "light") -> None:
    """Write `out`/curves.png."""
    from regard.diagrams import save
    from regard.diagrams.charts import Line, chart

    lines = []
    for label, folders in systems.items():
        curves = [read_curve(folder) for folder in folders]
        # Runs may stop early at different steps: only steps that every seed has reached are drawn.
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        lines.append(Line(label, steps, [[curve[step] for curve in curves] for step in steps]))
    seeds = max(len(folders) for folders in systems.values())
    figure = chart(
        {"validation loss (nats per token)": lines},
        x_label="training steps",
        title="Learning curves",
        note="mean over seeds; band: minimum to maximum" if seeds > 1 else "",
        theme=theme,
    )
    save(figure, out / "curves.png")
