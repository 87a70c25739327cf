"""Many clients at once: every answer is the offline one, nothing is mixed up, and nothing but 503 fails."""

import json
import random
import threading
from pathlib import Path

import pytest

from regard.serve.settings import Limits, Settings
from tests.serve.conftest import SENTENCES, serve

CLIENTS, REQUESTS = 10, 3
TEXT = "Heute gehen ein Mann und eine Frau mit dem kleinen Hund durch die Stadt"


def make_text(generator: random.Random) -> str:
    words = generator.choices(TEXT.split(), k=generator.choice((2, 5, 11)))
    return " ".join(words).capitalize() + "."


def make_requests(number: int) -> list[tuple[list[str], dict]]:
    generator = random.Random(number)
    return [
        ([make_text(generator) for _ in range(generator.choice((1, 1, 1, 3)))], {"beam": beam})
        for beam in generator.choices((1, 1, 2, 3), k=REQUESTS)
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_answers_under_load_are_those_of_python(offline, workers):
    problems: list[object] = []
    answered: list[tuple[str, int, dict]] = []

    def run(number: int) -> None:
        generator = random.Random(f"cancel/{number}")
        for texts, decoding in make_requests(number):
            if generator.random() < 0.1:
                hang_up(texts, decoding)
                continue
            answer = client.post("/api/translate", texts=texts, decoding=decoding)
            if answer.status == 200:
                answered.extend(
                    (text, decoding["beam"], one)
                    for text, one in zip(texts, answer.json, strict=True)
                )
            elif answer.status != 503 or "retry-after" not in answer.headers:
                problems.append((answer.status, answer.body))

    def hang_up(texts, decoding) -> None:
        connection = client.connect()
        body = json.dumps({"texts": texts, "decoding": decoding}).encode()
        connection.request("POST", "/api/translate", body, {"Content-Type": "application/json"})
        connection.close()

    with serve(Settings((Path("de-en"),), workers=workers, limits=Limits(queue=40))) as client:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        metrics = client.get("/metrics").body.decode()
    assert not problems
    assert len(answered) > CLIENTS * REQUESTS / 2
    for beam in {beam for _, beam, _ in answered}:
        of_beam = [(text, one) for text, b, one in answered if b == beam]
        expected = offline.translate([text for text, _ in of_beam], beam=beam, attention=False)
        for (_, got), one in zip(of_beam, expected, strict=True):
            assert got["source"] == one.source
            assert got["text"] == one.text
            assert got["score"] == pytest.approx(one.score, abs=1e-3)
    batches = [line for line in metrics.splitlines() if line.startswith("regard_batch_texts_")]
    sizes = dict(line.rsplit(" ", 1) for line in batches)
    assert float(sizes["regard_batch_texts_sum"]) > 1.5 * float(sizes["regard_batch_texts_count"])


def test_streams_share_batches_and_are_not_mixed_up(client, offline):
    results: dict[str, bytes] = {}

    def run(text: str) -> None:
        results[text] = client.post("/api/stream", text=text).body

    threads = [threading.Thread(target=run, args=(text,)) for text in SENTENCES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for text, expected in zip(
        SENTENCES, offline.translate(SENTENCES, attention=False), strict=True
    ):
        data = [
            json.loads(line[6:]) for line in results[text].decode().splitlines() if "data: " in line
        ]
        assert [event["token"] for event in data[:-1]] == expected.target
        assert data[-1]["text"] == expected.text
