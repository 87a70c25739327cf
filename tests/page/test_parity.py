"""For every model of tests/models: the engine computes what Python computes, in float32."""

import pytest
import torch

from regard.search import beam, greedy
from regard.text.tokenizer import BOS
from tests.models.conftest import SOURCE_VOCAB, TARGET_VOCAB
from tests.page.conftest import translator
from tests.page.engine import to_tensor

TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
LENGTHS = ((11, 17), (1, 3), (6, 1))  # of source and target


def make_ids(vocab: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(vocab + length)
    return torch.randint(2, vocab, (length,), generator=generator).tolist()


def encode(source: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.tensor([source])
    return ids, torch.ones_like(ids, dtype=torch.bool)


@torch.inference_mode()
def test_teacher_forcing_and_attention(engine, both):
    name, python = both
    for source_length, target_length in LENGTHS:
        source = make_ids(SOURCE_VOCAB, source_length)
        target = make_ids(TARGET_VOCAB, target_length)
        result = engine.call("read", model=name, source=source, target=target)
        inputs = (*encode(source), torch.tensor([[BOS, *target[:-1]]]))
        expected = python.model(*inputs).log_softmax(-1)[0]
        torch.testing.assert_close(to_tensor(result["log_probs"]), expected, **TOLERANCE)
        attention, weights = result["attention"], python.model.attention_weights(*inputs)
        assert attention.keys() == weights.keys()
        for mechanism, expected in weights.items():
            torch.testing.assert_close(to_tensor(attention[mechanism]), expected[0], **TOLERANCE)


@torch.inference_mode()
def test_search(engine, both):
    """Greedy search and beam search find the same outputs with the same scores."""
    name, python = both
    # A penalty above 1 favours long outputs: the first to end is often not the best.
    for length, nbest, penalty in ((7, 3, 0.7), (2, 1, 1.5)):
        source, limit = make_ids(SOURCE_VOCAB, length), 9
        memory = python.model.encode(*encode(source))
        task = {"model": name, "source": source, "max_length": limit}
        output = engine.call("greedy", **task)
        [expected] = greedy(python.model, memory, torch.tensor([limit]))
        assert output["ids"] == expected.ids
        assert output["score"] == pytest.approx(expected.score, abs=1e-3)
        memory = python.model.encode(*encode(source))
        options = {"size": 4, "nbest": nbest, "length_penalty": penalty}
        result = engine.call("beam", **task, **options)
        [outputs] = beam(python.model, memory, torch.tensor([limit]), 4, nbest, penalty)
        assert [h["ids"] for h in result["hypotheses"]] == [h.ids for h in outputs]
        for hypothesis, expected in zip(result["hypotheses"], outputs, strict=True):
            assert hypothesis["score"] == pytest.approx(expected.score, abs=1e-3)
            assert hypothesis["normalised"] == pytest.approx(expected.normalised, abs=1e-3)


def test_joint_vocabulary(engine):
    """One embedding for both sides, tied to the output projection or not."""
    for name in ("transformer-position-rotary", "transformer-untied", "decoder-only-rms"):
        python = translator(name, joint=True)
        engine.load(python, "joint")
        source = target = make_ids(TARGET_VOCAB, 7)
        result = engine.call("read", model="joint", source=source, target=target)
        with torch.inference_mode():
            logits = python.model(*encode(source), torch.tensor([[BOS, *target[:-1]]]))
        expected = logits.log_softmax(-1)[0]
        torch.testing.assert_close(to_tensor(result["log_probs"]), expected, **TOLERANCE)
