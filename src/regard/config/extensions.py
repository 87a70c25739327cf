"""User-defined kinds: registered in Python, as a package's entry points, or in a plug-in file.

Plug-in files are named in the environment, never in a config: a config loads no code.
"""

import os
import sys
from functools import cache
from importlib import metadata, util
from pathlib import Path

from regard.errors import UserError

# Names by extension point, filled by `regard.register`. Packages add theirs as entry points of the group
# `regard.score`, `regard.normaliser` or `regard.position`.
EXTENSIONS: dict[str, set[str]] = {"score": set(), "normaliser": set(), "position": set()}
VARIABLE = "REGARD_PLUGINS"


def extensions(point: str | None) -> set[str]:
    """Names that users and installed packages have registered at an extension point."""
    if not point:
        return set()
    load_plugins()
    packaged = {entry.name for entry in metadata.entry_points(group=f"regard.{point}")}
    return EXTENSIONS[point] | packaged


def load_plugins() -> None:
    """Execute each file named in $REGARD_PLUGINS (separated by `:`) once; the file calls `register`."""
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        load_plugin(Path(name).absolute())


@cache
def load_plugin(path: Path) -> None:
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    if str(path) in loaded:  # imported already, or the running script itself
        return
    spec = util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UserError(f"{VARIABLE} names {path}, which is not a Python file")
    module = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}, named in {VARIABLE}, cannot be loaded: {reason}") from error
