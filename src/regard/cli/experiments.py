"""`regard presets`, `compare` and `data`: named experiments, many runs, public corpora."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from regard import presets
from regard.cli.common import AsJson, Device, Settings, app, err, out, pick, say_json, whole_numbers
from regard.errors import UserError


@app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="PRESET...", help="Presets or .toml files.", show_default=False),
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,C", help="A setting and its values. May be repeated."),
    ] = None,
    settings: Settings = None,
    seeds: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="Runs of each system, with seeds 1 to N; or a number for each preset, as in 3,3,1.",
        ),
    ] = "3",
    to: Annotated[Path, typer.Option("--out", help="Where the tables go.")] = Path("compare"),
    kept: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            help="Where the runs go; several comparisons may share them. [default: OUT/runs]",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Which part of the data is measured.")] = "test",
    beam: Annotated[
        str, typer.Option(help="Beam widths, as in 1,5; the first is in the table.")
    ] = "1",
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Columns of the table, as in bleu_lower,longest,cache,speed; a wrong one is told all "
            "there are. table.csv has every one; speed is measured only if asked for.",
            show_default=False,
        ),
    ] = None,
    theme: Annotated[Literal["light", "dark"], typer.Option(help="Of the pictures.")] = "light",
    jobs: Annotated[int, typer.Option(help="How many runs at once.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run.")] = False,
    device: Device = "auto",
) -> None:
    """Train every preset, variation and seed; write a table a paper could print."""
    widths, counts = whole_numbers(beam, "--beam"), whole_numbers(seeds, "--seeds")
    if jobs < 1:
        raise UserError(f"--jobs is 1 or more, not {jobs}")

    from regard.compare import plan, sweep, write_report
    from regard.compare.columns import USUAL, chosen
    from regard.compare.speed import sentences_per_second
    from regard.compare.sweep import before, finished, trained

    shown = chosen(columns) if columns else USUAL

    runs = plan(names, vary or [], settings or [], counts, kept or to / "runs")
    if dry_run:
        for run in before(runs):
            state = "there" if trained(run) else "to run"
            typer.echo(f"{state}\t{run.system.label}, first\t{run.folder}")
        for run in runs:
            state = "there" if finished(run, split, widths) else "to run"
            typer.echo(f"{state}\t{run.system.label}, seed {run.seed}\t{run.folder}")
        return
    failed = sweep(runs, split, widths, pick(device), jobs, typer.echo)
    speeds = sentences_per_second(runs, split, pick(device)) if "speed" in shown else {}
    typer.echo(
        write_report(
            runs,
            split,
            command_line(),
            failed,
            to,
            columns=shown,
            speeds=speeds,
            theme=theme,
        )
    )
    pictures = "curves.png, quality.png" if (to / "quality.png").is_file() else "curves.png"
    told = f"table.md, table.csv, table.tex, outputs.md, {pictures}, results.json"
    typer.echo(f"written to {to}: {told}")
    if failed:
        raise typer.Exit(1)


def command_line() -> str:
    return shlex.join(["regard", *sys.argv[1:]])


@app.command("presets")
def list_presets() -> None:
    """List the named experiments."""
    table = Table(box=None, header_style="bold")
    table.add_column("preset", no_wrap=True)
    table.add_column("what it is")
    for name, description in presets.names().items():
        table.add_row(name, description)
    out.print(table)


data = typer.Typer(help="Public corpora: list them, get them.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command("list")
def list_data() -> None:
    """List the corpora that are known, and where they lie on this machine."""
    from regard.text import datasets

    table = Table(box=None, header_style="bold")
    for name in ("data", "languages", "licence", "here"):
        table.add_column(name, no_wrap=name == "data")
    for row in datasets.status():
        place = str(row.where) if row.where else f"regard data get {row.name}"
        table.add_row(row.name, " ".join(row.languages), row.licence, place)
    out.print(table)


@data.command("get")
def get_data(
    name: Annotated[
        str, typer.Argument(help="A name from `regard data list`.", show_default=False)
    ],
) -> None:
    """Download a corpus into the user's cache, checked against its checksum."""
    from rich.progress import Progress

    from regard.text import datasets

    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        bars: dict[str, Any] = {}

        def report(file: str, done: int, total: int | None) -> None:
            if file not in bars:
                bars[file] = progress.add_task(file, total=total)
            progress.update(bars[file], completed=done, total=total)

        folder = datasets.get(name, report)
    typer.echo(folder)


@data.command("overlap")
def overlap_data(
    text: Annotated[
        str, typer.Argument(help="Whose training text: a preset or a .toml.", show_default=False)
    ],
    task: Annotated[
        str, typer.Argument(help="Whose sentences to look for in it.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Count the sentences of one experiment that another trains on, whatever their case and marks."""
    from regard.text import corpus
    from regard.text.overlap import learned, overlap

    known, theirs = learned(presets.load(text).data), corpus.load(presets.load(task).data)
    rows = [
        {"split": split, "side": side, "sentences": len(pairs), "found": found}
        for split, pairs in theirs.splits.items()
        for side, found in overlap(known, pairs).items()
    ]
    if as_json:
        say_json(rows)
        return
    table = Table(box=None, header_style="bold")
    for name in ("split", "side", "sentences", "found"):
        table.add_column(name, justify="right" if name in ("sentences", "found") else "left")
    for row in rows:
        counts = (f"{row['sentences']:,}", f"{row['found']:,}")
        table.add_row(row["split"], row["side"], *counts)
    out.print(table)
