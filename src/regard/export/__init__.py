"""A run for others: `hub`, a folder for the Hugging Face hub, with a model card from `card` and `scores`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.errors import UserError, join_names, suggest
from regard.export.hub import export_hub
from regard.export.scores import Evaluation

__all__ = ["EXPORTS", "Evaluation", "export"]

# name -> write(run folder, new folder, what to evaluate) -> a record of what was written
EXPORTS: dict[str, Callable[[Path, Path, Evaluation], dict[str, Any]]] = {"hub": export_hub}


def export(run: Path, to: str, out: Path, evaluation: Evaluation) -> dict[str, Any]:
    """Write a run in the format `to`, one of EXPORTS, to the new folder `out`."""
    if to not in EXPORTS:
        raise UserError(f'--to: got "{to}"; choose {join_names(EXPORTS)}.{suggest(to, EXPORTS)}')
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already: choose another --out, or delete it")
    return {"run": str(run), "to": to, "out": str(out)} | EXPORTS[to](run, out, evaluation)
