"""Runs for others: `hub`, a folder for the Hugging Face hub; `page`, one HTML file, also for labs;
`ctranslate2`, a model for CTranslate2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import UserError, join_names, suggest
from regard.export.ctranslate2 import export_ctranslate2
from regard.export.hub import export_hub
from regard.export.page import export_page
from regard.export.scores import Evaluation
from regard.terminal import Console

__all__ = ["EXPORTS", "Evaluation", "Format", "Options", "export", "find_format"]


@dataclass(frozen=True)
class Options:
    """What a format may be asked for."""

    evaluation: Evaluation
    float32: bool = False
    labs: bool = False
    int8: bool = False
    shortlist: int | None = None
    console: Console | None = None
    """Where progress is printed."""


@dataclass(frozen=True)
class Format:
    """How runs are written: `write(runs, out, options)` returns a record of what was written."""

    write: Callable[[Sequence[Path], Path, Options], dict[str, Any]]
    most_runs: int
    own_options: frozenset[str]
    """Options of the command line that not every format has."""
    is_file: bool = False
    """Whether `out` becomes a file, not a folder."""


EXPORTS = {
    "hub": Format(
        lambda runs, out, options: export_hub(runs[0], out, options.evaluation),
        most_runs=1,
        own_options=frozenset({"split", "beam", "bleu"}),
    ),
    "page": Format(
        lambda runs, out, options: export_page(
            runs, out, options.float32, options.labs, options.console
        ),
        most_runs=2,
        own_options=frozenset({"float32", "labs", "overwrite"}),
        is_file=True,
    ),
    "ctranslate2": Format(
        lambda runs, out, options: export_ctranslate2(
            runs[0], out, options.int8, options.shortlist
        ),
        most_runs=1,
        own_options=frozenset({"int8", "shortlist"}),
    ),
}


def find_format(to: str) -> Format:
    if to not in EXPORTS:
        raise UserError(f'--to: got "{to}"; choose {join_names(EXPORTS)}.{suggest(to, EXPORTS)}')
    return EXPORTS[to]


def export(
    runs: Path | Sequence[Path],
    to: str,
    out: Path,
    evaluation: Evaluation | None = None,
    *,
    float32: bool = False,
    labs: bool = False,
    int8: bool = False,
    shortlist: int | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> dict[str, Any]:
    """Write runs in the format `to`, one of EXPORTS, to `out`: new, unless a file may be replaced."""
    runs = [runs] if isinstance(runs, Path) else runs
    form = find_format(to)
    if not runs and not labs:
        more = ", or add --labs" if "labs" in form.own_options else ""
        raise UserError(f"there is nothing to write: name a run{more}")
    if len(runs) > form.most_runs:
        raise UserError(f"--to {to} takes {form.most_runs} at most: got {len(runs)} runs")
    if form.is_file and out.is_dir():
        raise UserError(f"{out} is a folder: name a file, such as --out {out / f'{to}.html'}")
    is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    if not is_free and not (overwrite and out.is_file()):
        replace = "add --overwrite" if "overwrite" in form.own_options else "delete it"
        raise UserError(f"{out} exists already: choose another --out, or {replace}")
    options = Options(evaluation or Evaluation(), float32, labs, int8, shortlist, console)
    record = form.write(runs, out, options)
    return {"runs": [str(run) for run in runs], "to": to, "out": str(out)} | record
