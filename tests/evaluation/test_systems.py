"""Other systems' outputs: the same metrics and signatures, several references, paired tests."""

import pytest
import sacrebleu

from regard.api import Translator
from regard.errors import UserError
from regard.evaluation import compare_systems, evaluate, evaluate_outputs, evaluate_systems
from regard.evaluation.metrics import (
    METRICS,
    SACREBLEU,
    exact_match,
    score,
    score_corpus,
    select_metrics,
)
from regard.statistics import paired_bootstrap_p
from regard.text.references import ReferenceSet

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "dog", "run", "old", "by", "night"]
REFERENCES = [" ".join(WORDS[(i * n) % 13] for n in range(1, 8 + i % 5)) for i in range(40)]
WORSE = [text.replace("the", "no").replace("dog", "cow") for text in REFERENCES]
FEW = [["a cat", "the cat"], ["a dog"], ["one hat", "a hat", "hats"]]


@pytest.mark.parametrize("name", SACREBLEU)
def test_several_references_are_those_of_sacrebleu(name: str) -> None:
    outputs = ["the cat", "the dog", "a hat"]
    streams = [["a cat", "a dog", "one hat"], ["the cat", None, "a hat"], [None, None, "hats"]]
    options = {"bleu_lower": {"lowercase": True}, "bleu_tokens": {"tokenize": "none"}}.get(name, {})
    function = getattr(sacrebleu, f"corpus_{name.partition('_')[0]}")
    assert score(name, outputs, FEW) == function(outputs, streams, **options).score
    scores = score_corpus(outputs, FEW, on_tokens=name == "bleu_tokens")
    assert "nrefs:var" in scores["signatures"][name]


def test_any_reference_may_match_exactly() -> None:
    assert exact_match(["the cat", "the dog", "hats"], FEW) == pytest.approx(2 / 3)
    assert score("exact_match", ["the cat", "the dog", "hats"], FEW) == pytest.approx(2 / 3)


@pytest.mark.parametrize("name", METRICS)
def test_a_perfect_output_is_never_worse(name: str) -> None:
    perfect, worse = score(name, REFERENCES, REFERENCES), score(name, WORSE, REFERENCES)
    assert (perfect < worse) == METRICS[name].lower_is_better


def test_hypotheses_are_scored_as_our_own_outputs(translator: Translator, pairs) -> None:
    """Our outputs, given as another system's, have equal figures and no difference."""
    [result] = evaluate(translator, pairs)["results"]
    figures = evaluate_systems(
        translator, ReferenceSet.from_pairs(pairs), {"same": result["outputs"]}
    )
    [ours], [theirs] = figures["results"], figures["hypotheses"]
    assert theirs["file"] == "same"
    for name in (*METRICS, "signatures", "bleu_lower_longest", "sentences"):
        assert theirs[name] == ours[name] == result[name]
    for mine, other in zip(ours["lengths"], theirs["lengths"], strict=True):
        assert other.items() <= mine.items()
    [test] = figures["tests"]["systems"]
    assert test.keys() - {"system"} == set(select_metrics())
    assert {(test[name]["difference"], test[name]["p"]) for name in select_metrics()} == {
        (0.0, 1.0)
    }


def test_paired_tests() -> None:
    tests = compare_systems({"good": REFERENCES, "bad": WORSE}, REFERENCES)
    assert tests["baseline"] == "good"
    [test] = tests["systems"]
    assert test["system"] == "bad"
    for name in select_metrics():
        difference = score(name, WORSE, REFERENCES) - score(name, REFERENCES, REFERENCES)
        assert test[name]["difference"] == pytest.approx(difference)
        assert 0 < test[name]["p"] < 0.01
        assert test[name]["interval"] > 0
    expected = paired_bootstrap_p([REFERENCES], [WORSE], REFERENCES)
    assert test["bleu_lower"]["p"] == expected  # the test of `regard compare`


def test_every_output_needs_a_reference() -> None:
    with pytest.raises(UserError, match="bad has 2 outputs for 40 references"):
        compare_systems({"good": REFERENCES, "bad": WORSE[:2]}, REFERENCES)


def test_length_buckets_of_outputs_partition_them() -> None:
    sources = [text.upper() for text in REFERENCES]
    result = evaluate_outputs(WORSE, sources, REFERENCES)
    assert sum(bucket["sentences"] for bucket in result["lengths"]) == len(sources)
    for bucket in result["lengths"]:
        rows = [
            r for r, s in enumerate(sources) if bucket["from"] <= len(s.split()) <= bucket["to"]
        ]
        part = [WORSE[row] for row in rows], [REFERENCES[row] for row in rows]
        assert bucket["chrf"] == score("chrf", *part)
        assert bucket["exact_match"] == exact_match(*part)
