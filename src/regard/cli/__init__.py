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
from regard.cli import augment, inspect, experiments, labs, benchmarks, export, serve  # noqa: F401  # isort: skip
from regard.cli import failures
from regard.cli.common import app, echo, err
from regard.errors import RegardWarning

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
    """Run a command. What is explained in one sentence exits with code 2; a bug keeps its traceback."""
    failures.open_missing_streams()
    try:
        with print_warnings(), failures.flush_output():
            failures.check_arguments(sys.argv[1:])
            failures.check_working_directory()
            app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(translate.CLOSED_PIPE)
    except Exception as error:
        message = failures.explain(error)
        if message is None:
            raise
        try:
            err.print(f"regard: {message}", style="red")
        except OSError:  # standard error may be on a full disk, too
            failures.discard(sys.stderr)
        sys.exit(2)
