"""Attacks on files: each ends with one sentence, or changes nothing; nothing outside is read or written."""

import re
import shutil
from pathlib import Path

import pytest

from regard.training import run as training_run
from tests.attacks.attacks import ATTACKS
from tests.fuzz.samples import train_run
from tests.stories.conftest import run_command

README = Path(__file__).parent / "README.md"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to attack, made once; do not modify it."""
    folder = tmp_path_factory.mktemp("attacks") / "files"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run, "draw_examples", lambda *_: None)
        train_run(folder / "run")
        train_run(folder / "stopped", stop_at=6)
    (folder / "mine.toml").write_text(
        'data = {kind = "files", train = "pairs.tsv", val = "pairs.tsv"}\n'
        "training = {epochs = 1}\nmodel = {kind = 'recurrent', hidden_dim = 7, embedding_dim = 5}\n"
    )
    return folder


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(name: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = ATTACKS[name]
    here = tmp_path / "outside" / "here"
    here.parent.mkdir()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("REGARD_DATA", "")
    monkeypatch.setattr(training_run, "draw_examples", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(files, here)
    monkeypatch.chdir(here)
    one.prepare(here)
    result = run_command(*one.command)
    assert "Traceback" not in result.err
    if one.message is None:
        assert result.code == 0, result.err
    else:
        assert result.code == 2, result.out
        assert re.search(one.message, result.err.replace("\n", " ")), result.err
        assert "\x1b" not in result.err
    assert [path.name for path in here.parent.iterdir()] == ["here"]


def test_every_attack_is_in_the_table() -> None:
    rows = README.read_text("utf-8")
    for name, one in ATTACKS.items():
        assert f"| {name} | {one.once} |" in rows
