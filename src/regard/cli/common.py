"""Shared by the commands: the app, the consoles, common options, loading a run, reading input."""

import json
import sys
import tomllib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from regard import documents, presets, shipped
from regard.cli.failures import shorten
from regard.devices import limit_kernel_caches
from regard.errors import RegardWarning, UserError, explain_unparsed, join_names
from regard.escaping import escape_controls, escape_for, to_json
from regard.terminal import Console


class Commands(TyperGroup):
    """typer's, whose errors show what was typed with its controls escaped."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with escape_usage_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with escape_usage_errors():
            return super().invoke(ctx)


@contextmanager
def escape_usage_errors() -> Iterator[None]:
    try:
        yield
    except USAGE_ERROR as error:
        message = escape_controls(error.format_message())
        error.format_message = lambda: message
        raise


USAGE_ERROR: Any = typer.BadParameter.__base__  # click's, which typer does not export


app = typer.Typer(
    name="regard",
    cls=Commands,
    help="Attention-based sequence-to-sequence models: train them, run them, visualise their attention.",
    epilog='Try a shipped model: regard translate de-en "Guten Morgen!"',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:N|mps",
        help="Device to compute on; auto is cuda if there is an NVIDIA GPU, else cpu.",
    ),
]
Run = Annotated[
    Path,
    typer.Argument(
        help="A run folder, written by `regard train`, or a shipped model: "
        f"{join_names(shipped.names())}. Several, joined by commas, are an ensemble.",
        show_default=False,
    ),
]
Runs = Annotated[
    list[Path],
    typer.Argument(help="Run folders, or shipped models.", metavar="RUN...", show_default=False),
]
OptionalRuns = Annotated[
    list[Path] | None,
    typer.Argument(help="Run folders, or shipped models.", metavar="[RUN...]", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Int8 = Annotated[
    bool, typer.Option("--int8", help="Quantise the weights to 8 bits: faster, CPU only.")
]
Bfloat16 = Annotated[
    bool, typer.Option("--bfloat16", help="Compute in bfloat16: faster, GPU only.")
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="pytorch|ctranslate2[:FOLDER]",
        help="What searches for the outputs. ctranslate2 needs the extra `ctranslate2` and runs on the CPU; "
        "FOLDER: written by `regard export --to ctranslate2`.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting, as in model.decoder.layers=2. May be repeated.",
    ),
]


Interventions = Annotated[
    list[str] | None,
    typer.Option(
        "--intervene",
        metavar="TABLE",
        help='Change the model, as in {what="ablate", layer=0, head=2} (TOML or JSON, counted from 0). '
        "May be repeated.",
        show_default=False,
    ),
]


Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace files that already exist.", show_default=False)
]


def check_new(paths: Iterable[Path], overwrite: bool) -> None:
    """Raise an error if one of the files to write exists, unless it may be replaced."""
    existing = [path for path in paths if path.is_file()]
    if existing and not overwrite:
        more = f" (and {len(existing) - 1} more)" if len(existing) > 1 else ""
        raise UserError(
            f"{existing[0]} already exists{more}: choose another name, or add --overwrite"
        )


def load_translator(
    run: Path, device: str, int8: bool = False, bfloat16: bool = False, engine: str = "pytorch"
) -> Any:
    from regard.api import load
    from regard.loading import read_configs

    read_configs(run)  # reports a wrong folder before PyTorch initialises the device
    limit_kernel_caches()
    for_cpu = int8 or engine != "pytorch"
    device = "cpu" if for_cpu and device == "auto" else device
    return load(run, device, int8=int8, bfloat16=bfloat16, engine=engine)


def find_data(run: Path) -> Any:
    """The [data] of a run; of an ensemble, that of its first member, with a warning if others differ."""
    from regard.loading import read_configs

    first, *others = (config.data for config in read_configs(run))
    if any(data != first for data in others):
        message = f"the runs of {run} have different [data]: the split is that of the first"
        warnings.warn(message, RegardWarning, stacklevel=2)
    return first


def parse_interventions(texts: list[str] | None) -> tuple[Any, ...]:
    """The interventions of --intervene, each a table in TOML or JSON."""
    from regard.interventions import parse

    return parse([parse_table(text) for text in texts or []])


def parse_table(text: str) -> Any:
    try:
        return documents.parse(text)
    except json.JSONDecodeError:
        pass
    except ValueError as error:
        raise UserError(
            f"--intervene: the table cannot be read: {explain_unparsed(error)}"
        ) from None
    try:
        return presets.parse_toml(text)
    except tomllib.TOMLDecodeError:
        raise UserError(
            f'--intervene takes a table, as in {{what="mask", keys=[3]}}: got {text}'
        ) from None


def echo(line: object = "", end: str = "\n") -> None:
    """Print a line that a program may read: as it is, unless standard output is a terminal."""
    sys.stdout.write(escape_for(sys.stdout.isatty(), f"{line}{end}"))
    sys.stdout.flush()


def print_json(document: Any) -> None:
    echo(to_json(document, indent=1))


def print_wide(table: Table) -> None:
    """Print a table; in a file, which has no width, with 120 columns."""
    (out if out.is_terminal else Console(width=120)).print(table)


def parse_integers(text: str, option: str, most: int) -> list[int]:
    """'1,5,10' -> [1, 5, 10]; each is at most `most`."""
    parts = [part.strip() for part in text.split(",")]
    digits = len(str(most))
    if not all(
        part.isdecimal() and len(part) <= digits and 0 < int(part) <= most for part in parts
    ):
        raise UserError(
            f'{option} takes integers from 1 to {most:,}, as in 1,5,10: got "{shorten(text)}"'
        )
    return [int(part) for part in parts]
