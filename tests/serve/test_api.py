"""What the endpoints answer is what Python computes."""

import json
import re

import pytest

import regard
from regard.page import schema
from tests.serve.conftest import COMPARISON, SENTENCES

NEAR = 1e-4  # scores, between batches of other sizes


def check_output(got: dict, expected: regard.Translation) -> None:
    assert got["text"] == expected.text
    assert (got["source"], got["target"]) == (expected.source, expected.target)
    assert got["score"] == pytest.approx(expected.score, abs=NEAR)
    assert got["normalised"] == pytest.approx(expected.normalised, abs=NEAR)
    for one, other in zip(got["alternatives"], expected.alternatives, strict=True):
        check_output(one, other)


def check_attention(got: dict, expected: regard.Translation) -> None:
    assert got["attention"].keys() == expected.attention.keys()
    for name, weights in expected.attention.items():
        assert got["attention"][name]["shape"] == list(weights.shape)
        assert got["attention"][name]["data"] == pytest.approx(weights.flatten().tolist(), abs=1e-5)


def test_models(client, offline):
    [model] = client.get("/api/models").json["models"]
    assert (model["name"], model["parameters"]) == ("de-en", offline.model.parameter_count)
    assert schema.ModelInfo.model_validate_json(json.dumps(model)).examples


@pytest.mark.parametrize(
    "decoding",
    [
        {},
        {"beam": 4, "nbest": 3},
        {"nbest": 2, "sample": {"temperature": 0.7, "top_k": 5, "seed": 3}},
    ],
)
def test_translations_are_those_of_python(client, offline, decoding):
    options = dict(decoding)
    if "sample" in options:
        options["sample"] = regard.Sampling(**options["sample"])
    expected = offline.translate(SENTENCES, attention=False, **options)
    answer = client.post("/api/translate", texts=SENTENCES, decoding=decoding)
    assert answer.status == 200
    for got, one in zip(answer.json, expected, strict=True):
        check_output(got, one)


def test_attention_and_interventions(client, offline):
    interventions = [{"what": "ablate", "layer": 1, "head": 2}, {"what": "mask", "keys": [1]}]
    expected = offline.translate(SENTENCES[:1], interventions=interventions)
    answer = client.post(
        "/api/translate", texts=SENTENCES[:1], interventions=interventions, attention=True
    )
    check_output(answer.json[0], expected[0])
    check_attention(answer.json[0], expected[0])


def test_intervene_shows_both_outputs(client, offline):
    changes = [{"what": "force", "step": 0, "token": "Someone"}]
    answer = client.post("/api/intervene", text=SENTENCES[0], interventions=changes).json
    plain, forced = (
        offline.translate(SENTENCES[:1], attention=False, interventions=i) for i in ((), changes)
    )
    check_output(answer["before"], plain[0])
    check_output(answer["after"], forced[0])
    assert answer["after"]["target"][0] == "Someone" != answer["before"]["target"][0]


def test_scores_and_explanations(client, offline):
    pairs = [(SENTENCES[0], "A man sleeps."), (SENTENCES[1], "Good morning!")]
    expected = offline.score(pairs)
    for got, one in zip(client.post("/api/score", pairs=pairs).json, expected, strict=True):
        assert got["log_probs"] == pytest.approx(one.log_probs, abs=NEAR)
        assert got["perplexity"] == pytest.approx(one.perplexity, rel=1e-3)
        assert (got["target"], "attention" in got) == (one.target, False)
    [explained, _] = client.post("/api/explain", pairs=pairs).json
    check_output(explained, offline.explain(pairs)[0])
    check_attention(explained, offline.explain(pairs)[0])


def read_events(body: bytes) -> list[tuple[str, dict]]:
    blocks = body.decode().strip().split("\n\n")
    matches = [re.fullmatch(r"event: (\w+)\ndata: (.*)", block) for block in blocks]
    return [(match[1], json.loads(match[2])) for match in matches if match]


def test_stream_sends_each_token(client, offline):
    [expected] = offline.translate(SENTENCES[:1], attention=False)
    answer = client.post("/api/stream", text=SENTENCES[0])
    assert answer.headers["content-type"].startswith("text/event-stream")
    *tokens, (name, last) = read_events(answer.body)
    assert name == "translation"
    check_output(last, expected)
    assert [event["token"] for _, event in tokens] == expected.target
    texts = [event["text"] for _, event in tokens]
    assert texts[-1] == expected.text
    assert all(expected.text.startswith(text) for text in texts)


def test_a_stream_of_a_text_that_cannot_be_read_has_an_error_status(client):
    answer = client.post("/api/stream", text="   ")
    assert (answer.status, answer.json["code"]) == (422, "invalid")


@pytest.mark.parametrize("beam", [1, 3])
def test_the_page_gets_steps_and_tree(client, offline, beam):
    [expected] = offline.translate(SENTENCES[:1], beam=beam, nbest=beam)
    request = {"kind": "translate", "model": "de-en", "text": SENTENCES[0], "best": 4}
    got = client.post("/api/page", **request, decoding={"beam": beam, "nbest": beam}).json
    check_output(got, expected)
    check_attention(got, expected)
    answer = schema.Translation.model_validate_json(json.dumps(got))
    for output in (answer, *answer.alternatives):
        assert output.steps is not None
        assert tuple(step.token for step in output.steps) == output.target
        assert sum(step.log_prob for step in output.steps) == pytest.approx(output.score, abs=NEAR)
        assert all(len(step.best) == 4 for step in output.steps)
    if beam == 1:
        assert answer.tree is None
        return
    assert answer.tree is not None
    best = [node for node in answer.tree if node.on_best]
    assert tuple(node.token for node in best) == answer.target
    assert best[-1].finished
    assert best[-1].score == pytest.approx(expected.score, abs=NEAR)
    assert max(sum(node.step == step for node in answer.tree) for step in range(5)) == beam
    for node in answer.tree:
        parent = answer.tree[node.parent] if node.parent is not None else None
        assert node.step == (parent.step + 1 if parent else 0)
        assert node.score <= (parent.score if parent else 0)


