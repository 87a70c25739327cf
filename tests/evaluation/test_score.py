"""`Translator.score`: log-probabilities by token, which agree with `evaluate` and with `translate`."""

import math

import pytest
import torch

from regard.api import Sampling, Translator
from regard.errors import NotFiniteError
from regard.evaluation import evaluate
from regard.text.tokenizer import EOS


def test_scores_sum_to_the_loss(translator: Translator, pairs) -> None:
    scored = translator.score(pairs)
    report = evaluate(translator, pairs)
    tokens = sum(len(pair.log_probs) for pair in scored)
    assert math.exp(-sum(pair.score for pair in scored) / tokens) == pytest.approx(
        report["perplexity"]
    )
    for pair, (source, target) in zip(scored, pairs, strict=True):
        assert len(pair.log_probs) == len(pair.target) == len(target) + 1  # characters, and EOS
        assert pair.target[:-1] == list(target)
        assert pair.source[:-1] == list(source)
        assert all(value < 0 for value in pair.log_probs)


def test_each_token_has_the_log_probability_of_its_step(translator: Translator) -> None:
    """One step at a time, without teacher forcing."""
    [pair] = translator.score([("a b", "b a")])
    ids = translator.tokenizers.encode_source("a b")
    labels = [*translator.tokenizers.target.encode("b a"), EOS]
    model, expected, previous = translator.model, [], 1
    with torch.no_grad():
        memory = model.encode(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
        state = model.init_state(memory)
        for label in labels:
            logits, state = model.step(torch.tensor([previous]), state)
            expected.append(float(logits[0].log_softmax(-1)[label]))
            previous = label
    assert pair.log_probs == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_an_output_has_its_own_score(translator: Translator, pairs) -> None:
    """Random weights may not end an output: then its score is that of the tokens it has."""
    sources = [source for source, _ in pairs]
    translations = translator.translate(sources, sample=Sampling(), nbest=9)
    outputs = [
        (source, output)
        for source, best in zip(sources, translations, strict=True)
        for output in (best, *best.alternatives)
        if "<unk>" not in output.target  # which no text is encoded as
    ]
    assert len(outputs) > 9
    scored = translator.score([(source, output.text) for source, output in outputs], attention=True)
    for pair, (_, output) in zip(scored, outputs, strict=True):
        count = len(output.target)
        assert pair.target[:count] == output.target
        assert math.fsum(pair.log_probs[:count]) == pytest.approx(output.score, rel=1e-4)
        for mechanism, weights in output.attention.items():
            _, _, queries, keys = weights.shape
            torch.testing.assert_close(pair.attention[mechanism][:, :, :queries, :keys], weights)


def test_batch_size_does_not_matter(translator: Translator, pairs) -> None:
    together, alone = (translator.score(pairs, batch_tokens=tokens) for tokens in (None, 1))
    for one, other in zip(together, alone, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, rel=1e-4, abs=1e-5)
    assert translator.score([]) == []
    assert translator.score(iter(pairs))[0].target == together[0].target


def test_damaged_weights(translator: Translator, pairs) -> None:
    with torch.no_grad():
        next(translator.model.parameters()).fill_(float("nan"))
    with pytest.raises(NotFiniteError):
        translator.score(pairs)
