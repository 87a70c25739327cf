"""Requests and responses: those of regard/page/schema.py, with Python's results and errors."""

import copy
import math
from typing import get_args

import pytest
import torch

from regard.api import Translator, from_loaded
from regard.config import kinds
from regard.page.schema import Models, Request, Translation
from regard.text.tokenizer import CharacterTokenizer, TokenizerPair
from regard.translator import Translator as Base
from tests.models.conftest import TARGET_VOCAB
from tests.page.conftest import translator
from tests.page.engine import EngineError, to_tensor

NAMES = ("gru-2-bidirectional", "transformer-position-rotary", "decoder-only-llama")
TEXT = "ABCDEFG"


def validate(response: dict) -> Translation:
    """The response, if it has the form that the schema says."""
    return Translation.model_validate(response)


@pytest.fixture(params=NAMES)
def python(request, load_both) -> tuple[str, Translator]:
    return request.param, from_loaded(load_both(request.param))


@pytest.mark.parametrize(("beam", "nbest"), [(1, 1), (4, 3)])
def test_translate(engine, python, beam, nbest):
    name, model = python
    response = engine.request(
        "translate", model=name, text=TEXT, decoding={"beam": beam, "nbest": nbest}
    )
    result = validate(response)
    [expected] = model.translate([TEXT], beam=beam, nbest=nbest)
    for one, other in zip(
        [result, *result.alternatives], [expected, *expected.alternatives], strict=True
    ):
        assert (one.text, one.source, one.target) == (
            other.text,
            tuple(other.source),
            tuple(other.target),
        )
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.normalised == pytest.approx(other.normalised, abs=1e-4)
        assert one.attention is not None
        assert one.attention.keys() == other.attention.keys()
    for mechanism, weights in expected.attention.items():
        torch.testing.assert_close(
            to_tensor(response["attention"][mechanism]), weights, atol=1e-4, rtol=0
        )
    assert result.milliseconds is not None
    assert result.milliseconds.keys() == {"encode", "search", "attention"}


def test_explain(engine, python):
    name, model = python
    target = "badcafe"
    result = validate(engine.request("explain", model=name, text=TEXT, target=target))
    [expected] = model.explain([(TEXT, target)])
    assert (result.text, result.target) == (target, tuple(expected.target))
    assert result.score == pytest.approx(expected.score, abs=1e-4)
    assert result.normalised == pytest.approx(expected.normalised, abs=1e-4)
    assert result.steps is not None
    [scored] = model.score([(TEXT, target)])
    assert [s.log_prob for s in result.steps] == pytest.approx(scored.log_probs, abs=1e-4)


def test_steps(engine, python):
    """Greedy search takes the best of each step; log-probabilities sum to the score."""
    name, _ = python
    request = {"model": name, "text": TEXT}
    result = validate(engine.request("translate", **request, best=TARGET_VOCAB - 2))
    assert result.steps is not None
    assert tuple(step.token for step in result.steps) == result.target
    assert sum(step.log_prob for step in result.steps) == pytest.approx(result.score, abs=1e-4)
    for step in result.steps:
        log_probs = [candidate.log_prob for candidate in step.best]
        assert (step.best[0].token, step.best[0].log_prob) == (step.token, step.log_prob)
        assert log_probs == sorted(log_probs, reverse=True)
        assert not {"<pad>", "<begin>"} & {candidate.token for candidate in step.best}
    assert validate(engine.request("translate", **request, best=0)).steps[0].best == ()  # type: ignore[index]


def test_tree(engine, python):
    """Nodes are the prefixes that the beam kept; the marked ones are the best output."""
    name, _ = python
    result = validate(engine.request("translate", model=name, text=TEXT, decoding={"beam": 3}))
    tree = result.tree
    assert tree is not None
    for number, node in enumerate(tree):
        parent = None if node.parent is None else tree[node.parent]
        assert node.parent is None or node.parent < number
        assert node.step == (0 if parent is None else parent.step + 1)
        assert node.score <= (0 if parent is None else parent.score)
        assert parent is None or not parent.finished
    by_step = [sum(node.step == step for node in tree) for step in range(len(result.target))]
    assert max(by_step) == 3
    best = [node for node in tree if node.on_best]
    assert tuple(node.token for node in best) == result.target
    assert best[-1].finished
    assert best[-1].score == pytest.approx(result.score, abs=1e-9)


def test_samples(engine, python):
    """They depend on the seed alone, and more of them leave the first ones as they are."""
    name, _ = python

    def texts(nbest=1, **sample):
        decoding = {"nbest": nbest, "sample": sample}
        result = validate(
            engine.request("translate", model=name, text=TEXT, decoding=decoding, best=0)
        )
        scores = [result.score, *(other.score for other in result.alternatives)]
        assert scores == sorted(scores, reverse=True)
        return [result.text, *(other.text for other in result.alternatives)]

    assert texts(seed=1, temperature=3) == texts(seed=1, temperature=3)
    assert len(set(texts(9, seed=1, temperature=3))) > 5
    assert set(texts(2, seed=1, temperature=3)) <= set(texts(5, seed=1, temperature=3))
    greedy = engine.request("translate", model=name, text=TEXT)["text"]
    assert texts(3, top_k=1) == [greedy] * 3
    assert texts(3, top_p=1e-9) == [greedy] * 3
    assert texts(3, temperature=1e-9) == [greedy] * 3


