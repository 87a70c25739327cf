"""Translators with random weights: the metrics do not need a trained model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from regard.api import Translator
from regard.config import Config
from regard.models import build
from regard.text.tokenizer import TokenizerPair

MODELS = {
    "recurrent": {"kind": "recurrent", "hidden_dim": 7, "embedding_dim": 5, "dropout": 0.3},
    "transformer": {"kind": "transformer", "d_model": 6, "dropout": 0.3, "attention": {"heads": 2}},
    "decoder-only": {
        "kind": "decoder-only",
        "d_model": 6,
        "dropout": 0.3,
        "attention": {"heads": 2},
    },
}
PAIRS = [
    ("the cat sat on the mat", "The cat sat on the mat."),
    ("a b", "A b, and c d e f g?"),
    ("dogs", "Dogs do bark!"),
    ("it was the best of times, it was", "It was the worst of times."),
    ("e", "e"),
    ("where is my hat and my coat", "Where is my hat and my coat?"),
    ("no", "No, no, no, no, no, no, no, no."),
]


@pytest.fixture
def pairs() -> list[tuple[str, str]]:
    return list(PAIRS)


@pytest.fixture(params=list(MODELS))
def translator(request: pytest.FixtureRequest) -> Translator:
    return build_translator(MODELS[request.param], {"max_ratio": 1.0, "max_extra": 3})


@pytest.fixture
def make() -> Callable[[dict[str, Any]], Translator]:
    """Build a translator from a [model] table; outputs are short, as random weights rarely emit EOS."""
    return lambda table: build_translator(table, {"max_ratio": 0.1, "max_extra": 3})


def build_translator(table: dict[str, Any], search: dict[str, Any] | None = None) -> Translator:
    torch.manual_seed(5)
    config = Config.model_validate({"model": table, "search": search or {}})
    tokenizers = TokenizerPair.train(config.tokenizer, PAIRS, ())
    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    return Translator(config, tokenizers, build(config.model, *sizes, tokenizers.joint))
