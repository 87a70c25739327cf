"""Learning curves: validation loss against steps, the mean over seeds, and a band from worst to best."""

import json
from collections.abc import Sequence
from pathlib import Path


def read_curve(folder: Path) -> dict[int, float]:
    """Step -> validation loss, from a run's metrics.jsonl."""
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return {event["step"]: event["loss"] for event in events if event["event"] == "validation"}


def draw_curves(systems: dict[str, Sequence[Path]], out: Path) -> None:
    """`out`/curves.png"""
    from matplotlib.figure import Figure

    from regard.diagrams import save

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for label, folders in systems.items():
        curves = [read_curve(folder) for folder in folders]
        # Early stopping may end one run before another: a point needs every seed.
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        values = [[curve[step] for curve in curves] for step in steps]
        (line,) = axes.plot(steps, [sum(v) / len(v) for v in values], label=label, linewidth=1.6)
        low, high = [min(v) for v in values], [max(v) for v in values]
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel("training steps")
    axes.set_ylabel("validation loss, nats a token")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False, fontsize="small")
    save(figure, out / "curves.png")
