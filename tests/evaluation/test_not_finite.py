"""A translator with damaged weights: one error from everything that returns its output."""

from pathlib import Path

import pytest
import torch

from regard.api import Sampling, Translator
from regard.cli import pictures
from regard.errors import NotFiniteError
from regard.evaluation import ablate, evaluate
from regard.text.batch import EncodedPairs


@pytest.fixture
def damaged(translator: Translator) -> Translator:
    with torch.no_grad():
        next(translator.model.parameters()).fill_(float("nan"))
    return translator


def test_every_output(damaged: Translator, pairs, monkeypatch, tmp_path) -> None:
    texts, message = ["the cat"], r"not finite \(NaN or infinity\): its weights are damaged"
    for options in ({}, {"beam": 3}, {"beam": 3, "nbest": 3}, {"sample": Sampling(top_k=3)}):
        for attention in (True, False):
            with pytest.raises(NotFiniteError, match=message):
                damaged.translate(texts, **options, attention=attention)
    with pytest.raises(NotFiniteError, match=message):
        evaluate(damaged, pairs)
    for kind in ("heads", "attention"):
        with pytest.raises(NotFiniteError, match=message):
            ablate(damaged, pairs, kind)
    monkeypatch.setattr(pictures, "load_translator", lambda *_: damaged)
    picture = tmp_path / "attention.png"
    with pytest.raises(NotFiniteError, match=message):
        pictures.diagram(Path("run"), texts, out=picture)
    assert not picture.exists()


def test_attention_weights(translator: Translator, monkeypatch) -> None:
    """Also where the output itself is finite."""
    encoded = EncodedPairs.from_pairs([("the cat", "")], translator.tokenizers)
    [[output]] = translator.search(encoded)
    assert translator.attention_weights(encoded, [(0, output)])[0][0]["cross"].isfinite().all()
    for layers in translator.model.attention_layers().values():
        monkeypatch.setattr(
            layers[-1], "normalise", lambda scores: torch.full_like(scores, float("nan"))
        )
    with pytest.raises(NotFiniteError):
        translator.attention_weights(encoded, [(0, output)])
