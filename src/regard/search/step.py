"""One search step: log-probabilities of the next token, and the best of them."""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.models.interface import StateT, Tokens
from regard.text.tokenizer import BOS, PAD

CHUNK = 64  # columns in a chunk of `topk`
LogProbs = Float[Tensor, "rows vocab"]


@runtime_checkable
class StepModel(Protocol[StateT]):
    """What a search needs of a model: any object with these two methods can be searched."""

    def init_state(self, memory: Any) -> StateT:
        """The decoder state before the first token, for a memory that the search only passes on."""
        ...

    def step(self, tokens: Any, state: StateT) -> tuple[Any, StateT]:
        """Read one token per row; logits [rows vocab] of the next token."""
        ...


def next_log_probs(
    model: StepModel[StateT], tokens: Tokens, state: StateT
) -> tuple[LogProbs, StateT]:
    """Log-probabilities of the next token; PAD and BOS are never generated."""
    logits, state = model.step(tokens, state)
    log_probs = logits.float()
    # In place: another [rows vocab] tensor would cost a pass over memory.
    log_probs = torch.log_softmax(log_probs, dim=-1, out=log_probs)
    log_probs[:, PAD] = log_probs[:, BOS] = float("-inf")
    return log_probs, state


def select_check_interval(device: torch.device) -> int:
    """Steps between checks for finished rows. On a GPU each check synchronises with the host."""
    return 1 if device.type == "cpu" else 8


def topk(
    values: Float[Tensor, "rows vocab"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """`torch.topk`, but faster: the largest values are in the chunks with the largest maxima."""
    rows, vocab = values.shape
    chunked = vocab // CHUNK * CHUNK
    is_faster = values.device.type == "cpu" or (values.device.type == "cuda" and count > 1)
    if chunked < 2 * count * CHUNK or not is_faster:
        return direct_topk(values, count)
    chunks = values[:, :chunked].unflatten(1, (-1, CHUNK))
    best_chunks = direct_topk(chunks.amax(-1), count)[1].sort(-1).values
    candidates = chunks.gather(1, best_chunks[..., None].expand(-1, -1, CHUNK)).flatten(1)
    offsets = torch.arange(CHUNK, device=values.device)
    columns = (best_chunks[..., None] * CHUNK + offsets).flatten(1)
    if chunked < vocab:
        rest = torch.arange(chunked, vocab, device=values.device).expand(rows, -1)
        candidates = torch.cat([candidates, values[:, chunked:]], dim=1)
        columns = torch.cat([columns, rest], dim=1)
    top, index = direct_topk(candidates, count)
    return top, columns.gather(1, index)


def direct_topk(
    values: Float[Tensor, "rows columns"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """`torch.topk`; with count 1, the first of equal values, like `argmax`."""
    top, index = values.max(-1, keepdim=True) if count == 1 else values.topk(count)
    return top, index
