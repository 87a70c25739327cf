"""Metrics equal sacreBLEU on detokenised text; length buckets partition the split."""

import itertools
from dataclasses import replace

import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.api import Translator
from regard.evaluation import evaluate
from regard.evaluation.evaluate import cache_bytes_per_token, length_buckets
from regard.evaluation.metrics import exact_match, longest_fifth, score_corpus
from regard.search import Hypothesis
from regard.text.tokenizer import BOS, EOS

OUTPUTS = ["The cat sat on a mat.", "a quick Test of this!", "same again, word by word", ""]
REFERENCES = ["The cat sat on the mat.", "A quick test of it!", "same again, word by word", "x y"]


def test_scores_equal_sacrebleu() -> None:
    scores = score_corpus(OUTPUTS, REFERENCES)
    assert scores["bleu"] == sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES]).score
    lower = sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES], lowercase=True).score
    assert scores["bleu_lower"] == lower
    assert scores["bleu"] < lower
    assert scores["chrf"] == sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES]).score
    assert scores["exact_match"] == 0.25


def test_signatures() -> None:
    signatures = score_corpus(OUTPUTS, REFERENCES)["signatures"]
    assert {"case:mixed", "tok:13a"} <= set(signatures["bleu"].split("|"))
    assert {"case:lc", "tok:13a"} <= set(signatures["bleu_lower"].split("|"))
    assert f"version:{sacrebleu.__version__}" in signatures["chrf"]


@pytest.mark.parametrize(
    ("output", "score"), [("Cat.", 1.0), ("cat.", 0.0), ("Cat. ", 0.0), ("Cat", 0.0), ("", 0.0)]
)
def test_exact_match_is_exact(output: str, score: float) -> None:
    assert exact_match([output], ["Cat."]) == score


def test_outputs_and_references_must_have_equal_length() -> None:
    with pytest.raises(ValueError, match="longer"):
        exact_match(["a"], ["a", "b"])


def echo_references(translator: Translator, pairs, wrong: set[int], monkeypatch) -> None:
    """Make the translator output the references, except for the rows in `wrong`."""
    encode = translator.tokenizers.target.encode
    outputs = [("e" if row in wrong else target) for row, (_, target) in enumerate(pairs)]
    hypotheses = [[Hypothesis([*encode(text), EOS], -1.0, -1.0)] for text in outputs]
    monkeypatch.setattr(translator, "search", lambda *_, **__: hypotheses)


def test_a_perfect_translator(translator: Translator, pairs, monkeypatch) -> None:
    echo_references(translator, pairs, set(), monkeypatch)
    report = evaluate(translator, pairs)
    [result] = report["results"]
    assert result["outputs"] == [target for _, target in pairs]
    assert result["exact_match"] == 1.0
    assert result["bleu"] == pytest.approx(100)
    assert result["chrf"] == pytest.approx(100)
    assert result["sentences"] == len(pairs)
    assert all(row["exact_match"] == 1.0 for row in result["lengths"])


def test_length_buckets_are_consistent(translator: Translator, pairs, monkeypatch) -> None:
    wrong = {0, 3}
    echo_references(translator, pairs, wrong, monkeypatch)
    report = evaluate(translator, pairs)
    [result] = report["results"]
    assert result["exact_match"] == pytest.approx(1 - len(wrong) / len(pairs))
    assert sum(row["sentences"] for row in result["lengths"]) == len(pairs)
    hits = sum(row["exact_match"] * row["sentences"] for row in result["lengths"])
    assert hits == pytest.approx(len(pairs) - len(wrong))
    for row in result["lengths"]:
        inside = [i for i, (s, _) in enumerate(pairs) if row["from"] <= len(s) <= row["to"]]
        assert len(inside) == row["sentences"]
        right = [i for i in inside if i not in wrong]
        assert row["exact_match"] == pytest.approx(len(right) / len(inside))


@pytest.mark.parametrize("source_eos", [True, False])
def test_the_eos_of_a_source_is_not_part_of_its_length(
    translator: Translator, source_eos, monkeypatch
) -> None:
    pairs = [
        ("abcdefgh" * 6, "x"),
        ("abcdefgh" * 5, "x"),
    ]  # 48 and 40 characters: a bucket ends at 48
    tokenizers = replace(translator.tokenizers, source_eos=source_eos)
    translator = Translator(translator.config, tokenizers, translator.model)
    echo_references(translator, pairs, set(), monkeypatch)
    [result] = evaluate(translator, pairs)["results"]
    assert [(row["from"], row["to"]) for row in result["lengths"]] == [(33, 40), (41, 48)]


def test_batch_size_and_order_do_not_matter(translator: Translator, pairs) -> None:
    expected = evaluate(translator, pairs)
    single = evaluate(translator, pairs, batch_tokens=1)
    reversed_ = evaluate(translator, pairs[::-1])
    for other in (single, reversed_):
        for name in ("loss", "perplexity", "bits_per_character", "token_accuracy"):
            assert other[name] == pytest.approx(expected[name], rel=1e-5)
        for name in ("bleu", "bleu_lower", "chrf", "exact_match", "sentences"):
            assert other["results"][0][name] == pytest.approx(expected["results"][0][name])
    outputs = expected["results"][0]["outputs"]
    assert single["results"][0]["outputs"] == outputs
    assert reversed_["results"][0]["outputs"] == outputs[::-1]


