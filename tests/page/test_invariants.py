"""Invariants of the engine alone, for every model: those that hold in Python."""

import pytest
import torch

from tests.models.conftest import SOURCE_VOCAB, TARGET_VOCAB
from tests.page.engine import to_tensor
from tests.page.test_parity import make_ids

SOURCE, TARGET = make_ids(SOURCE_VOCAB, 7), make_ids(TARGET_VOCAB, 13)


def test_stepping_equals_reading_at_once(engine, both):
    ids = {"model": both[0], "source": SOURCE, "target": TARGET}
    at_once = to_tensor(engine.call("read", **ids)["log_probs"])[:, 2:]  # never PAD and BOS
    stepwise = to_tensor(engine.call("read_stepwise", **ids))[:, 2:]
    torch.testing.assert_close(stepwise, at_once, atol=1e-6, rtol=1e-6)


def test_beam_of_one_equals_greedy(engine, both):
    task = {"model": both[0], "source": SOURCE, "max_length": 9}
    greedy = engine.call("greedy", **task)
    [best] = engine.call("beam", **task, size=1, length_penalty=0)["hypotheses"]
    assert best["ids"] == greedy["ids"]
    assert best["score"] == pytest.approx(greedy["score"], abs=1e-5)


def test_hypotheses_do_not_affect_each_other(engine, both):
    """The score of each hypothesis of a beam is that of a pass over it alone."""
    task = {"model": both[0], "source": SOURCE}
    result = engine.call("beam", **task, max_length=9, size=4, nbest=4)
    for hypothesis in result["hypotheses"]:
        ids = hypothesis["ids"]
        log_probs = to_tensor(engine.call("read", **task, target=ids)["log_probs"])
        alone = log_probs.gather(1, torch.tensor(ids)[:, None]).sum()
        assert hypothesis["score"] == pytest.approx(float(alone), abs=1e-4)


def test_weights_sum_to_one_or_zero_and_never_look_ahead(engine, load_both):
    load_both("decoder-only-position-rotary")
    request = {"model": "decoder-only-position-rotary", "source": SOURCE, "target": TARGET}
    attention = engine.call("read", **request)["attention"]
    cross, encoder, decoder = (to_tensor(attention[m]) for m in ("cross", "encoder", "decoder"))
    ones = torch.ones(cross.shape[:-1])
    torch.testing.assert_close(cross.sum(-1) + decoder.sum(-1), ones)
    assert bool((decoder.triu(1) == 0).all())
    assert bool((encoder.triu(1) == 0).all())
