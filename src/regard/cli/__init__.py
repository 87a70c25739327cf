"""The command line. PyTorch is imported only by the commands that need it."""

import sys
from typing import Annotated

import typer

import regard

from regard.cli import models, translate, pictures, experiments, labs, benchmarks  # noqa: F401  # isort: skip (as --help lists)
from regard.cli.common import app, err
from regard.errors import UserError

__all__ = ["app", "main"]


def print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"regard {regard.__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Attention-based sequence-to-sequence models: train them, run them, visualise their attention."""


def main() -> None:
    """Run a command. A `UserError` prints its message and exits with code 2; a bug keeps its traceback."""
    try:
        app()
    except UserError as error:
        err.print(f"regard: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
