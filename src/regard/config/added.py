"""Kinds that users add: registered in Python, in a package's entry points, or in a file of their own.

The file is named in the environment, never in a config: what a config says loads no code.
"""

import os
import sys
from functools import cache
from importlib import metadata, util
from pathlib import Path

from regard.errors import UserError

# By extension point: `regard.register` writes here. Packages add theirs as entry points of the group
# `regard.score`, `regard.position`, ...
EXTENSIONS: dict[str, set[str]] = {"score": set(), "normaliser": set(), "position": set()}
VARIABLE = "REGARD_KINDS"


def extensions(point: str | None) -> set[str]:
    """Names that users and installed packages have added at an extension point."""
    if not point:
        return set()
    load_own_files()
    packaged = {entry.name for entry in metadata.entry_points(group=f"regard.{point}")}
    return EXTENSIONS[point] | packaged


def load_own_files() -> None:
    """Run the files that $REGARD_KINDS names (separated by `:`), each once: they register as they run."""
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        load(Path(name).absolute())


@cache
def load(path: Path) -> None:
    there = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    if str(path) in there:  # imported already, or it is the very script that runs
        return
    spec = util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"{VARIABLE} names {path}, which is no Python file")
    module = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}, named in {VARIABLE}, cannot be loaded: {told}") from error