def test_uniform_draws_are_uniform(engine):
    draws = torch.tensor(engine.call("uniform", text="1/0", count=20_000))
    assert 0 <= float(draws.min()) <= float(draws.max()) < 1
    counts = torch.histc(draws, bins=20, min=0, max=1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 50  # chi-square, 19 degrees of freedom
    others = torch.tensor(engine.call("uniform", text="2/0", count=20_000))
    assert abs(float(torch.corrcoef(torch.stack([draws, others]))[0, 1])) < 0.03


def test_sampling_follows_the_distribution(engine, load_both):
    """First tokens of many samples, against the probabilities of the first step."""
    load_both("transformer-1")
    request = {"model": "transformer-1", "text": "AB"}
    count, first = 400, {}
    for seed in range(4):
        decoding = {"nbest": count, "sample": {"seed": seed}}
        result = engine.request("translate", **request, decoding=decoding, best=0)
        for output in [result, *result["alternatives"]]:
            first[output["target"][0]] = first.get(output["target"][0], 0) + 1
    best = engine.request("translate", **request, best=17)["steps"][0]["best"]
    total = sum(math.exp(c["log_prob"]) for c in best)  # padding and BOS are left out
    for candidate in best:
        share = math.exp(candidate["log_prob"]) / total
        assert first.get(candidate["token"], 0) / (4 * count) == pytest.approx(share, abs=0.04)


def test_models(engine, load_both):
    load_both("transformer-1")
    names = {info.name for info in Models.model_validate(engine.request("models")).models}
    assert "transformer-1" in names


def test_damaged_weights_are_an_error(engine):
    python = copy.deepcopy(translator("transformer-1"))
    with torch.no_grad():
        next(python.model.parameters()).fill_(torch.nan)
    engine.load(python, "damaged")
    for decoding in ({}, {"beam": 3}, {"sample": {}}):
        with pytest.raises(EngineError, match="output is not finite"):
            engine.request("translate", model="damaged", text="AB", decoding=decoding)
    with pytest.raises(EngineError, match="output is not finite"):
        engine.request("explain", model="damaged", text="AB", target="a")


ERRORS = {
    "is empty": {"text": " \n"},
    "has 40 tokens and this model reads at most 31": {"text": "A" * 40},
    'no model "x"': {"model": "x"},
    r"nbest \(3\) is above the beam size \(2\)": {"decoding": {"beam": 2, "nbest": 3}},
    "either beam search or sampling": {"decoding": {"beam": 2, "sample": {}}},
    'no request "sing"': {"kind": "sing"},
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(engine, load_both, message):
    load_both("transformer-1")
    request = {"kind": "translate", "model": "transformer-1", "text": "AB"} | ERRORS[message]
    with pytest.raises(EngineError, match=message):
        engine.request(request.pop("kind"), **request)


def test_strict_tokenizer(engine):
    base = translator("transformer-1", joint=True)
    pieces = base.tokenizers.target.pieces
    strict = CharacterTokenizer(pieces, (), lowercase=False, strict=True)
    python = from_loaded(Base(base.config, TokenizerPair(strict, strict, 31), base.model))
    engine.load(python, "strict")
    with pytest.raises(EngineError) as engine_error:
        engine.request("translate", model="strict", text="aZbYa")
    with pytest.raises(ValueError, match="not in this model's vocabulary") as python_error:
        python.translate(["aZbYa"])
    assert str(python_error.value) == str(engine_error.value).replace("the text", "text 1")


def test_too_long_for_the_position_table(engine):
    python = copy.deepcopy(translator("decoder-only-position-learned"))
    python.model.position.table = torch.nn.Parameter(python.model.position.table[:9])
    python.model.position.max_length = 9
    engine.load(python, "short")
    with pytest.raises(EngineError, match="its source has 9 tokens and its target 0"):
        engine.request("translate", model="short", text="ABCDEFGH")
    with pytest.raises(EngineError, match="allows at most 3 after that source"):
        engine.request("explain", model="short", text="ABCD", target="abcd")
    assert len(engine.request("translate", model="short", text="ABCD")["target"]) <= 4


def test_location_limit(engine):
    engine.load(translator("transformer-location"), "location")
    with pytest.raises(EngineError, match='"location" supports at most 256 keys and got 257'):
        engine.call("read", model="location", source=[5] * 257, target=[5])


def test_every_request_of_the_schema_is_answered_and_no_other(engine, python):
    tables = get_args(get_args(Request)[0])
    names = [name for table in tables for name in kinds(table)]
    for name in names:
        assert engine.request(name, model=python[0], text=TEXT, target="ab")
    with pytest.raises(EngineError, match='no request "sing"') as error:
        engine.request("sing", model=python[0])
    assert str(error.value).endswith(f"choose {', '.join(names[:-1])} or {names[-1]}")
