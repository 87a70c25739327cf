"""`regard presets`, `settings`, `info` and `runs`: see what there is."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from regard import documents, presets, shipped
from regard.cli.common import AsJson, Run, app, echo, out, print_json
from regard.errors import UserError, join_names, suggest


@app.command("presets")
def list_presets(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]",
            help="A preset or .toml file whose settings to print, as TOML; with --table, several.",
            show_default=False,
        ),
    ] = None,
    table: Annotated[
        bool,
        typer.Option(
            "--table", help="Print a Markdown table of the architectures of Transformer presets."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the named experiments, print the TOML of one, or compare the architectures of some."""
    if table:
        if not names:
            raise UserError("--table needs presets to compare, as in --table case-gpt case-llama")
        print_architectures(names, as_json)
    elif names and len(names) > 1:
        raise UserError(
            f"the TOML of one preset at a time, not of {len(names)}: name one, or add --table for a "
            "table of their architectures"
        )
    elif names:
        print_preset(names[0], as_json)
    else:
        print_presets(as_json)


def print_preset(name: str, as_json: bool) -> None:
    """The settings of a preset with those of its base and every default."""
    config = presets.load(name)
    if as_json:
        print_json(config.model_dump(mode="json"))
    else:
        echo(config.to_toml(), end="")


def print_presets(as_json: bool) -> None:
    if as_json:
        print_json(presets.names())
        return
    table = Table(box=None, header_style="bold")
    table.add_column("preset", no_wrap=True)
    table.add_column("description")
    for name, description in presets.names().items():
        table.add_row(name, description)
    out.print(table)
    out.print(
        f"\nTrained already, and shipped with regard: {join_names(shipped.names())}. Try: "
        'regard translate de-en "Guten Morgen!"',
    )


def print_architectures(names: list[str], as_json: bool) -> None:
    from regard.compare.architecture import describe_architecture
    from regard.tables import markdown_table

    rows = [describe_architecture(name) for name in names]
    if as_json:
        print_json(rows)
        return
    cells = [[f"{v:,}" if isinstance(v, int) else v for v in row.values()] for row in rows]
    text_columns = sum(isinstance(value, str) for value in rows[0].values())
    echo(markdown_table([list(rows[0]), *cells], text_columns), end="")


@app.command("settings")
def list_settings(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]",
            help="A key, a table, or the end of a key: training.epochs, model.attention, dropout.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every setting with its type, default and meaning."""
    from regard.config import reference

    settings = reference.find_settings(key) if key else reference.list_settings()
    if as_json:
        rows = [asdict(s) | {"choices": dict(s.choices)} for s in settings]
        print_json(rows)
        return
    echo("\n".join(map(reference.format_setting, settings)))


# --- runs -----------------------------------------------------------------------------------------


@app.command("info")
def describe_run(run: Run, as_json: AsJson = False) -> None:
    """Describe a run: its settings, data, size, results, versions and files."""
    from regard.runs import open_run

    document = open_run(run).describe()
    if as_json:
        print_json(document)
        return
    rows = describe_training(document) | describe_results(document)
    width = max(map(len, rows))
    for name, lines in rows.items():
        for number, line in enumerate(lines):
            out.print(f"{'' if number else name:<{width}}  {line}")


def describe_training(document: dict[str, Any]) -> dict[str, list[str]]:
    """The lines about what was trained, by heading."""
    config, figures = document["config"], document["figures"]
    tables = {name: config.get(name, {}) for name in ("data", "tokenizer", "model")}
    kinds = {name: str(table.get("kind", "?")) for name, table in tables.items()}
    parameters, trainable = figures.get("parameters"), figures.get("trainable_parameters")
    sizes = [] if parameters is None else [f"{parameters:,} parameters"]
    if trainable is not None and trainable != parameters:
        sizes.append(f"{trainable:,} trainable")
    data = [str(tables["data"][key]) for key in ("name", "train") if key in tables["data"]]
    sums = [f"{split} {checksum[:12]}" for split, checksum in document["data"].items()]
    changes = [
        f"with {key} = {documents.dumps(value)}" for key, value in document["changes"].items()
    ]
    return {
        "run": [document["run"], *([] if document["finished"] else ["not finished"])],
        "preset": [document["preset"] or "none: settings of your own", *changes],
        "description": [document["description"]] if document["description"] else [],
        "data": [", ".join([kinds["data"], *data]), f"SHA-256 {', '.join(sums)}"][: 1 + bool(sums)],
        "tokenizer": [
            ", ".join(
                [kinds["tokenizer"]]
                + [
                    f"{k} = {documents.dumps(tables['tokenizer'][k])}"
                    for k in TOKENIZER_KEYS
                    if k in tables["tokenizer"]
                ]
            )
        ],
        "model": [", ".join([kinds["model"], *sizes])],
    }


