"""Labs over HTTP: any parameters, in a process that is ended when it takes too long."""

import asyncio
import os

import pytest

from regard.labs import LABS
from regard.serve import lab_process
from regard.serve.settings import RequestError, Settings
from tests.serve.conftest import LIMITS, serve


def test_labs(monkeypatch):
    made = []

    def make(seconds):
        made.append(lab_process.LabProcess(seconds))
        return made[0]

    monkeypatch.setattr("regard.serve.app.LabProcess", make)
    with serve(Settings((), limits=LIMITS)) as client:
        listed = {lab["name"]: lab for lab in client.get("/api/labs").json["labs"]}
        assert listed.keys() == LABS.keys()
        assert listed["copying"]["parameters"]["beta"]["default"] == 12.0

        answer = client.post("/api/labs/copying", seed=3, parameters={"beta": 2.5, "keys": 7})
        expected = LABS["copying"].run(3, beta=2.5, keys=7)
        assert answer.json["parameters"] == expected.parameters
        assert answer.json["figures"]["alpha"] == pytest.approx(expected.figures["alpha"])
        assert answer.json["passed"] == expected.passed
        assert answer.json["result"]["law_holds"] is True
        assert "<svg" in answer.json["plot"]["both"]

        answer = client.post("/api/labs/copying", parameters={"keys": 0, "gamma": 1})
        assert (answer.status, answer.json["code"]) == (422, "invalid")
        assert "keys" in answer.json["error"]

        [labs] = made
        assert labs.seconds == LIMITS.seconds
        labs.seconds = 0.5
        answer = client.post("/api/labs/bottleneck")  # trains for minutes
        assert (answer.status, answer.json["code"]) == (408, "too-slow")
        assert "more than 0.5 seconds" in answer.json["error"]
        assert client.get("/healthz").status == 200


def test_a_process_that_cannot_start_is_an_answer(monkeypatch):
    monkeypatch.setattr(lab_process, "serve_labs", os.getcwd)  # ends at once, without an answer
    labs = lab_process.LabProcess(seconds=5)
    with pytest.raises(RequestError, match="ended as it started"):
        asyncio.run(labs.run("scaling", 0, {}))
    labs.stop()
    assert labs.process is None
