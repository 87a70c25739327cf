"""`regard bench`: what is measured, against whom."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from regard.cli.common import AsJson, Device, app, err, out, pick, say_json, whole_numbers
from regard.errors import UserError, join_names, suggest

if TYPE_CHECKING:
    from regard.benchmarks.timing import Result

bench = typer.Typer(help="Measure speed, turn by turn with others.", invoke_without_command=True)
app.add_typer(bench, name="bench")


@bench.callback()
def list_benchmarks(context: typer.Context) -> None:
    """Measure speed, turn by turn with others. Without a name: list what there is."""
    if context.invoked_subcommand is not None:
        return

    from regard.benchmarks import BENCHMARKS

    table = Table(box=None, header_style="bold")
    table.add_column("benchmark", no_wrap=True)
    table.add_column("what it measures")
    for name, kind in BENCHMARKS.items():
        table.add_row(name, (kind.__doc__ or "").split("\n")[0])
    out.print(table)


Rounds = Annotated[int, typer.Option(help="How many times each side is timed.")]
BatchSize = Annotated[int, typer.Option(help="Sentences in a batch.")]


@bench.command()
def decoding(
    rounds: Rounds = 5,
    batch: BatchSize = 128,
    beam: Annotated[str, typer.Option(help="Beam widths, as in 1,5; 1 is greedy search.")] = "1,5",
    sentences: Annotated[int, typer.Option(help="How many sentences.")] = 1000,
    peers: Annotated[
        bool,
        typer.Option("--peers", help="Install transformers and ctranslate2, and time them too."),
    ] = False,
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Sentences a second, beside a plain loop and other tools."""
    widths = tuple(whole_numbers(beam, "--beam"))
    at_least_one(rounds=rounds, batch=batch, sentences=sentences)

    from regard.benchmarks import Decoding

    chosen = Decoding(rounds, batch, widths, pick(device), peers, sentences)
    show(chosen.run(tell), as_json)


@bench.command()
def training(
    rounds: Rounds = 5,
    batch: BatchSize = 128,
    steps: Annotated[int, typer.Option(help="Batches a turn.")] = 4,
    task: Annotated[str, typer.Option(help="recurrent, transformer, or both.")] = (
        "recurrent,transformer"
    ),
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Target tokens a second, beside the loop over time and plain PyTorch."""
    at_least_one(rounds=rounds, batch=batch, steps=steps)

    from regard.benchmarks import Training
    from regard.benchmarks.training import TASKS

    tasks = tuple(part.strip() for part in task.split(","))
    for name in tasks:
        if name not in TASKS:
            raise UserError(f'--task is {join_names(TASKS)}: got "{name}"{suggest(name, TASKS)}')
    show(Training(rounds, batch, pick(device), steps, tasks).run(tell), as_json)


def at_least_one(**options: int) -> None:
    for option, value in options.items():
        if value < 1:
            raise UserError(f"--{option} is 1 or more, not {value}")


def tell(line: str) -> None:
    err.print(line, markup=False, highlight=False)


def show(result: "Result", as_json: bool) -> None:
    if as_json:
        say_json(asdict(result))
    else:
        wide = out if out.is_terminal else Console(width=120)  # a file has no border
        wide.print(result.table())
