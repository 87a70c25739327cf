"""Perplexity: teacher-forced, without label smoothing, per token with EOS, for any batch size."""

import io
import json
import math

import pytest
import torch

from regard.api import Translator
from regard.evaluation import Likelihood, aggregate, evaluate, likelihoods, report
from regard.terminal import Console
from regard.text.batch import EncodedPairs
from regard.text.tokenizer import BOS, EOS


def naive(translator: Translator, source: str, target: str) -> tuple[float, int, int]:
    """One sentence, one token at a time, through `step`: (nats, tokens, correct)."""
    ids = [*translator.tokenizers.source.encode(source), EOS]
    labels = [*translator.tokenizers.target.encode(target), EOS]
    model, nats, correct, previous = translator.model, 0.0, 0, BOS
    with torch.no_grad():
        memory = model.encode(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
        state = model.init_state(memory)
        for label in labels:
            logits, state = model.step(torch.tensor([previous]), state)
            nats -= float(logits[0].log_softmax(-1)[label])
            correct += int(logits[0].argmax()) == label
            previous = label
    return nats, len(labels), correct


def test_likelihood_of_each_sentence(translator: Translator, pairs) -> None:
    results = likelihoods(translator.model, EncodedPairs.from_pairs(pairs, translator.tokenizers))
    for one, pair in zip(results, pairs, strict=True):
        nats, tokens, correct = naive(translator, *pair)
        assert one.nats == pytest.approx(nats, rel=1e-5)
        assert (one.tokens, one.correct) == (tokens, correct)
        assert one.tokens == len(pair[1]) + 1


@pytest.mark.parametrize("batch_tokens", [1, 50, 100_000])
def test_batch_size_does_not_matter(translator: Translator, pairs, batch_tokens: int) -> None:
    encoded = EncodedPairs.from_pairs(pairs, translator.tokenizers)
    results = likelihoods(translator.model, encoded, batch_tokens)
    for one, other in zip(results, likelihoods(translator.model, encoded), strict=True):
        assert one.nats == pytest.approx(other.nats, rel=1e-5)
        assert (one.tokens, one.correct) == (other.tokens, other.correct)


def test_dropout_is_off_and_the_mode_is_restored(translator: Translator, pairs) -> None:
    encoded = EncodedPairs.from_pairs(pairs, translator.tokenizers)
    expected = likelihoods(translator.model, encoded)
    translator.model.train()
    assert likelihoods(translator.model, encoded) == expected
    assert translator.model.training


def test_corpus_averages(translator: Translator, pairs) -> None:
    """The mean is over tokens, not over sentences."""
    parts = [naive(translator, *pair) for pair in pairs]
    nats, tokens, correct = (sum(column) for column in zip(*parts, strict=True))
    report = evaluate(translator, pairs)
    assert report["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert report["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert report["token_accuracy"] == pytest.approx(correct / tokens)
    characters = sum(len(target + "\n") for _, target in pairs)
    assert report["bits_per_character"] == pytest.approx(nats / math.log(2) / characters, rel=1e-5)


def test_unknown_tokens_have_no_bits_per_character(translator: Translator, pairs) -> None:
    """UNK hides a spelling: the more unknown the reference, the cheaper each character would be."""
    known = evaluate(translator, pairs)
    assert known["unknown_tokens"] == 0
    assert "bits per character -" not in printed(known)
    unknown = evaluate(translator, [*pairs, ("the cat", "Ωθ cat")])
    assert (unknown["bits_per_character"], unknown["unknown_tokens"]) == (None, 2)
    assert unknown["perplexity"] > 1
    text = printed(unknown)
    assert "bits per character -   token accuracy" in text
    assert "no bits per character: 2 reference tokens are unknown" in text
    assert json.loads(json.dumps(unknown))["bits_per_character"] is None


def printed(evaluation: dict) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    report.print_report({"run": "run", "split": "test", **evaluation}, console)
    return console.export_text()


def test_closed_form_of_uniform_predictions() -> None:
    uniform = aggregate([Likelihood(3 * math.log(8), 3, 1), Likelihood(5 * math.log(8), 5, 2)])
    assert uniform.perplexity == pytest.approx(8)
    assert uniform.loss == pytest.approx(math.log(8))
    assert uniform.token_accuracy == 3 / 8
    assert uniform.bits_per_character(12) == pytest.approx(8 * 3 / 12)
    assert math.isfinite(Likelihood(1e6, 1, 0).perplexity)
