"""`regard compare` and `data`: comparisons, public corpora."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from regard import presets, signals
from regard.cli.common import (
    AsJson,
    Device,
    Settings,
    app,
    echo,
    err,
    out,
    parse_integers,
    print_json,
)
from regard.config import limits
from regard.devices import resolve_device
from regard.errors import UserError
from regard.escaping import one_cell


@app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="PRESET...", help="Presets or .toml files.", show_default=False),
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,C", help="A setting and the values to try. May be repeated."),
    ] = None,
    settings: Settings = None,
    seeds: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="Train each system with seeds 1 to N; or one number per preset, as in 3,3,1.",
        ),
    ] = "3",
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for tables and plots.")] = Path(
        "compare"
    ),
    runs_folder: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            help="Folder for the runs; several comparisons can share it. Default: OUT/runs.",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="The split to evaluate on.")] = "test",
    beam: Annotated[
        str, typer.Option(help="Beam widths, as in 1,5; the table shows the first.")
    ] = "1",
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="Columns of the table, as in bleu_lower,longest,cache,speed; an unknown name lists all "
            "columns. table.csv has all of them; speed is measured only on request.",
            show_default=False,
        ),
    ] = None,
    theme: Annotated[
        Literal["light", "dark"], typer.Option(help="Colours of the plots.")
    ] = "light",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=limits.PROCESSES,
            help="How many runs to train at once. Default: 1; with --on, as many as there is room for.",
            show_default=False,
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ray|ray://HOST:PORT",
            help="Train on Ray: on this machine, on the cluster of RAY_ADDRESS, or on that of the address. "
            "Needs the extra `ray`.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=limits.PROCESSES,
            help="CPU threads of each run. Default: the cores divided by --jobs; with --on, 1.",
            show_default=False,
        ),
    ] = None,
    per_gpu: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=limits.PROCESSES,
            help="With --on: how many runs share a GPU. Default: 1.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")] = False,
    device: Device = "auto",
) -> None:
    """Train every preset, variation and seed; write tables and plots ready for a paper."""
    widths = parse_integers(beam, "--beam", limits.BEAM)
    counts = parse_integers(seeds, "--seeds", limits.RUNS)
    if per_gpu and on is None:
        raise UserError(
            "--per-gpu is for --on ray: without it, --jobs says how many runs share a GPU"
        )

    from regard.compare.columns import select_columns
    from regard.compare.plan import plan
    from regard.compare.report import write_report
    from regard.compare.speed import measure_speed
    from regard.compare.sweep import is_finished, is_trained, prerequisites, sweep
    from regard.signals import Stopped

    selected = select_columns(columns) if columns else None
    runs = plan(names, vary or [], settings or [], counts, runs_folder or out_folder / "runs")
    if dry_run:
        states = [(run, "prerequisite", is_trained(run)) for run in prerequisites(runs)]
        states += [(run, f"seed {run.seed}", is_finished(run, split, widths)) for run in runs]
        for run, role, is_done in states:
            cells = ("finished" if is_done else "to run", f"{run.system.label}, {role}", run.folder)
            echo("\t".join(one_cell(str(cell)) for cell in cells))
        return
    pool, run_device = open_pool(on, jobs, threads, per_gpu, device)
    try:
        failed = sweep(runs, split, widths, run_device, pool, echo)
    except Stopped as stopped:
        err.print("stopped: the same command continues where it was")
        raise typer.Exit(signals.exit_code(stopped)) from None
    speeds = (
        measure_speed(runs, split, resolve_device(device if on is None else "auto"))
        if "speed" in (selected or ())
        else {}
    )
    echo(
        write_report(
            runs,
            split,
            command_line(),
            failed,
            out_folder,
            beams=widths,
            columns=selected,
            speeds=speeds,
            theme=theme,
        )
    )
    plots = "curves.png, quality.png" if (out_folder / "quality.png").is_file() else "curves.png"
    written = f"table.md, table.csv, table.tex, outputs.md, {plots}, results.json"
    echo(f"written to {out_folder}: {written}")
    if failed:
        raise typer.Exit(1)


def open_pool(
    on: str | None, jobs: int | None, threads: int | None, per_gpu: int | None, device: str
) -> tuple[Any, str]:
    """What executes the runs, processes on this machine or Ray, and the device they compute on."""
    from regard.compare.processes import JobPool
    from regard.compare.view import View

    view = View(err)
    if on is None:
        return JobPool(jobs or 1, threads, view), resolve_device(device)
    from regard.compare.ray_cluster import Cluster
    from regard.compare.ray_pool import RayPool

    cluster = Cluster(on, device, threads or 1, per_gpu)
    return RayPool(cluster, jobs, view, echo), cluster.device


def command_line() -> str:
    return shlex.join(["regard", *sys.argv[1:]])


data = typer.Typer(help="Public corpora: list and download them.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command("list")
def list_data() -> None:
    """List the known corpora and their folders on this machine."""
    from regard.text import datasets

    table = Table(box=None, header_style="bold")
    for name in ("data", "languages", "licence", "folder"):
        table.add_column(name, no_wrap=name == "data")
    for row in datasets.list_status():
        folder = str(row.folder) if row.folder else f"regard data get {row.name}"
        table.add_row(row.name, " ".join(row.languages), row.licence, folder)
    out.print(table)
    for row in datasets.list_status():
        for split in row.optional_splits:
            out.print(f"{row.folder} also has the split {split} of {row.name}", markup=False)


@data.command("get")
def get_data(
    name: Annotated[
        str, typer.Argument(help="A name from `regard data list`.", show_default=False)
    ],
) -> None:
    """Download a corpus into the user's cache and verify its checksum."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from regard.text import datasets

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bars: dict[str, Any] = {}

        def report(file: str, done: int, total: int | None) -> None:
            if file not in bars:
                bars[file] = progress.add_task(file, total=total)
            progress.update(bars[file], completed=done, total=total)

        folder = datasets.get(name, report)
    echo(folder)


@data.command("cache")
def show_cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete all of it.")] = False,
) -> None:
    """Show the cache of tokenised text: its folder, number of entries and size."""
    from regard.text import cache

    if clear:
        cache.evict(max_bytes=0)
    sizes = cache.entries().values()
    mib, limit = sum(sizes) / 2**20, cache.limit() / cache.GIB
    echo(f"{cache.folder()}: {len(sizes)} entries, {mib:,.1f} MiB")
    echo(f"least recently used entries are deleted above {limit:g} GiB ({cache.LIMIT})")


@data.command("overlap")
def overlap_data(
    text: Annotated[
        str,
        typer.Argument(
            help="The preset or .toml whose training text is searched.", show_default=False
        ),
    ],
    task: Annotated[
        str,
        typer.Argument(
            help="The preset or .toml whose sentences are looked up.", show_default=False
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Count the sentences of TASK in the training text of TEXT, ignoring case and punctuation."""
    from regard.text import corpus
    from regard.text.overlap import count_overlap, training_sentences

    known = training_sentences(presets.load(text).data)
    task_corpus = corpus.load(presets.load(task).data)
    rows = [
        {"split": split, "side": side, "sentences": len(pairs), "found": found}
        for split, pairs in task_corpus.splits.items()
        for side, found in count_overlap(known, pairs).items()
    ]
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, header_style="bold")
    for name in ("split", "side", "sentences", "found"):
        table.add_column(name, justify="right" if name in ("sentences", "found") else "left")
    for row in rows:
        counts = (f"{row['sentences']:,}", f"{row['found']:,}")
        table.add_row(row["split"], row["side"], *counts)
    out.print(table)
