"""A server with the engine ctranslate2 answers as the engine does."""

from pathlib import Path

import pytest

import regard
from regard.serve.settings import Settings
from tests.serve.conftest import LIMITS, SENTENCES, serve

pytest.importorskip("ctranslate2")


def test_answers_are_those_of_the_engine():
    settings = Settings((Path("de-en"),), limits=LIMITS, engine="ctranslate2")
    expected = regard.load("de-en", engine="ctranslate2").translate(SENTENCES, beam=2)
    with serve(settings) as client:
        answer = client.post("/api/translate", texts=SENTENCES, decoding={"beam": 2})
        assert [one["text"] for one in answer.json] == [one.text for one in expected]
        refused = client.post(
            "/api/translate", texts=["Ja."], decoding={"sample": {"temperature": 1.0}}
        )
    assert refused.status == 422
    assert "use the engine pytorch" in refused.json["error"]
