"""What a user types, in this process for speed: `regard(...)` is the command with its streams."""

import contextlib
import hashlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from regard import cli

SMALL = [
    "data.train=300",
    "data.val=40",
    "data.test=40",
    "model.hidden_dim=16",
    "model.embedding_dim=16",
    "model.attention.kq_dim=16",
    "training.epochs=1",
    "training.batch_sentences=128",
]


@dataclass
class Said:
    code: int
    out: str
    err: str


def command(*words: object, stdin: bytes = b"") -> Said:
    """`regard WORDS`, as the console script runs it."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["regard", *map(str, words)]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def regard() -> Callable[..., Said]:
    return command


@pytest.fixture(scope="session")
def small() -> list[str]:
    """Settings of a run that takes a second."""
    return [word for setting in SMALL for word in ("--set", setting)]


@pytest.fixture(scope="session")
def run(small: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run, made as a user makes one. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("stories") / "case"
    said = command("train", "case", "--run", folder, *small, "--device", "cpu")
    assert said.code == 0, said.err
    return folder


@pytest.fixture(scope="session")
def checksums() -> Callable[[Path], dict[str, str]]:
    """What a folder holds, file by file."""

    def sums(folder: Path) -> dict[str, str]:
        return {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    return sums
