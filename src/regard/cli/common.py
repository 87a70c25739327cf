"""Shared by the commands: the app, the consoles, common options, loading a run, reading input."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from regard import documents, shipped
from regard.errors import UserError, join_names

app = typer.Typer(
    name="regard",
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
        f"{join_names(shipped.names())}.",
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
    from regard.translator import read_config

    read_config(run)  # reports a wrong folder before PyTorch initialises the device
    for_cpu = int8 or engine != "pytorch"
    device = "cpu" if for_cpu and device == "auto" else device
    return load(run, device, int8=int8, bfloat16=bfloat16, engine=engine)


def parse_interventions(texts: list[str] | None) -> tuple[Any, ...]:
    """The interventions of --intervene, each a table in TOML or JSON."""
    from regard.interventions import parse

    return parse([parse_table(text) for text in texts or []])


def parse_table(text: str) -> Any:
    try:
        return documents.parse(text)
    except ValueError:
        pass
    try:
        return tomllib.loads(f"table = {text}")["table"]
    except (ValueError, RecursionError):
        raise UserError(
            f'--intervene takes a table, as in {{what="mask", keys=[3]}}: got {text}'
        ) from None


def print_json(document: Any) -> None:
    typer.echo(documents.dumps(document, ensure_ascii=False, indent=1))


def parse_integers(text: str, option: str) -> list[int]:
    """'1,5,10' -> [1, 5, 10]"""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f'{option} takes positive integers, as in 1,5,10: got "{text}"')
    return [int(part) for part in parts]
