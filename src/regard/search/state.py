"""The state of a search, and the loop that all searches share.

    s_0 = start(memory)        s_(t+1) = step(s_t)        until no sentence of s_t has a live hypothesis

Every so many steps the host asks which sentences are done, and removes them from the batch. In between it
asks nothing, so on a GPU the steps are CUDA graphs (see `graphs`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import NotFiniteError
from regard.models.interface import DecoderState, Record, Rows, map_tensors
from regard.search.constrain import Constrain
from regard.search.hypothesis import Hypothesis
from regard.search.step import LogProbs, StepModel, next_log_probs

NEG_INF = float("-inf")
S = TypeVar("S", bound="Search")
Options = tuple[Hashable, ...]
Watch = Callable[["Search", Mapping[int, int]], object]
"""(search, sentence of each row that was live at the last check) -> anything; it may raise to give up"""
WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watch(function: Watch) -> Iterator[None]:
    """Call a function whenever a search in this context asks which sentences are done."""
    token = WATCH.set(function)
    try:
        yield
    finally:
        WATCH.reset(token)


@dataclass
class Search(Record, ABC):
    """What has been generated so far for each sentence of a batch, all on the device."""

    decoder: DecoderState
    tokens: Int[Tensor, "batch *beam"]
    """The last token of each hypothesis."""
    lengths: Int[Tensor, " batch"]
    """How many tokens have been generated, the same for all sentences."""
    max_lengths: Int[Tensor, " batch"]

    @classmethod
    @abstractmethod
    def init(cls: type[S], decoder: DecoderState, max_lengths: Tensor, *values: Any) -> S:
        """The search before the first token, one hypothesis for each sentence."""

    @abstractmethod
    def extend(self: S, log_probs: LogProbs) -> S:
        """Choose the next token of each hypothesis, whose decoder state has read all others."""

    @abstractmethod
    def live_scores(self) -> Float[Tensor, " batch"]:
        """The score of the best live hypothesis; minus infinity: the sentence is done."""

    @abstractmethod
    def hypotheses(self, rows: Rows) -> list[list[Hypothesis]]:
        """The outputs of these sentences, best first."""

    def step(
        self: S, model: StepModel[Any], constrain: Constrain | None = None, length: int = 0
    ) -> S:
        """Read the last token of each hypothesis and choose token number `length`. Consumes the state."""
        log_probs, decoder = next_log_probs(model, self.tokens.flatten(), self.decoder)
        log_probs = constrain(log_probs, length) if constrain else log_probs
        return replace(self, decoder=decoder).extend(log_probs)

    def reserve(self: S, tokens: int) -> S:
        """See `DecoderState.reserve`."""
        return replace(self, decoder=self.decoder.reserve(tokens))

    def select(self: S, rows: Rows) -> S:
        values: dict[str, Any] = {
            f.name: map_tensors(lambda tensor: tensor.index_select(0, rows), getattr(self, f.name))
            for f in fields(self)
            if f.name != "decoder"
        }
        return type(self)(decoder=self.decoder.select(rows), **values)


class Steps:
    """How steps are run: one after the other."""

    def __init__(self, model: StepModel[Any], constrain: Constrain | None = None) -> None:
        self.model, self.constrain = model, constrain

    def start(self, kind: type[S], memory: Any, tensors: Sequence[Tensor], options: Options) -> S:
        """The search after the first token of each sentence."""
        first = kind.init(self.model.init_state(memory), *tensors, *options)
        return first.step(self.model, self.constrain)

    def advance(self, search: S, length: int, count: int) -> S:
        """`count` steps after the first `length` tokens."""
        for step in range(length, length + count):
            search = search.step(self.model, self.constrain, step)
        return search

    def arrange(self, live: list[int], batch: int, is_overdue: bool) -> list[int] | None:
        """The rows of the next batch, first those that are live; None: the batch stays as it is.

        Overdue: the batch has a row that is done and for which the model may support no further position.
        """
        return live if len(live) < batch else None


def run_search(
    steps: Steps, search: Search, max_lengths: Sequence[int], check_every: int
) -> list[list[Hypothesis]]:
    """The outputs of all sentences, best first, of a search after the first token of each.

    Sentences that are done are removed from the batch every `check_every` steps, and at every maximum
    length, since the model may support no further position.
    """
    results: dict[int, list[Hypothesis]] = {}
    live = {
        row: row for row in range(len(max_lengths))
    }  # the sentence of each row that is not done
    limits, length = list(max_lengths), 1
    while True:
        if length % check_every == 0 or length in limits:
            if (observe := WATCH.get()) is not None:
                observe(search, live)
            scores = search.live_scores().tolist()
            if any(map(math.isnan, scores)):
                raise NotFiniteError
            done = [row for row in live if scores[row] == NEG_INF]
            if done:
                outputs = search.hypotheses(search.lengths.new_tensor(done))
                results |= {live.pop(row): best for row, best in zip(done, outputs, strict=True)}
            if not live:
                return check_scores([results[sentence] for sentence in range(len(max_lengths))])
            is_overdue = any(n <= length for row, n in enumerate(limits) if row not in live)
            rows = steps.arrange(list(live), len(limits), is_overdue)
            if rows is not None:
                search = search.select(search.lengths.new_tensor(rows))
                live, limits = dict(enumerate(live.values())), [limits[row] for row in rows]
        checks = [(length // check_every + 1) * check_every, *(n for n in limits if n > length)]
        search = steps.advance(search, length, min(checks) - length)
        length = min(checks)


def check_scores(nbest_lists: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
    """The n-best lists, if every sentence has an output; NaN ranks first."""
    if not all(best and math.isfinite(best[0].score) for best in nbest_lists):
        raise NotFiniteError
    return nbest_lists
