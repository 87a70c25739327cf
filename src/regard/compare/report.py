"""What a comparison leaves: results.json, table.md, table.csv, table.tex, curves.png."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard import files
from regard.compare.curves import draw_curves
from regard.compare.plan import Run
from regard.compare.statistics import Summary, paired_p
from regard.errors import UserError
from regard.text import corpus

COLUMNS = (
    ("system", "system"),
    ("bleu_lower", "BLEU lower"),
    ("variance", "variance"),
    ("interval", "95 % CI"),
    ("p", "p"),
    ("chrf", "chrF"),
    ("val_loss", "validation loss"),
    ("val_loss_variance", "variance"),
    ("perplexity", "perplexity"),
    ("parameters", "parameters"),
    ("training_seconds", "training s"),
    ("tokens_per_second", "tokens/s"),
)


def write_report(
    runs: Sequence[Run], split: str, command: str, failed: Sequence[str], out: Path
) -> str:
    """Write everything to `out`; the Markdown table. A run that failed is left out and told."""
    systems: dict[str, list[Run]] = {}
    for run in runs:
        if (run.folder / f"evaluation-{split}.json").is_file():
            systems.setdefault(run.system.label, []).append(run)
    if not systems:
        raise UserError(f"no run came to an end, so there is no table: {failed[0]}")
    runs = [run for mine in systems.values() for run in mine]
    references = [target for _, target in corpus.load(runs[0].config.data)[split]]
    results = [collect(label, mine, split) for label, mine in systems.items()]
    for result in results[1:]:
        if len(result["outputs"]) == len(results[0]["outputs"]) and same_data(runs):
            result["p"] = paired_p(results[0]["outputs"], result["outputs"], references)
    first = json.loads((runs[0].folder / "card.json").read_text("utf-8"))
    notes = {
        "command": command,
        "split": split,
        "device": first["device"],
        "versions": first["versions"],
        "baseline": results[0]["system"],
        "signature": results[0]["signature"],
        "failed": list(failed),
    }
    rows = [[shown(result, key) for key, _ in COLUMNS] for result in results]
    heads = [head for _, head in COLUMNS]
    table = markdown(heads, rows, notes, len(systems[results[0]["system"]]))
    files.write(out / "table.md", table)
    files.write(out / "table.csv", comma_separated(heads, rows))
    files.write(out / "table.tex", latex(heads, rows))
    for result in results:
        del result["outputs"]
    files.write(out / "results.json", json.dumps({**notes, "systems": results}, indent=1) + "\n")
    draw_curves({label: [run.folder for run in mine] for label, mine in systems.items()}, out)
    return table


def same_data(runs: Sequence[Run]) -> bool:
    return all(run.config.data == runs[0].config.data for run in runs)


def collect(label: str, runs: Sequence[Run], split: str) -> dict[str, Any]:
    """The figures of one system, with those of each of its runs."""
    cards = [json.loads((run.folder / "card.json").read_text("utf-8")) for run in runs]
    files_ = [run.folder / f"evaluation-{split}.json" for run in runs]
    found = [json.loads(file.read_text("utf-8")) for file in files_]
    greedy = [evaluation["results"][0] for evaluation in found]
    return {
        "system": label,
        "summary": {
            "bleu_lower": asdict(Summary.of([r["bleu_lower"] for r in greedy])),
            "bleu": asdict(Summary.of([r["bleu"] for r in greedy])),
            "chrf": asdict(Summary.of([r["chrf"] for r in greedy])),
            "exact_match": asdict(Summary.of([r["exact_match"] for r in greedy])),
            "val_loss": asdict(Summary.of([c["figures"]["val_loss"] for c in cards])),
            "perplexity": asdict(Summary.of([e["perplexity"] for e in found])),
            **{
                name: asdict(Summary.of([c["figures"][name] for c in cards]))
                for name in ("parameters", "training_seconds", "tokens_per_second")
            },
        },
        "p": None,
        "signature": greedy[0]["signatures"]["bleu_lower"],
        "runs": [
            {
                "seed": run.seed,
                "figures": card["figures"],
                "results": [
                    {
                        key: value
                        for key, value in result.items()
                        if key not in ("outputs", "lengths")
                    }
                    for result in evaluation["results"]
                ],
            }
            for run, card, evaluation in zip(runs, cards, found, strict=True)
        ],
        "outputs": [result["outputs"] for result in greedy],
    }


def shown(result: dict[str, Any], key: str) -> str:
    """One cell of the table."""
    summary = result["summary"]
    match key:
        case "system":
            return result["system"]
        case "p":
            return "" if result["p"] is None else f"{result['p']:.3f}"
        case "variance" | "interval":
            value = summary["bleu_lower"][key]
            sign = "± " if key == "interval" else ""
            return "" if value is None else f"{sign}{value:.3f}"
        case "val_loss_variance":
            value = summary["val_loss"]["variance"]
            return "" if value is None else f"{value:.5f}"
        case "parameters" | "tokens_per_second" | "training_seconds":
            return f"{summary[key]['mean']:,.0f}"
        case "val_loss" | "perplexity":
            return f"{summary[key]['mean']:.3f}"
        case _:
            return f"{summary[key]['mean']:.2f}"


def markdown(
    heads: Sequence[str], rows: Sequence[Sequence[str]], notes: dict[str, Any], seeds: int
) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [heads, *rows]]
    lines.insert(1, "|---" + "|---:" * (len(heads) - 1) + "|")
    told = (
        f"\n{seeds} seeds; {notes['split']} split, greedy; sacreBLEU `{notes['signature']}`; "
        f"p: paired bootstrap against {notes['baseline']}, the largest over seeds; "
        f"{notes['device']}, PyTorch {notes['versions']['torch']}.\n\n    {notes['command']}\n"
    )
    told += "".join(f"\nFailed: {line}\n" for line in notes["failed"])
    return "\n".join(lines) + "\n" + told


def comma_separated(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([heads, *rows])
    return text.getvalue()


def latex(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A booktabs table."""
    escape = str.maketrans({sign: f"\\{sign}" for sign in "%_&#${}"} | {"±": r"$\pm$"})
    body = [" & ".join(cell.translate(escape) for cell in row) + r" \\" for row in [heads, *rows]]
    columns = "l" + "r" * (len(heads) - 1)
    top = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", body[0], r"\midrule"]
    return "\n".join([*top, *body[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"
