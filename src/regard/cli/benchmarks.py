"""`regard bench`: speed benchmarks."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from regard.cli.common import (
    AsJson,
    Device,
    Run,
    app,
    err,
    out,
    parse_integers,
    print_json,
    print_wide,
)
from regard.cli.serve import require_packages
from regard.config import limits
from regard.devices import resolve_device
from regard.errors import UserError, join_names, suggest

if TYPE_CHECKING:
    from regard.benchmarks.timing import Result

bench = typer.Typer(
    help="Measure speed against other implementations, in interleaved rounds.",
    invoke_without_command=True,
)
app.add_typer(bench, name="bench")


@bench.callback()
def list_benchmarks(context: typer.Context) -> None:
    """Measure speed against other implementations, in interleaved rounds. Without a name: list benchmarks."""
    if context.invoked_subcommand is not None:
        return

    from regard.benchmarks import BENCHMARKS

    table = Table(box=None, header_style="bold")
    table.add_column("benchmark", no_wrap=True)
    table.add_column("description")
    for name, kind in BENCHMARKS.items():
        table.add_row(name, (kind.__doc__ or "").split("\n")[0])
    table.add_row("serving", (serving.__doc__ or "").split("\n")[0])
    out.print(table)


Rounds = Annotated[
    int, typer.Option(min=1, max=10_000, help="How many times each contender is timed.")
]
BatchSize = Annotated[int, typer.Option(min=1, max=100_000, help="Sentences per batch.")]


@bench.command()
def data(
    pairs: Annotated[
        int, typer.Option(min=1, max=10**8, help="Number of training pairs.")
    ] = 2_000_000,
    storage: Annotated[
        str, typer.Option(help="Where training pairs are (data.storage): memory or disk.")
    ] = "memory",
    as_json: AsJson = False,
) -> None:
    """Seconds until training starts on own files, and peak memory; from memory or from disk."""
    from regard.benchmarks import Data, LargeData

    if storage not in ("memory", "disk"):
        raise UserError(
            f'--storage takes memory or disk: got "{storage}".{suggest(storage, ("memory", "disk"))}'
        )
    if storage == "disk":
        result = LargeData(pairs).run(print_progress)
        print_json(result) if as_json else out.print(tabulate_stages(result))
        return
    result = Data(pairs).run(print_progress)
    if as_json:
        print_json(result)
        return
    table = Table(title="{pairs:,} pairs, {cores} cores".format(**result), box=None)
    for column in ("cached ids", "seconds until training", "peak memory, MiB"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in result["rows"]:
        figures = f"{row['seconds']:.1f}", f"{row['peak_mib']:.0f}"
        table.add_row("yes" if row["cached_ids"] else "no", *figures)
    out.print(table)


def tabulate_stages(result: dict[str, Any]) -> Table:
    title = "{pairs:,} pairs, {cores} cores, {disk_mib:,.0f} MiB on disk".format(**result)
    table = Table(title=title, box=None)
    for column in ("stage", "seconds", "CPU seconds", "pairs/s", "peak memory, MiB"):
        table.add_column(column, justify="left" if column == "stage" else "right", no_wrap=True)
    for row in result["rows"]:
        speed = "" if row["stage"] == "steps" else f"{result['pairs'] / row['seconds']:,.0f}"
        figures = f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}", speed
        table.add_row(row["stage"], *figures, f"{row['peak_mib']:.0f}")
    return table


@bench.command()
def decoding(
    rounds: Rounds = 5,
    batch: BatchSize = 128,
    beam: Annotated[str, typer.Option(help="Beam widths, as in 1,5; 1 is greedy search.")] = "1,5",
    sentences: Annotated[
        int, typer.Option(min=1, max=limits.SENTENCES, help="Number of sentences.")
    ] = 1000,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Also time transformers and ctranslate2, the packages of the extra `peers`.",
        ),
    ] = False,
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Sentences per second, compared with a plain loop and other toolkits."""
    widths = tuple(parse_integers(beam, "--beam", limits.BEAM))

    from regard.benchmarks import Decoding

    benchmark = Decoding(rounds, batch, widths, resolve_device(device), peers, sentences)
    show(benchmark.run(print_progress), as_json)