def test_the_page_explains(client, offline):
    pair = (SENTENCES[0], "A man sleeps.")
    got = client.post(
        "/api/page", kind="explain", model="de-en", text=pair[0], target=pair[1], best=0
    ).json
    check_output(got, offline.explain([pair])[0])
    assert [step["log_prob"] for step in got["steps"]] == pytest.approx(
        offline.score([pair])[0].log_probs, abs=NEAR
    )
    assert client.post("/api/page", kind="models").json == client.get("/api/models").json


def test_comparisons(client):
    assert client.get("/api/comparisons").json == {"comparisons": ["families"]}
    got = client.get("/api/comparisons/families").json
    assert got["table"] == (COMPARISON / "table.md").read_text("utf-8")
    assert got["results"] == json.loads((COMPARISON / "results.json").read_text("utf-8"))
    assert got["finished"] is True
    assert got["columns"][:3] == ["system", "BLEU lower", "variance"]
    assert got["rows"][1][:3] == ["multi30k-decoder-only", "40.94", "0.232"]
    assert [len(row) for row in got["rows"]] == 3 * [len(got["columns"])]
    [note] = got["notes"]
    assert note.startswith("3 seeds; test split")


def test_every_example_of_the_description_works(client):
    description = client.get("/api/openapi.json").json
    schemas = description["components"]["schemas"]
    asked = []
    for path, methods in description["paths"].items():
        if "post" not in methods or "{" in path:
            continue
        content = methods["post"]["requestBody"]["content"]["application/json"]["schema"]
        for body in schemas.get(content.get("$ref", "").rpartition("/")[2], {}).get("examples", []):
            assert client.post(path, **body).status == 200, path
            asked.append(path)
    assert {"/api/translate", "/api/score", "/api/explain", "/api/intervene", "/api/stream"} <= {
        *asked
    }


def test_the_page_is_code_alone_and_may_ask_only_this_server(client):
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert answer.status == 200
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert b'id="server">{"api":"/api"}' in answer.body
    assert b"weights-0" not in answer.body


# --- mistakes -------------------------------------------------------------------------------------

LONG, TEXT = "ja " * 200, SENTENCES[0]
MISTAKES = [
    ("/api/translate", {"texts": [LONG]}, 422, "text-too-long", "text 1 has 600 characters"),
    ("/api/translate", {"texts": ["ja"] * 9}, 422, "too-many-texts", "9 texts.* at most 8"),
    ("/api/translate", {"texts": ["ja"], "decoding": {"beam": 9}}, 422, "beam-too-large", "most 8"),
    (
        "/api/translate",
        {"texts": ["ja"], "decoding": {"nbest": 31, "sample": {}}},
        *(422, "nbest-too-large", "nbest is 31"),
    ),
    (
        "/api/translate",
        {"texts": ["ja"], "decoding": {"beam": 99}},
        422,
        "invalid",
        "decoding.beam",
    ),
    (
        "/api/translate",
        {"texts": ["ja"], "decoding": {"nbest": 2}},
        422,
        "invalid",
        "nbest .* beam",
    ),
    ("/api/translate", {"texts": ["ja", " "]}, 422, "invalid", "text 2 is empty"),
    ("/api/translate", {"texts": []}, 422, "invalid", "texts"),
    ("/api/translate", {"text": "ja"}, 422, "invalid", "texts: Field required"),
    ("/api/translate", {"texts": ["ja"], "model": "xx"}, 404, "unknown-model", 'no model "xx"'),
    (
        "/api/translate",
        {"texts": ["ja"], "interventions": [{"what": "ablate", "layer": 44}]},
        *(422, "invalid", "layer 44"),
    ),
    ("/api/score", {"pairs": [[TEXT, LONG]]}, 422, "text-too-long", "600 characters"),
    ("/api/page", {"kind": "sing"}, 422, "invalid", "kind|tag"),
    ("/api/labs/nothing", {}, 404, "unknown-lab", "no lab"),
    ("/api/nothing", {}, 404, "not-found", ""),
]


@pytest.mark.parametrize(("path", "body", "status", "code", "message"), MISTAKES)
def test_mistakes_have_one_shape(client, path, body, status, code, message):
    answer = client.post(path, **body)
    assert (answer.status, answer.json["code"]) == (status, code), answer.body
    assert answer.json.keys() == {"error", "code"}
    assert re.search(message, answer.json["error"])


@pytest.mark.parametrize("name", ["..", "%2e%2e%2ffamilies", "%ff", "families%00", "etc/passwd"])
def test_names_of_requests_are_no_paths(client, name):
    for path in ("/api/runs/", "/api/comparisons/"):
        answer = client.get(path + name)
        assert answer.status == 404
        assert answer.json.keys() == {"error", "code"}


def test_malformed_json(client):
    for body in (b"{", b"\xff\xfe", b'{"texts": ["\\ud800"]}', b"[" * 10_000):
        answer = client.send("POST", "/api/translate", body)
        assert answer.status in (400, 422)
        assert answer.json.keys() == {"error", "code"}
