"""Checks on the run folder: whether a run can start or resume there."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regard import documents, files, schemas
from regard.config import Config
from regard.errors import UserError
from regard.loading import read_config
from regard.text.corpus import Corpus
from regard.training import checkpoint
from regard.training.differences import changed_settings


def check_folder(config: Config, folder: Path, resume: bool) -> None:
    """Raise an error unless a run can start in this folder or, with `resume`, continue there."""
    if resume and (folder / "config.toml").is_file():
        changed = changed_settings(read_config(folder), config)
        if changed and is_finished(folder):
            raise UserError(
                f"{folder} is finished, with other settings ({', '.join(changed)}): it is not continued. "
                "Start a new run from its weights: "
                f"regard train {folder / 'config.toml'} --init {folder} --run NEW --set KEY=VALUE"
            )
        if changed:
            raise UserError(
                f"{folder} was trained with other settings ({', '.join(changed)}): a resumed run "
                "keeps its settings; choose another --run for new ones"
            )
        return
    if files.list_files(folder):
        is_run = (folder / "config.toml").is_file()
        advice = "resume it with --resume, or " if is_run else "it is not a run folder, so "
        raise UserError(f"{folder} already exists: {advice}choose another --run")


def is_finished(folder: Path) -> bool:
    """Whether the run in this folder is complete: its card is written last."""
    return (folder / "card.json").is_file()


def has_checkpoint(folder: Path) -> bool:
    """Whether the folder has anything to continue from, or a finished run."""
    if (folder / checkpoint.FILE).is_file() or is_finished(folder):
        return True
    made = (folder / "synthetic").glob("*/*")  # pairs, or models that translate
    return any(path.is_file() or has_checkpoint(path) for path in made)


def clean_up(folder: Path, config: Config) -> None:
    """Delete what a finished run does not need, and what a killed process left, if that is possible."""
    with suppress(UserError), files.lock(folder):
        files.remove_temporary(folder)
        if not config.training.keep_last:
            checkpoint.drop(folder)


@contextmanager
def empty_on_error(folder: Path) -> Iterator[None]:
    """Empty a folder that was empty before if an error or Ctrl-C comes before the first checkpoint.

    So the same command, or a corrected one, can use it.
    """
    was_empty = not files.list_files(folder)
    try:
        yield
    except (UserError, KeyboardInterrupt):
        if was_empty and not has_checkpoint(folder):
            for path in files.list_files(folder):
                files.remove(path)
        raise


def check_same_data(folder: Path, data: Corpus) -> None:
    """Raise an error unless the data is the same as when the run started."""
    saved = read_start_event(folder).get("data", {})
    changed = [
        split
        for split, checksum in data.checksums().items()
        if saved.get(split, checksum) != checksum
    ]
    if changed:
        raise UserError(
            f"the data has changed since {folder} was started (splits {', '.join(changed)}): "
            "start a new run in another --run"
        )


def check_shared_folder(folder: Path) -> None:
    """Raise an error unless this process sees what process 0 has written."""
    if not (folder / "config.toml").is_file():
        raise UserError(
            f"{folder} has no config.toml on {socket.gethostname()}: with several machines, the run folder "
            "is on a disk that all of them see (--run)"
        )


def check_data_of_main(own: Mapping[str, str], main: Mapping[str, str], folder: Path) -> None:
    """Raise an error unless this process has the data of process 0."""
    changed = [split for split in main if own.get(split) != main[split]]
    if changed:
        raise UserError(
            f"the data of {folder} on {socket.gethostname()} are not those of the first process (splits "
            f"{', '.join(changed)}): copy them to every machine"
        )


def read_start_event(folder: Path) -> dict[str, Any]:
    """The first event of a run, or an empty dict."""
    path = folder / "metrics.jsonl"
    events = documents.read_lines(path, schemas.event_schema) if path.is_file() else []
    return events[0] if events and events[0]["event"] == "start" else {}