@bench.command()
def engines(
    run: Run,
    rounds: Rounds = 5,
    beam: Annotated[str, typer.Option(help="Beam widths, as in 1,5; 1 is greedy search.")] = "1,5",
    sentences: Annotated[
        int, typer.Option(min=1, max=limits.SENTENCES, help="Number of test sentences, the first.")
    ] = 1000,
    shortlist: Annotated[
        int, typer.Option(min=1, max=limits.DIM, help="Candidates per source token.")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """Sentences per second and BLEU of a trained run with CTranslate2, its shortlist, and PyTorch."""
    widths = tuple(parse_integers(beam, "--beam", limits.BEAM))

    from regard.benchmarks import Engines

    benchmark = Engines(run, rounds, widths, sentences, shortlist)
    show(benchmark.run(print_progress), as_json)


@bench.command()
def long(
    rounds: Rounds = 5,
    lengths: Annotated[str, typer.Option(help="Tokens in a sequence, as in 2048,32768.")] = (
        "2048,8192,32768"
    ),
    seconds: Annotated[
        float,
        typer.Option(min=1, max=limits.SECONDS, help="Start no contender later than this."),
    ] = 120.0,
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Tokens per second and peak memory of self-attention over long sequences, by kind of position."""
    sizes = tuple(parse_integers(lengths, "--lengths", limits.TOKENS))

    from regard.benchmarks import Long
    from regard.benchmarks.long import tabulate

    result = Long(rounds, sizes, resolve_device(device), seconds).run(print_progress)
    if as_json:
        print_json(result)
    else:
        print_wide(tabulate(result))


@bench.command()
def training(
    rounds: Rounds = 5,
    batch: BatchSize = 128,
    steps: Annotated[int, typer.Option(min=1, max=10**6, help="Batches per round.")] = 4,
    task: Annotated[str, typer.Option(help="recurrent, transformer, or both.")] = (
        "recurrent,transformer"
    ),
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Target tokens per second, compared with a loop over time steps and plain PyTorch."""
    from regard.benchmarks import Training
    from regard.benchmarks.training import TASKS

    tasks = tuple(part.strip() for part in task.split(","))
    for name in tasks:
        if name not in TASKS:
            raise UserError(
                f'--task takes {join_names(TASKS)}: got "{name}".{suggest(name, TASKS)}'
            )
    show(Training(rounds, batch, resolve_device(device), steps, tasks).run(print_progress), as_json)


@bench.command()
def serving(
    run: Annotated[str, typer.Option(help="A run folder, or a shipped model.")] = "de-en",
    clients: Annotated[int, typer.Option(min=1, max=1024, help="Clients at the same time.")] = 64,
    seconds: Annotated[
        float, typer.Option(min=1, max=limits.SECONDS, help="Time of each contender.")
    ] = 60.0,
    rounds: Annotated[int, typer.Option(min=1, max=10_000, help="Turns of each contender.")] = 6,
    workers: Annotated[
        int,
        typer.Option(min=1, max=limits.PROCESSES, help="Also with so many copies of the model."),
    ] = 1,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also behind the same server: transformers.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Requests per second and latency of `regard serve`, batched and one at a time; are answers right?"""
    require_packages()

    from regard.serve.load_test import LoadTest

    result = LoadTest(run, clients, seconds, rounds, workers, peers).run(print_progress)
    if as_json:
        print_json(result)
    else:
        out.print(tabulate_serving(result))
    statuses = {status for row in result["contenders"] for status in row["statuses"]}
    has_failed = any(status >= 500 and status != 503 for status in statuses)
    if has_failed or any(row["wrong"] for row in result["contenders"]):
        raise typer.Exit(1)


def tabulate_serving(result: dict[str, Any]) -> Table:
    title = "{clients} clients, {seconds:g} seconds each, {cores} cores, {run}".format(**result)
    columns = {
        "contender": lambda row: row["contender"],
        "requests/s": lambda row: f"{row['requests_per_second']:.1f}",
        "p50, ms": lambda row: f"{row['p50_milliseconds']:.0f}",
        "p99, ms": lambda row: f"{row['p99_milliseconds']:.0f}",
        "wrong": lambda row: "" if row["wrong"] is None else f"{row['wrong']} of {row['answered']}",
        "503": lambda row: str(row["statuses"].get(503, 0)),
        "MiB": lambda row: f"{row['memory_mib'] or 0:.0f}",
        "MiB/min": lambda row: f"{row['memory_mib_per_minute'] or 0:+.1f}",
    }
    table = Table(title=title, box=None, header_style="bold", title_justify="left")
    for name in columns:
        table.add_column(name, no_wrap=True, justify="left" if name == "contender" else "right")
    for row in result["contenders"]:
        table.add_row(*(value(row) for value in columns.values()))
    return table


def print_progress(line: str) -> None:
    err.print(line)


def show(result: "Result", as_json: bool) -> None:
    if as_json:
        print_json(asdict(result))
    else:
        print_wide(result.table())