TOKENIZER_KEYS = ("vocab_size", "min_frequency", "joint", "lowercase")


TERMS = ("attribution", "domain")


def describe_results(document: dict[str, Any]) -> dict[str, list[str]]:
    """The lines about how it went, by heading."""
    from regard.runs import val_bleu

    figures, versions = document["figures"], document["versions"] or {}
    training = []
    if figures.get("steps") is not None:
        training = [
            f"{figures['steps']:,} steps in {figures['training_seconds']:,.0f} s on "
            f"{document['device'] or 'an unknown device'}, seed {document['seed']}"
        ]
    validation = []
    if figures.get("val_loss") is not None:
        loss = figures["val_loss"]
        bleu = val_bleu(figures)
        kind = "lowercased" if figures.get("val_bleu_tokens") is None else "tokens"
        validation = [
            f"loss {loss:.4f}, perplexity {math.exp(loss):.3f}"
            + ("" if bleu is None else f", BLEU ({kind}) {bleu:.2f}")
            + f" at step {figures['best_step']:,}"
        ]
    sizes = document["files"]
    files = [f"{format_size(size):>9}  {name}" for name, size in sizes.items()]
    return {
        "training": training,
        "validation": validation,
        "evaluation": [format_evaluation(row) for row in document["evaluations"]],
        "terms": [document["terms"][key] for key in TERMS if key in document["terms"]],
        "versions": [", ".join(f"{name} {version}" for name, version in versions.items())],
        "files": [*files, f"{format_size(sum(sizes.values())):>9}  in all"],
    }


def format_evaluation(row: dict[str, Any]) -> str:
    names = {
        "bleu": "BLEU",
        "bleu_lower": "BLEU (lowercased)",
        "bleu_tokens": "BLEU (tokens)",
        "chrf": "chrF",
    }
    figures = [f"{label} {row[key]:.2f}" for key, label in names.items() if row[key] is not None]
    if row["exact_match"] is not None:
        figures.append(f"exact match {row['exact_match']:.1%}")
    return f"{row['split']}, beam {row['beam']}: {', '.join(figures)}"


def format_size(size: int) -> str:
    """'31.4 MB', '2 kB'"""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


@app.command("runs")
def list_runs(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="A folder with runs at any depth.")
    ] = Path("runs"),
    sort: Annotated[
        str, typer.Option(metavar="COLUMN", help="Sort by this column; BLEU: best first.")
    ] = "run",
    as_json: AsJson = False,
) -> None:
    """List all runs below a folder with the figures of their cards."""
    from regard.runs import COLUMNS, find_runs, tabulate

    if sort not in COLUMNS:
        hint = suggest(sort, COLUMNS)
        raise UserError(f'there is no column "{sort}".{hint} Columns: {join_names(COLUMNS)}')
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: name one that contains runs")
    runs = find_runs(folder)
    if not runs:
        raise UserError(f"there are no runs below {folder}: a run folder has a config.toml")
    rows = tabulate(runs, sort)
    if as_json:
        print_json(rows)
        return
    cells = [list(COLUMNS), *([format_cell(*cell) for cell in row.items()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    # Not a table of rich, which cuts figures that do not fit 80 columns.
    for line in cells:
        padded = zip(COLUMNS, line, widths, strict=True)
        aligned = (f"{x:{'<' if name in TEXT_COLUMNS else '>'}{w}}" for name, x, w in padded)
        echo("  ".join(aligned).rstrip())


TEXT_COLUMNS = ("run", "preset", "model", "finished")
DECIMALS = {"val_loss": 4, "val_bleu": 2, "test_bleu": 2, "seconds": 0}


def format_cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:,.{DECIMALS.get(name, 0)}f}"