def test_outputs_equal_translate(translator: Translator, pairs) -> None:
    report = evaluate(translator, pairs, beams=[1, 3])
    assert [result["beam"] for result in report["results"]] == [1, 3]
    sources = [source for source, _ in pairs]
    for result in report["results"]:
        translations = translator.translate(sources, beam=result["beam"], attention=False)
        assert result["outputs"] == [output.text for output in translations]


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=40), st.integers(1, 9))
def test_length_buckets_partition_the_rows(lengths: list[int], max_buckets: int) -> None:
    buckets = length_buckets(lengths, max_buckets)
    assert sorted(row for _, _, rows in buckets for row in rows) == list(range(len(lengths)))
    assert 1 <= len(buckets) <= max_buckets
    assert len({high - low for low, high, _ in buckets}) == 1
    assert all(one[1] < two[0] for one, two in itertools.pairwise(buckets))
    for low, high, rows in buckets:
        assert rows
        assert all(low <= max(lengths[row], 1) <= high for row in rows)


# --- the longest sources --------------------------------------------------------------------------


def test_longest_fifth() -> None:
    assert longest_fifth(["a", "bbb", "cc", "ddd", "e"]) == [1]  # ties: the first
    assert longest_fifth(["a", "bbb", "cc", "ddd", "e", "f"]) == [1, 3]  # rounded up, in order
    assert longest_fifth(["single"]) == [0]


@given(st.lists(st.text(max_size=9), min_size=1, max_size=40))
def test_no_source_outside_the_longest_fifth_is_longer(sources: list[str]) -> None:
    rows = longest_fifth(sources)
    assert 5 * len(rows) >= len(sources) > 5 * (len(rows) - 1)
    shortest = min(len(sources[row]) for row in rows)
    assert all(len(sources[row]) <= shortest for row in set(range(len(sources))) - set(rows))


def test_bleu_of_the_longest_fifth(translator: Translator, pairs, monkeypatch) -> None:
    """Rows 3 and 5 have the longest sources; only row 3 is wrong."""
    for wrong, perfect in (({0, 1, 2}, True), ({3}, False)):
        echo_references(translator, pairs, wrong, monkeypatch)
        [result] = evaluate(translator, pairs)["results"]
        assert (result["bleu_lower_longest"] == pytest.approx(100)) == perfect
    outputs = [result["outputs"][row] for row in (3, 5)]
    references = [pairs[row][1] for row in (3, 5)]
    score = sacrebleu.corpus_bleu(outputs, [references], lowercase=True).score
    assert result["bleu_lower_longest"] == pytest.approx(score)


# --- cache size -----------------------------------------------------------------------------------

TRANSFORMER = {"d_model": 22, "encoder": {"layers": 1}, "decoder": {"layers": 3}}
DECODER_ONLY = {"kind": "decoder-only", "d_model": 22, "decoder": {"layers": 5}}
LATENT = {"kind": "latent", "heads": 2, "latent_dim": 7, "rope_dim": 4}
CACHES = {
    # layers x (keys and values) x heads x head dimension x 4 bytes
    "multi-head": (TRANSFORMER | {"attention": {"heads": 11}}, 3 * 2 * 22 * 4),
    "head-dim": (TRANSFORMER | {"attention": {"heads": 3, "head_dim": 13}}, 3 * 2 * 39 * 4),
    "grouped": (TRANSFORMER | {"attention": {"heads": 22, "kv_heads": 2}}, 3 * 2 * 2 * 4),
    "multi-query": (
        DECODER_ONLY | {"attention": {"heads": 11, "kv_heads": 1}},
        5 * 2 * 2 * 4,
    ),
    "latent": (DECODER_ONLY | {"attention": LATENT, "position": "rotary"}, 5 * (7 + 4) * 4),
    "latent-without-rope": (DECODER_ONLY | {"attention": LATENT, "position": "none"}, 5 * 7 * 4),
    "state-space": (DECODER_ONLY | {"mixer": "state-space"}, 0),
    "state-space-encoder": (TRANSFORMER | {"mixer": "state-space", "attention": {"heads": 11}}, 0),
    "recurrent": ({"kind": "recurrent", "hidden_dim": 7}, 0),
    "input-feeding": ({"kind": "recurrent", "decoder": {"kind": "input-feeding"}}, 0),
    "bottleneck": ({"kind": "recurrent", "attention": "none", "cell": "lstm"}, 0),
}


@pytest.mark.parametrize("name", CACHES)
def test_cache_bytes_per_token(make, name: str) -> None:
    table, expected = CACHES[name]
    translator = make({"kind": "transformer"} | table)
    assert cache_bytes_per_token(translator.model) == expected
    state = initial_state(translator)
    before = state.cache_bytes()
    for _ in range(40):  # beyond the capacity that a cache allocates in advance
        _, state = translator.model.step(torch.tensor([BOS]), state)
    assert state.cache_bytes() - before == 40 * expected


def initial_state(translator: Translator):
    source = torch.tensor([[3, 4, 5, EOS]])
    memory = translator.model.encode(source, torch.ones_like(source, dtype=torch.bool))
    return translator.model.init_state(memory)
