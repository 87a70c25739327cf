"""SHA-256 of the files that the weights of a run belong to: written with the weights, verified on load.

Other weights with the same vocabulary size, or another vocabulary with the same weights, would translate
without an error, and wrongly.
"""

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path

from regard import documents, presets
from regard.errors import RegardWarning, UserError

CONFIG = "config.toml"
FILES = (CONFIG, "tokenizer.json", "architecture.json")


def hash_file(path: Path) -> str:
    """Of its bytes; of a config, of its settings, so that comments and layout do not matter."""
    if path.name == CONFIG:
        settings = documents.dumps(presets.read_file(path), sort_keys=True)
        return hashlib.sha256(settings.encode()).hexdigest()
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def of_run(folder: Path) -> dict[str, str]:
    """The checksum of each of `FILES` that is in the folder."""
    return {name: hash_file(folder / name) for name in FILES if (folder / name).is_file()}


def verify_run(folder: Path, recorded: Mapping[str, str]) -> None:
    """Raise an error if a file but the config has changed since the weights were saved.

    `recorded`: the checksums that `of_run` computed then; none, if an earlier version saved them.
    """
    for name in recorded.keys() & {*FILES} - {CONFIG}:
        path = folder / name
        if not path.is_file():
            raise UserError(
                f"there is no file {path}, which the weights need: restore it from a copy"
            )
        if hash_file(path) != recorded[name]:
            raise UserError(
                f"{path} is damaged: it has changed since the weights were saved. Restore it from a copy"
            )


def warn_of_changed_config(folder: Path, recorded: Mapping[str, str]) -> None:
    """Warn if the settings have changed since the weights were saved: a user may have edited them."""
    path = folder / CONFIG
    if CONFIG in recorded and hash_file(path) != recorded[CONFIG]:
        warnings.warn(
            f"{path} has changed since the weights were saved: its settings are used as they are now. "
            "If you did not edit it, restore it from a copy",
            RegardWarning,
            stacklevel=3,
        )
