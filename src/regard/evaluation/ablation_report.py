"""Ablation reports: a table, a summary in a sentence or two, and a figure."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from regard.evaluation.ablation import EOS_TOKEN, MOST_ATTENDED, RANDOM_OTHER, Row
from regard.evaluation.metrics import METRICS
from regard.evaluation.report import make_table
from regard.terminal import Console

NAMES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
SHORT = {
    f"{MOST_ATTENDED} masked": "top-1 masked",
    f"{RANDOM_OTHER} masked": "random masked",
    f"{EOS_TOKEN} masked": "EOS masked",
}
SIGNIFICANT = 2  # standard errors


def print_report(report: dict[str, Any], console: Console) -> None:
    """A table with one row per ablated head, or per intervention on the weights, after the baseline."""
    rows, baseline = report["rows"], report["baseline"]
    by_head, metric = report["kind"] == "heads", find_bleu(baseline)
    heading = "Head ablation: one head at a time" if by_head else "Attention ablation"
    console.print(f"\n{heading}", style="bold")
    columns = ["mechanism", "layer", "head" if by_head else "weights", "loss", "change", "±"]
    columns += [METRICS[metric].heading, "change"] if metric else []
    body = [["baseline", "", "", f"{baseline['loss']:.4f}", "", ""]]
    body[0] += [f"{baseline[metric]:.2f}", ""] if metric else []
    body += [table_row(row, metric) for row in rows]
    if by_head and not metric:  # fits in 80 columns
        columns.append("")
        lengths = bar_lengths([row["loss_change"] for row in rows], 20)
        body = [[*row, "█" * length] for row, length in zip(body, [0, *lengths], strict=True)]
    console.print(make_table(tuple(columns), body))
    legend = "loss: nats per token; ±: standard error of its change"
    if "token_masking" in report:
        legend += "\ntop-1: the most-attended source token of each target token"
    console.print(legend, style="dim")
    for line in summarise(report):
        console.print(line)


def bar_lengths(values: list[float], longest: int) -> list[int]:
    """Bar lengths in characters, `longest` for the largest value and 0 for negative ones."""
    largest = max(1e-9, *values)
    return [round(longest * max(0.0, value) / largest) for value in values]


def find_bleu(figures: Row) -> str | None:
    """The BLEU among the figures of a row: lowercased, on tokens, or none."""
    return next((name for name in ("bleu_lower", "bleu_tokens") if name in figures), None)


def table_row(row: Row, metric: str | None) -> list[str]:
    """The cells of a row, with its BLEU, if the baseline has one."""
    error = row["standard_error"]
    cells = [
        row["mechanism"],
        "all" if row["layer"] is None else str(row["layer"]),
        str(row.get("head", SHORT.get(row["intervention"], row["intervention"]))),
        f"{row['loss']:.4f}",
        f"{row['loss_change']:+.4f}",
        "" if error is None else f"{error:.4f}",
    ]
    if metric is not None:
        bleu, change = row.get(metric), row.get(f"{metric}_change")
        cells += ["", ""] if bleu is None else [f"{bleu:.2f}", f"{change:+.2f}"]
    return cells


def format_row(row: Row) -> str:
    """One row as a log line, for progress output."""
    layer = "all layers" if row["layer"] is None else f"layer {row['layer']}"
    head = f", head {row['head']}" if "head" in row else ""
    return f"{row['mechanism']}, {layer}{head}, {row['intervention']}: loss {row['loss']:.4f}"


def summarise(report: dict[str, Any]) -> list[str]:
    """The conclusions from the rows, in a sentence or two."""
    rows = report["rows"]
    if report["kind"] == "heads":
        worst = max(rows, key=lambda row: row["loss_change"])
        dispensable = [
            row
            for row in rows
            if row["loss_change"] <= SIGNIFICANT * (row["standard_error"] or 0.0)
        ]
        return [
            f"Most important: {mechanism_name(worst)}, layer {worst['layer']}, head {worst['head']} "
            f"({worst['loss_change']:+.4f}). No significant increase ({SIGNIFICANT} standard errors) "
            f"when ablated alone: {len(dispensable)} of {len(rows)}."
        ]
    if "token_masking" not in report:
        return []
    masking = report["token_masking"]
    changes = {row["intervention"]: row["loss_change"] for row in rows}
    most, random = changes[f"{MOST_ATTENDED} masked"], changes[f"{RANDOM_OTHER} masked"]
    threshold = SIGNIFICANT * (masking["most_minus_random_error"] or 0.0)
    is_faithful = masking["most_minus_random"] > threshold
    return [
        f"Masking the most-attended token costs {most:+.4f}, a random other token {random:+.4f}: "
        "the weights "
        + ("identify" if is_faithful else "do not identify")
        + " the tokens that matter.",
        f"For {masking['eos_most_attended']:.1%} of the target tokens, EOS has the largest weight.",
    ]


def mechanism_name(row: Row) -> str:
    name: str = row["mechanism"]
    return NAMES.get(name, name)


# --- figure ---------------------------------------------------------------------------------------


def draw(path: Path, report: dict[str, Any], label: str, theme: str) -> None:
    """Heads: a heat map of layers and heads for each mechanism. Attention: bars."""
    from regard.diagrams import save
    from regard.diagrams.ablation import bars, head_map

    baseline = report["baseline"]
    note = f"{label}, {report['sentences']:,} sentences; baseline: loss {baseline['loss']:.3f}"
    if report["kind"] == "heads":
        groups = group_rows(report["rows"], mechanism_name)
        maps = {name: head_array(rows) for name, rows in groups.items()}
        title = "Head ablation: increase in loss without each head"
        save(head_map(maps, title=title, note=note, theme=theme), path)
    else:
        groups = group_rows(report["rows"], group_heading)
        grouped_bars = {
            name: [make_bar(row, rows) for row in rows] for name, rows in groups.items()
        }
        metric = find_bleu(baseline) or ""
        kind = "on tokens" if metric == "bleu_tokens" else "lowercased"
        note += f", BLEU {baseline[metric]:.1f} (greedy, {kind})"
        title = "Attention ablation: increase in loss with uniform or masked weights"
        save(bars(grouped_bars, title=title, note=note, theme=theme), path)


def group_rows(rows: list[Row], key: Any) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def group_heading(row: Row) -> str:
    is_uniform = row["intervention"] == "uniform"
    change = "uniform weights" if is_uniform else "one source token masked for each target token"
    return f"{mechanism_name(row)}: {change}"


def make_bar(row: Row, group: list[Row]) -> Any:
    """Highlighted: all layers at once, and the most-attended token; paler: the comparisons."""
    from regard.diagrams.ablation import Bar, format_signed

    label = row["intervention"].removesuffix(" masked")
    highlighted = row["intervention"] == f"{MOST_ATTENDED} masked"
    if row["intervention"] == "uniform":
        label = "all layers" if row["layer"] is None else f"layer {row['layer']}"
        highlighted = row is group[-1]
    note = ""
    if metric := find_bleu(row):
        note = f"BLEU {row[metric]:.1f} ({format_signed(row[f'{metric}_change'], 1)})"
    error = SIGNIFICANT * (row["standard_error"] or 0.0)
    return Bar(label, row["loss_change"], error, note, highlighted)


def head_array(rows: list[Row]) -> Float[np.ndarray, "layer head"]:
    """The increases in loss; NaN where a layer has fewer heads than another."""
    shape = max(row["layer"] for row in rows), max(row["head"] for row in rows)
    array = np.full(shape, np.nan)
    for row in rows:
        array[row["layer"] - 1, row["head"] - 1] = row["loss_change"]
    return array
