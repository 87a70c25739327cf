"""Ablations for a person to read: a table, what it says in a sentence, and a picture."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console

from regard.evaluation.ablation import END, MOST, RANDOM, Row
from regard.evaluation.report import table

NAMES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
SHORT = {
    f"{MOST} masked": "no top word",
    f"{RANDOM} masked": "no random word",
    f"{END} masked": "no end token",
}
SURE = 2  # standard errors


def show(found: dict[str, Any], console: Console) -> None:
    """A row a head, or a row a change of the weights, against the untouched model."""
    rows, untouched = found["rows"], found["untouched"]
    by_head, scored = found["what"] == "heads", "bleu_lower" in untouched
    heading = "each head silenced, one at a time" if by_head else "its weights replaced or masked"
    console.print(f"\nWhat attention is worth: {heading}", style="bold", highlight=False)
    columns = ["mechanism", "layer", "head" if by_head else "weights", "loss", "change", "±"]
    columns += ["BLEU lower", "change"] if scored else []
    body = [["untouched", "", "", f"{untouched['loss']:.4f}", "", ""]]
    body[0] += [f"{untouched['bleu_lower']:.2f}", ""] if scored else []
    body += [cells(row, scored) for row in rows]
    if by_head:  # all in 80 columns
        columns.append("")
        drawn = lengths([row["loss_change"] for row in rows], 8 if scored else 20)
        body = [[*row, "█" * length] for row, length in zip(body, [0, *drawn], strict=True)]
    console.print(table(tuple(columns), body))
    legend = "loss: nats a token; ±: standard error of its change"
    if "words" in found:
        legend += (
            "\ntop word: the source word with most weight for a target token, masked for it alone"
        )
    console.print(legend, style="dim", highlight=False)
    for line in verdicts(found):
        console.print(line, highlight=False)


def lengths(values: list[float], most: int) -> list[int]:
    """Of bars, the largest `most` long; none for what is below zero."""
    largest = max(1e-9, *values)
    return [round(most * max(0.0, value) / largest) for value in values]


def cells(row: Row, scored: bool) -> list[str]:
    error, bleu = row["loss_error"], row.get("bleu_lower")
    made = [
        row["mechanism"],
        "all" if row["layer"] is None else str(row["layer"]),
        str(row.get("head", SHORT.get(row["change"], row["change"]))),
        f"{row['loss']:.4f}",
        f"{row['loss_change']:+.4f}",
        "" if error is None else f"{error:.4f}",
    ]
    if scored:
        made += ["", ""] if bleu is None else [f"{bleu:.2f}", f"{row['bleu_lower_change']:+.2f}"]
    return made


def line_of(row: Row) -> str:
    """A row where there is no table: while the work goes on."""
    where = "all layers" if row["layer"] is None else f"layer {row['layer']}"
    head = f", head {row['head']}" if "head" in row else ""
    return f"{row['mechanism']}, {where}{head}, {row['change']}: loss {row['loss']:.4f}"


def verdicts(found: dict[str, Any]) -> list[str]:
    """What the rows say, in a sentence or two."""
    rows = found["rows"]
    if found["what"] == "heads":
        worst = max(rows, key=lambda row: row["loss_change"])
        idle = [row for row in rows if row["loss_change"] <= SURE * (row["loss_error"] or 0.0)]
        return [
            f"Most needed: {mechanism(worst)}, layer {worst['layer']}, head {worst['head']} "
            f"({worst['loss_change']:+.4f}). Not missed when silenced alone (no rise beyond {SURE} "
            f"standard errors): {len(idle)} of {len(rows)}."
        ]
    if "words" not in found:
        return []
    words, changes = found["words"], {row["change"]: row["loss_change"] for row in rows}
    points = words["most_over_random"] > SURE * (words["most_over_random_error"] or 0.0)
    return [
        f"Hiding the word looked at most costs {changes[f'{MOST} masked']:+.4f}, hiding another one "
        f"{changes[f'{RANDOM} masked']:+.4f}: the weights "
        + ("point at what matters." if points else "do not point at what matters."),
        f"For {words['end_most_attended']:.1%} of the target tokens the end token gets most weight.",
    ]


def mechanism(row: Row) -> str:
    name: str = row["mechanism"]
    return NAMES.get(name, name)


# --- the picture ----------------------------------------------------------------------------------


def draw(path: Path, found: dict[str, Any], where: str, theme: str) -> None:
    """Heads: a map of layers and heads for each mechanism. Attention: bars."""
    from regard.diagrams import save
    from regard.diagrams.ablation import bars, head_map

    untouched = found["untouched"]
    note = f"{where}, {found['sentences']:,} sentences; untouched: loss {untouched['loss']:.3f}"
    if found["what"] == "heads":
        groups = grouped(found["rows"], mechanism)
        maps = {name: head_array(rows) for name, rows in groups.items()}
        title = "Which heads matter? The loss with one of them silenced"
        save(head_map(maps, title=title, note=note, theme=theme), path)
    else:
        groups = grouped(found["rows"], lambda row: f"{mechanism(row)}: {kind(row)}")
        drawn = {name: [bar(row, rows) for row in rows] for name, rows in groups.items()}
        note += f", BLEU {untouched['bleu_lower']:.1f} (greedy, lower-cased)"
        title = "Is what we see what matters? The loss with other attention weights"
        save(bars(drawn, title=title, note=note, theme=theme), path)


def grouped(rows: list[Row], name: Any) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(name(row), []).append(row)
    return groups


def kind(row: Row) -> str:
    equal = row["change"] == "uniform"
    return "equal weights" if equal else "one source word hidden from each target token"


def bar(row: Row, group: list[Row]) -> Any:
    """Strong: all layers at once, and the word that is looked at; paler: what to compare it with."""
    from regard.diagrams.ablation import Bar, signed

    label, strong = row["change"].removesuffix(" masked"), row["change"] == f"{MOST} masked"
    if row["change"] == "uniform":
        label = "all layers" if row["layer"] is None else f"layer {row['layer']}"
        strong = row is group[-1]
    note = ""
    if "bleu_lower" in row:
        note = f"BLEU {row['bleu_lower']:.1f} ({signed(row['bleu_lower_change'], 1)})"
    return Bar(label, row["loss_change"], SURE * (row["loss_error"] or 0.0), note, strong)


def head_array(rows: list[Row]) -> Float[np.ndarray, "layer head"]:
    """The rises. Where a layer has fewer heads than another, NaN."""
    shape = max(row["layer"] for row in rows), max(row["head"] for row in rows)
    array = np.full(shape, np.nan)
    for row in rows:
        array[row["layer"] - 1, row["head"] - 1] = row["loss_change"]
    return array
