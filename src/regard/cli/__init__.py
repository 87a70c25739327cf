"""The command line. PyTorch is imported only by the commands that need it."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

import regard

# In the order in which --help lists the commands.
from regard.cli import models, translate, evaluation, pictures  # noqa: F401  # isort: skip
from regard.cli import inspect, experiments, labs, benchmarks, export, serve  # noqa: F401  # isort: skip
from regard.cli.common import app, echo, err
from regard.errors import RegardWarning, UserError

__all__ = ["app", "main"]


def print_version(requested: bool) -> None:
    if requested:
        echo(f"regard {regard.__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Attention-based sequence-to-sequence models: train them, run them, visualise their attention."""


@contextmanager
def print_warnings() -> Iterator[None]:
    """Print our warnings as one line each on standard error, and others as Python does."""

    def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, RegardWarning):
            err.print(f"regard: warning: {message}", style="yellow")
        else:
            original(message, category, *rest)

    original = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("default", RegardWarning)
        warnings.showwarning = show
        yield


def main() -> None:
    """Run a command. A `UserError` prints its message and exits with code 2; a bug keeps its traceback."""
    try:
        with print_warnings():
            app()
    except UserError as error:
        err.print(f"regard: {error}", style="red")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
