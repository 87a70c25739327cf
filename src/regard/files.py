"""Files that are either whole or not there."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.errors import UserError

TEMPORARY = ".regard-"  # how the name of a file begins that is not whole yet


def write(path: Path, content: bytes | str) -> None:
    """Put `content` at `path` in one move: whoever looks sees the old file or the new one, whole."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    write_with(path, lambda temporary: temporary.write_bytes(data))


def write_with(path: Path, writer: Callable[[Path], object]) -> None:
    """The same, with a function that writes to a path it is given (of the same suffix)."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f"{TEMPORARY}{path.stem}-", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
    temporary = Path(name)
    try:
        writer(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        # mkstemp is private to the user; an ordinary file is as readable as the umask allows.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def record(path: Path) -> dict[str, Any]:
    """The JSON object that was written to `path`."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: delete it, and run the command that wrote it again")
    return found


def listed(folder: Path) -> list[Path]:
    """What `folder` holds, unfinished files left out."""
    return [path for path in folder.iterdir() if not path.name.startswith(TEMPORARY)]


def sweep(folder: Path) -> None:
    """Remove what a program that was killed while it wrote has left in `folder`."""
    for temporary in folder.rglob(f"{TEMPORARY}*"):
        temporary.unlink(missing_ok=True)
