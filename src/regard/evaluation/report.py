"""An evaluation for a person to read, and the outputs behind it."""

import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from regard import files
from regard.evaluation.metrics import sentence_bleu


def show(found: dict[str, Any], console: Console) -> None:
    """One row a beam width, then the first one by length of the source."""
    title = f"{found['run']}, {found['split']}: {found['sentences']:,} sentences"
    console.print(title, style="bold", highlight=False)
    console.print(
        f"perplexity {found['perplexity']:.3f}   bits per character "
        f"{found['bits_per_character']:.3f}   token accuracy {found['token_accuracy']:.2%}\n",
        highlight=False,
    )
    if not found["results"]:
        console.print("a language model: no translations, so no BLEU", style="dim")
        return
    columns = ("beam", "BLEU", "BLEU lower", "chrF", "exact match", "seconds", "sentences/s")
    console.print(table(columns, [quality_row(result) for result in found["results"]]))
    first = found["results"][0]
    console.print(f"BLEU: {first['signatures']['bleu']}\n", style="dim", highlight=False)
    columns = ("source tokens", "sentences", "exact match", "token accuracy", "")
    console.print(table(columns, [length_row(part) for part in first["lengths"]]))


def table(columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    made = Table(box=None, header_style="bold")
    for name in columns:
        made.add_column(name, justify="right" if name else "left")
    for row in rows:
        made.add_row(*row)
    return made


def quality_row(result: dict[str, Any]) -> list[str]:
    speed = result["sentences"] / result["seconds"]
    return [
        str(result["beam"]),
        *(f"{result[name]:.2f}" for name in ("bleu", "bleu_lower", "chrf")),
        f"{result['exact_match']:.2%}",
        f"{result['seconds']:.1f}",
        f"{speed:,.0f}",
    ]


def length_row(part: dict[str, Any]) -> list[str]:
    return [
        f"{part['from']} - {part['to']}",
        str(part["sentences"]),
        f"{part['exact_match']:.1%}",
        f"{part['token_accuracy']:.1%}",
        "█" * round(20 * part["exact_match"]),
    ]


def write_outputs(path: Path, pairs: list[tuple[str, str]], found: dict[str, Any]) -> None:
    """A sentence a line (TSV): source, reference, and for each beam width the output and its BLEU."""
    header, columns = ["source", "reference"], []
    references = [reference for _, reference in pairs]
    for result in found["results"]:
        header += [f"beam {result['beam']}", "BLEU"]
        columns += [result["outputs"], sentence_bleu(result["outputs"], references)]
    lines = [header, *([*pair, *cells] for pair, *cells in zip(pairs, *columns, strict=True))]
    plain = [[re.sub(r"[\t\r\n]", " ", cell) for cell in line] for line in lines]
    files.write(path, "".join("\t".join(line) + "\n" for line in plain))
