"""Atomic file writes: a file is either complete or absent."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.errors import UserError

TEMPORARY_PREFIX = ".regard-"  # of files that are still being written


def write(path: Path, content: bytes | str) -> None:
    """Replace `path` atomically: readers see either the old file or the complete new one."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    write_with(path, lambda temporary: temporary.write_bytes(data))


def write_with(path: Path, writer: Callable[[Path], object]) -> None:
    """`write` with content from `writer(temporary_path)`; the temporary path has the same suffix."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f"{TEMPORARY_PREFIX}{path.stem}-", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
    temporary = Path(name)
    try:
        writer(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        # mkstemp creates the file with mode 0600: give it the mode of an ordinary new file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: delete it, and run the command that wrote it again")
    return content


def list_files(folder: Path) -> list[Path]:
    """The entries of `folder`, without temporary files."""
    return [path for path in folder.iterdir() if not path.name.startswith(TEMPORARY_PREFIX)]


def remove_temporary(folder: Path) -> None:
    """Delete the temporary files that a killed process left in `folder`."""
    for temporary in folder.rglob(f"{TEMPORARY_PREFIX}*"):
        temporary.unlink(missing_ok=True)
