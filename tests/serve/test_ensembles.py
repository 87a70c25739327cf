"""Ensembles behind HTTP: one model, loaded as soon as all its runs have weights."""

import shutil
from pathlib import Path

import pytest

import regard
from regard import shipped
from regard.serve import catalogue
from regard.serve.settings import Settings
from tests.serve.conftest import LIMITS, SENTENCES, serve
from tests.serve.test_training import wait_for

GRU = shipped.FOLDER / "de-en-gru"


@pytest.fixture
def untrained(tmp_path) -> Path:
    """A run folder before its first validation."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("config.toml", "tokenizer.json"):
        shutil.copy(GRU / name, folder)
    return folder


def test_an_ensemble_is_one_model():
    with serve(Settings((Path("de-en-gru,de-en-gru"),), limits=LIMITS)) as client:
        [model] = client.get("/api/models").json["models"]
        assert model["name"] == "de-en-gru,de-en-gru"
        assert model["heads"] == {"cross": [2, 1]}
        answer = client.post("/api/translate", texts=SENTENCES[:2], attention=True).json
        expected = regard.load("de-en-gru").translate(SENTENCES[:2])
        for one, reference in zip(answer, expected, strict=True):
            assert one["text"] == reference.text
            assert one["attention"]["cross"]["shape"][0] == 2
        log = client.get("/api/runs/de-en-gru,de-en-gru").json
        assert (log["logged"], log["finished"], log["step"], log["events"]) == (
            False,
            True,
            None,
            [],
        )


def test_an_ensemble_waits_for_all_its_runs(untrained, monkeypatch):
    monkeypatch.setattr(catalogue, "POLL", 0.02)
    with serve(Settings((Path(f"de-en-gru,{untrained}"),), limits=LIMITS)) as client:
        assert client.get("/api/models").json == {"models": []}
        [state] = client.get("/api/runs").json
        assert (state["name"], state["ready"]) == ("de-en-gru,mine", False)
        shutil.copy(GRU / "model.safetensors", untrained / "new")
        (untrained / "new").rename(untrained / "model.safetensors")
        wait_for(lambda: client.get("/api/runs").json[0]["ready"])
        answer = client.post("/api/translate", texts=SENTENCES[:1])
        assert answer.status == 200
