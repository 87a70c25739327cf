"""The commands: thin over all the rest. PyTorch is imported only by commands that need it."""

import sys
from typing import Annotated

import typer

import regard

from regard.cli import models, pictures, experiments, labs, benchmarks  # noqa: F401  # isort: skip (as --help lists)
from regard.cli.common import app, err
from regard.errors import UserError

__all__ = ["app", "main"]


def version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regard {regard.__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Attention-based sequence-to-sequence models: train them, run them, see where they look."""


def main() -> None:
    """A user's mistake gets its sentence and exit code 2; our own mistakes show where they are."""
    try:
        app()
    except UserError as error:
        err.print(f"regard: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
