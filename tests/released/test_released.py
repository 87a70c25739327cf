"""Run folders that released versions wrote: this version loads them, with the outputs of that time."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regard import load
from regard.runs import open_run
from regard.training import run, train
from tests.released.__main__ import EXPECTED, HERE, UNFINISHED

VERSIONS = {
    path.parent.name: json.loads(path.read_text("utf-8")) for path in HERE.glob(f"*/{EXPECTED}")
}
RUNS = [(version, run) for version, expected in VERSIONS.items() for run in expected["runs"]]


def test_there_are_folders_of_version_0_2_0() -> None:
    assert len(VERSIONS["0.2.0"]["runs"]) == 4


@pytest.mark.parametrize(("version", "name"), RUNS)
def test_a_run_translates_as_it_did(version: str, name: str) -> None:
    outputs = load(HERE / version / name).translate(VERSIONS[version]["texts"])
    for output, expected in zip(outputs, VERSIONS[version]["runs"][name], strict=True):
        assert output.text == expected["text"]
        assert output.score == pytest.approx(expected["score"], rel=1e-4)


@pytest.mark.parametrize(("version", "name"), RUNS)
def test_a_run_is_described(version: str, name: str) -> None:
    document = open_run(HERE / version / name).describe()
    assert document["finished"] == (name != UNFINISHED)
    assert document["versions"]["regard"] == version
    assert bool(document["evaluations"]) == (name != UNFINISHED)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unfinished_run_is_resumed(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "draw_examples", lambda *_: None)
    folder = tmp_path / "run"
    shutil.copytree(HERE / version / UNFINISHED, folder)
    card: dict[str, Any] = train(None, folder, "cpu", resume=True, console=Console(quiet=True))
    expected = VERSIONS[version]["resumed"]
    assert card["figures"]["steps"] == expected["steps"]
    assert card["figures"]["val_loss"] == pytest.approx(expected["val_loss"], rel=0.01)
