"""Evaluation reports: tables for the terminal, and the outputs as TSV."""

import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from regard import files
from regard.evaluation.metrics import sentence_bleu


def print_report(report: dict[str, Any], console: Console) -> None:
    """A table with one row per beam width, then the first beam width by source length."""
    title = f"{report['run']}, {report['split']}: {report['sentences']:,} sentences"
    console.print(title, style="bold", highlight=False)
    bits = report["bits_per_character"]
    console.print(
        f"perplexity {report['perplexity']:.3f}   bits per character "
        f"{'-' if bits is None else f'{bits:.3f}'}   "
        f"token accuracy {report['token_accuracy']:.2%}",
        highlight=False,
    )
    if bits is None:
        console.print(
            f"no bits per character: {report['unknown_tokens']:,} reference tokens are unknown, and "
            "their spelling has no probability",
            style="dim",
            highlight=False,
        )
    console.print()
    if not report["results"]:
        console.print("language model: no translations, so no BLEU", style="dim")
        return
    columns = ("beam", "BLEU", "BLEU lower", "chrF", "exact match", "seconds", "sentences/s")
    console.print(make_table(columns, [quality_row(result) for result in report["results"]]))
    first = report["results"][0]
    console.print(f"BLEU: {first['signatures']['bleu']}\n", style="dim", highlight=False)
    columns = ("source tokens", "sentences", "exact match", "token accuracy", "")
    console.print(make_table(columns, [length_row(bucket) for bucket in first["lengths"]]))


def make_table(columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(box=None, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        table.add_row(*row)
    return table


def quality_row(result: dict[str, Any]) -> list[str]:
    speed = result["sentences"] / result["seconds"]
    return [
        str(result["beam"]),
        *(f"{result[name]:.2f}" for name in ("bleu", "bleu_lower", "chrf")),
        f"{result['exact_match']:.2%}",
        f"{result['seconds']:.1f}",
        f"{speed:,.0f}",
    ]


def length_row(bucket: dict[str, Any]) -> list[str]:
    return [
        f"{bucket['from']} - {bucket['to']}",
        str(bucket["sentences"]),
        f"{bucket['exact_match']:.1%}",
        f"{bucket['token_accuracy']:.1%}",
        "█" * round(20 * bucket["exact_match"]),
    ]


def write_outputs(path: Path, pairs: list[tuple[str, str]], report: dict[str, Any]) -> None:
    """Write a TSV, one sentence per line: source, reference, and output and BLEU for each beam width."""
    header, columns = ["source", "reference"], []
    references = [reference for _, reference in pairs]
    for result in report["results"]:
        header += [f"beam {result['beam']}", "BLEU"]
        columns += [result["outputs"], sentence_bleu(result["outputs"], references)]
    lines = [header, *([*pair, *cells] for pair, *cells in zip(pairs, *columns, strict=True))]
    rows = [[re.sub(r"[\t\r\n]", " ", cell) for cell in line] for line in lines]
    files.write(path, "".join("\t".join(row) + "\n" for row in rows))
