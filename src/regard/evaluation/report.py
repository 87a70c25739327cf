"""Evaluation reports: tables for the terminal, and the outputs as TSV."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.table import Table

from regard import files
from regard.escaping import one_cell
from regard.evaluation.metrics import METRICS, select_metrics, sentence_bleu
from regard.evaluation.systems import list_systems
from regard.terminal import Console
from regard.text.references import ReferenceSet

ON_TOKENS = (
    "tokens: lower-cased and tokenised by Moses (data.preprocess); BLEU of detokenised text, chrF and TER "
    "are undefined"
)


def print_report(report: dict[str, Any], console: Console) -> None:
    """A table with one row per system, its tests, then the first system by source length."""
    names = [str(report[key]) for key in ("run", "split", "input") if report.get(key)]
    title = f"{', '.join(names)}: {report['sentences']:,} sentences"
    console.print(title, style="bold")
    if "perplexity" in report:
        print_likelihood(report, console)
    console.print()
    systems = list_systems(report)
    if not systems:
        console.print("language model: no translations, so no BLEU", style="dim")
        return
    console.print(quality_table(systems))
    first = next(iter(systems.values()))
    for name, signature in first["signatures"].items():
        console.print(f"{METRICS[name].heading}: {signature}", style="dim")
    on_tokens = first["bleu_tokens"] is not None
    if on_tokens:
        console.print(ON_TOKENS, style="dim")
    console.print()
    if "tests" in report:
        print_tests(report["tests"], console)
    unit = "source tokens" if "run" in report else "source words"
    metric = "bleu_tokens" if on_tokens else "chrf"
    metric = "exact_match" if report.get("is_synthetic") else metric
    console.print(length_table(systems, metric, unit))


def print_likelihood(report: dict[str, Any], console: Console) -> None:
    bits = report["bits_per_character"]
    console.print(
        f"perplexity {report['perplexity']:.3f}   bits per character "
        f"{'-' if bits is None else f'{bits:.3f}'}   "
        f"token accuracy {report['token_accuracy']:.2%}",
    )
    if bits is None:
        console.print(
            f"no bits per character: {report['unknown_tokens']:,} reference tokens are unknown, and "
            "their spelling has no probability",
            style="dim",
        )


def make_table(columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(box=None, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        table.add_row(*row)
    return table


def quality_table(systems: dict[str, dict[str, Any]]) -> Table:
    on_tokens = next(iter(systems.values()))["bleu_tokens"] is not None
    metrics = select_metrics(on_tokens)
    columns = ("system", *(measure.heading for measure in metrics.values()))
    if all("seconds" in result for result in systems.values()):
        columns += ("seconds", "sentences/s")
    rows = [[name, *quality_cells(result, metrics)] for name, result in systems.items()]
    return make_table(columns, [row[: len(columns)] for row in rows])


def quality_cells(result: dict[str, Any], metrics: Iterable[str]) -> list[str]:
    cells = [format_score(name, result[name]) for name in metrics]
    if "seconds" in result:  # not of another system's outputs
        speed = result["sentences"] / result["seconds"]
        cells += [f"{result['seconds']:.1f}", f"{speed:,.0f}"]
    return cells


def format_score(metric: str, value: float, sign: str = "") -> str:
    return format(value, f"{sign}.2%" if metric == "exact_match" else f"{sign}.2f")


def print_tests(tests: dict[str, Any], console: Console) -> None:
    """The difference of each system to the first, and its p, by every metric."""
    heading = f"Difference to {tests['baseline']}, and p of a paired bootstrap test"
    console.print(heading, style="bold")
    rows = [
        [
            test["system"] if number == 0 else "",
            METRICS[name].heading + (" (lower is better)" * METRICS[name].lower_is_better),
            format_score(name, test[name]["difference"], "+"),
            f"{test[name]['p']:.3f}",
        ]
        for test in tests["systems"]
        for number, name in enumerate(name for name in METRICS if name in test)
    ]
    console.print(make_table(("system", "metric", "difference", "p"), rows))
    console.print(f"{tests['samples']:,} resamples of the sentences\n", style="dim")


def length_table(systems: dict[str, dict[str, Any]], metric: str, unit: str) -> Table:
    """`metric` by source length: of several systems, or of one with its token accuracy and a bar."""
    first, *others = systems.values()
    heading = METRICS[metric].heading
    columns = [unit, "sentences", *(systems if others else (heading,))]
    rows = []
    for number, bucket in enumerate(first["lengths"]):
        values = [system["lengths"][number][metric] for system in systems.values()]
        low, high = bucket["from"], bucket["to"]
        row = [str(low) if low == high else f"{low} - {high}", str(bucket["sentences"])]
        row += [f"{value:.1%}" if metric == "exact_match" else f"{value:.1f}" for value in values]
        if not others and "token_accuracy" in bucket:
            row.append(f"{bucket['token_accuracy']:.1%}")
        if not others:
            row.append("█" * round(20 * values[0] / (1 if metric == "exact_match" else 100)))
        rows.append(row)
    if not others:
        columns += ["token accuracy", ""] if "token_accuracy" in first["lengths"][0] else [""]
    table = make_table(tuple(columns), rows)
    table.title = f"{heading} by source length" if others else None
    table.title_justify = "left"
    return table


def write_outputs(path: Path, data: ReferenceSet, report: dict[str, Any]) -> None:
    """Write a TSV, one sentence per line: source, references, and output and BLEU of each system."""
    count = max(map(len, data.references))
    header = ["source", "reference", *(f"reference {n}" for n in range(2, count + 1))]
    columns = [data.sources]
    columns += [
        [texts[n] if n < len(texts) else "" for texts in data.references] for n in range(count)
    ]
    for name, result in list_systems(report).items():
        header += [name, "BLEU"]
        on_tokens = result["bleu_tokens"] is not None
        scores = sentence_bleu(result["outputs"], data.references, on_tokens)
        columns += [result["outputs"], scores]
    lines = [header, *zip(*columns, strict=True)]
    rows = [map(one_cell, line) for line in lines]
    files.write(path, "".join("\t".join(row) + "\n" for row in rows))
