"""What a shift of all positions and another order of the words change: for the lab `relative`."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from regard.attention import POSITIONS
from regard.config import Transformer
from regard.errors import UserError
from regard.labs.measurements.self_attention import (
    HEADS,
    SelfAttention,
    Tokens,
    list_positions,
    position_tables,
)
from regard.models import build

SENTENCE, OTHER_ORDER = "the dog bites the man", "the man bites the dog"
MOVED = (
    3,
    4,
    2,
    0,
    1,
)  # the place in SENTENCE of each word of OTHER_ORDER, articles with their nouns

Class = Literal["relative", "relative, up to rounding", "absolute", "unknown"]
CLASSES: dict[str, Class] = {
    "none": "relative",  # trivially: no position, no shift
    "relative": "relative",
    "alibi": "relative",
    "rotary": "relative, up to rounding",
    "sinusoidal": "absolute",
    "learned": "absolute",
}


@dataclass(frozen=True)
class Case:
    """What a shift and another order change, with one kind of position."""

    name: str
    shifted: float
    """Largest change of an attention weight when all positions are shifted."""
    reordered: list[float]
    """Relative change of each word's vector when the words are in the other order."""

    @property
    def kind(self) -> Class:
        """By the full name first: one scaling of rotary may differ from the others."""
        return CLASSES.get(self.name, CLASSES.get(self.name.split(",")[0], "unknown"))

    @property
    def most_reordered(self) -> float:
        return float(torch.tensor(self.reordered).max())


def sentence_ids() -> Int[Tensor, "2 length"]:
    """Both sentences as ids from 1; 0 is padding."""
    words = sorted(set(SENTENCE.split()))
    sentences = [SENTENCE.split(), OTHER_ORDER.split()]
    return torch.tensor([[1 + words.index(word) for word in sentence] for sentence in sentences])


def measure_shift(attention: SelfAttention, x: Tokens, shift: int) -> float:
    """Largest |alpha(t + k) - alpha(t)|"""
    position_ids = torch.arange(len(x))
    weights, shifted = (attention(x, ids)[1] for ids in (position_ids, position_ids + shift))
    return float((shifted - weights).abs().max())


@torch.no_grad()
def measure_order(table: Any, d_model: int) -> list[float]:
    """|h' - h| / |h| for each word: h and h' are its vectors in both orders, from a bidirectional encoder."""
    ids = sentence_ids()
    vocab = int(ids.max()) + 1
    settings = Transformer(d_model=d_model, d_ff=2 * d_model, position=table)
    encoder = build(settings, vocab, vocab, joint=False).double().eval()
    vectors, reordered = encoder.encode(ids, torch.ones_like(ids, dtype=torch.bool)).states
    moved = vectors[list(MOVED)]
    return ((reordered - moved).norm(dim=-1) / moved.norm(dim=-1)).tolist()


def measure_cases(d_model: int, shift: int, generator: Generator) -> Iterator[Case]:
    """Every option of every position: a shift in one attention layer, another order in an encoder."""
    ids = sentence_ids()[0]
    table = torch.randn(int(ids.max()) + 1, d_model, dtype=torch.float64, generator=generator)
    tables = dict(position_tables())
    for name, position in list_positions(d_model):
        attention = SelfAttention(d_model, position)
        with suppress(UserError):  # a registered kind may be unfit for an encoder
            reordered = measure_order(tables[name], d_model)
            yield Case(name, measure_shift(attention, table[ids], shift), reordered)


@torch.no_grad()
def measure_alibi(d_model: int, length: int) -> Float[Tensor, "heads query key"]:
    """log(alpha_ij / alpha_ii) with queries of 0, so that ALiBi's bias is all there is to a score."""
    position = POSITIONS["alibi"](d_model, HEADS, d_model // HEADS)
    attention = SelfAttention(d_model, position)
    attention.layer.query.weight.zero_()
    x = torch.ones(length, d_model, dtype=torch.float64)
    weights = attention(x, torch.arange(length))[1]
    return (weights / weights.diagonal(dim1=1, dim2=2)[:, :, None]).log()
