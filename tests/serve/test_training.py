"""A run that trains while it is served: its log, its first weights, better ones, and its end."""

import json
import shutil
import time
from pathlib import Path

import pytest

import regard
from regard import shipped
from regard.models import weights
from regard.serve import catalogue
from regard.serve.settings import Settings
from tests.serve.conftest import LIMITS, serve


def wait_for(condition, seconds=20):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


@pytest.fixture
def run(tmp_path) -> Path:
    """A run folder before its first validation."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("config.toml", "tokenizer.json"):
        shutil.copy(shipped.FOLDER / "de-en-gru" / name, folder)
    log(folder, event="start", seed=0, parameters=7)
    return folder


def log(folder: Path, **event) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")


def save_weights(folder: Path, tensors, step: int) -> None:
    weights.save(folder / "model.safetensors", tensors, {"step": step, "loss": 1.0})


def test_a_run_in_training(run, monkeypatch):
    monkeypatch.setattr(catalogue, "POLL", 0.02)
    tensors, _ = weights.read(shipped.FOLDER / "de-en-gru" / "model.safetensors")
    worse = {name: tensor * 0.5 for name, tensor in tensors.items()}
    text = "Ein Mann schläft auf einer grünen Bank."
    with serve(Settings((run,), limits=LIMITS)) as client:
        assert client.get("/api/models").json == {"models": []}
        answer = client.post("/api/translate", texts=[text])
        assert (answer.status, answer.json["code"]) == (409, "not-ready")
        assert client.get("/api/runs").json == [
            {"name": "mine", "finished": False, "ready": False, "logged": True, "step": None}
        ]
        first = client.get("/api/runs/mine").json
        assert [event["event"] for event in first["events"]] == ["start"]

        log(run, event="validation", step=10, loss=3.0, seconds=1.0)
        save_weights(run, worse, 10)
        wait_for(lambda: client.get("/api/runs/mine").json["samples"])
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"event": "valid')  # half written
        later = client.get(f"/api/runs/mine?after={first['next']}").json
        assert [(event["step"], event["loss"]) for event in later["events"]] == [(10, 3.0)]
        assert (later["ready"], later["step"], later["next"]) == (True, 10, 2)
        bad = client.post("/api/translate", texts=[text]).json[0]["text"]

        save_weights(run, tensors, 20)
        samples = wait_for(lambda: [*client.get("/api/runs/mine").json["samples"]][1:])
        assert [sample["step"] for sample in samples] == [20]
        expected = regard.load("de-en-gru").translate([text], attention=False)[0].text
        assert client.post("/api/translate", texts=[text]).json[0]["text"] == expected != bad
        at = samples[0]["sources"].index(text)
        assert samples[0]["outputs"][at] == expected

        (run / "card.json").write_text("{}")
        assert client.get("/api/runs/mine").json["finished"] is True


def test_a_comparison_that_runs(tmp_path):
    run = tmp_path / "sweep" / "runs" / "case-1a2b" / "seed-0"
    run.mkdir(parents=True)
    log(run, event="start")
    log(run, event="validation", step=5, loss=2.5, seconds=1.0)
    with serve(Settings((), (tmp_path / "sweep",), limits=LIMITS)) as client:
        got = client.get("/api/comparisons/sweep").json
    assert got["curves"] == {"runs/case-1a2b/seed-0": [[5, 2.5]]}
    assert (got["finished"], got["results"], got["table"]) == (False, None, "")
