"""End-to-end tests of the commands. `regard(...)` runs a command in this process, for speed."""

import contextlib
import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
import typer.main

from regard import cli, config
from regard.config.extensions import load_plugin
from regard.models.build import EXTENSION_POINTS
from regard.training import examples

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
class Result:
    code: int
    out: str
    err: str


# A process of its own builds the tree of commands once, from signatures: here it is built for the first.
get_command = cache(typer.main.get_command)


def run_command(*words: object, stdin: bytes = b"") -> Result:
    """Run `regard WORDS` as the console script does."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(typer.main, "get_command", get_command),
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
    return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def regard() -> Callable[..., Result]:
    return run_command


@pytest.fixture(scope="session")
def small() -> list[str]:
    """Settings of a run that takes a second."""
    return [word for setting in SMALL for word in ("--set", setting)]


EXAMPLES = examples.EXAMPLES


@pytest.fixture(scope="module", autouse=True)
def no_examples() -> Iterator[None]:
    """To draw them takes most of the time of a small run: tests of them use `with_examples`."""
    with mock.patch.object(examples, "EXAMPLES", 0):
        yield


def with_examples() -> contextlib.AbstractContextManager:
    """Runs that are trained in this context draw their examples, as for users."""
    return mock.patch.object(examples, "EXAMPLES", EXAMPLES)


@pytest.fixture(scope="session")
def run(small: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run. Do not modify it: copy it."""
    folder = tmp_path_factory.mktemp("stories") / "case"
    with with_examples():
        result = run_command("train", "case", "--run", folder, *small, "--device", "cpu")
    assert result.code == 0, result.err
    return folder


@pytest.fixture(scope="session")
def checksums() -> Callable[[Path], dict[str, str]]:
    """checksums(folder): the SHA-256 of every file, by relative path."""

    def compute(folder: Path) -> dict[str, str]:
        return {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    return compute


@pytest.fixture
def clean_registries() -> Iterator[None]:
    """Restore every registry afterwards, and forget the plug-in files."""
    before = {point: dict(registry) for point, registry in EXTENSION_POINTS.items()}
    names = {point: set(known) for point, known in config.EXTENSIONS.items()}
    load_plugin.cache_clear()
    yield
    for point, registry in EXTENSION_POINTS.items():
        registry.clear()
        registry.update(before[point])
        config.EXTENSIONS[point] = names[point]
    load_plugin.cache_clear()
    sys.modules.pop("my_attention", None)


# --- the documentation ----------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r'^```(\w*)(?: title="(.+?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


@dataclass
class Block:
    """A fenced block of a page: its language, the file it is the contents of, its text."""

    language: str
    title: str
    text: str


def read_page(page: Path) -> str:
    """The Markdown of a page, or of the text cells of a notebook."""
    text = page.read_text("utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    return "\n\n".join("".join(cell["source"]) for cell in cells) + "\n"


def read_blocks(page: Path) -> list[Block]:
    return [Block(*groups) for groups in FENCE.findall(read_page(page))]


@pytest.fixture(scope="session")
def blocks() -> Callable[[str], list[Block]]:
    """blocks("docs/labs.md"): the fenced blocks of a page, in order."""
    return lambda page: read_blocks(ROOT / page)


@pytest.fixture(scope="session")
def doc_files() -> dict[str, str]:
    """The files that README.md and docs/**/*.md contain as blocks with a title, by name."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    titled = [block for page in pages for block in read_blocks(page) if block.title]
    files = {block.title: block.text for block in titled}
    assert len(files) == len(titled), "two blocks have the same title"
    return files
