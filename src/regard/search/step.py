"""What every search does at each step: log-probabilities of the next token, and the best of them."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.models.interface import Model, Rows
from regard.text.tokenizer import BOS, PAD

CHUNK = 64
Chances = Float[Tensor, "rows vocab"]


def next_token(model: Model, tokens: Rows, state: Any) -> tuple[Chances, Any]:
    """Log-probabilities of the next token; padding and begin are never an output."""
    logits, state = model.step(tokens, state)
    chances = logits.float()
    # In place: a fresh [rows vocab] costs the memory's time once more.
    chances = torch.log_softmax(chances, dim=-1, out=chances)
    chances[:, PAD] = chances[:, BOS] = float("-inf")
    return chances, state


def patience(device: torch.device) -> int:
    """After how many steps to look which rows have ended. Looking is free on a CPU alone."""
    return 1 if device.type == "cpu" else 8


def best(
    values: Float[Tensor, "rows vocab"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """(the `count` largest of each row in falling order, where they stand): `topk`, but faster.

    The largest values lie in the chunks with the largest maxima, and a CPU is quick to take maxima.
    """
    rows, vocab = values.shape
    whole = vocab // CHUNK * CHUNK
    if whole < 2 * count * CHUNK or values.device.type != "cpu":
        return largest(values, count)
    chunks = values[:, :whole].unflatten(1, (-1, CHUNK))
    found = largest(chunks.amax(-1), count)[1].sort(-1).values
    inside = chunks.gather(1, found[..., None].expand(-1, -1, CHUNK)).flatten(1)
    columns = (found[..., None] * CHUNK + torch.arange(CHUNK, device=values.device)).flatten(1)
    if whole < vocab:
        rest = torch.arange(whole, vocab, device=values.device).expand(rows, -1)
        inside = torch.cat([inside, values[:, whole:]], dim=1)
        columns = torch.cat([columns, rest], dim=1)
    top, index = largest(inside, count)
    return top, columns.gather(1, index)


def largest(
    values: Float[Tensor, "rows columns"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """`topk`; a single one is the first of equals, as in `argmax`."""
    found, index = values.max(-1, keepdim=True) if count == 1 else values.topk(count)
    return found, index
