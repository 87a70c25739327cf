"""Autoregressive generation of one output per row: what greedy search and sampling share."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.models.interface import DecoderState, Rows, Tokens
from regard.search.hypothesis import Hypothesis
from regard.search.state import NEG_INF, Search
from regard.search.step import LogProbs
from regard.text.tokenizer import BOS, EOS, PAD

G = TypeVar("G", bound="Generation")


@dataclass
class Generation(Search):
    """One output per row. A row that has produced EOS or reached its maximum length produces no more."""

    ids: Int[Tensor, "batch longest"]
    scores: Float[Tensor, " batch"]
    is_active: Bool[Tensor, " batch"]

    @classmethod
    def init(
        cls: type[G], decoder: DecoderState, max_lengths: Int[Tensor, " batch"], *values: Any
    ) -> G:
        """`values`: those of a subclass, and last the number of columns of `ids`."""
        *others, columns = values
        zeros, batch = torch.zeros_like(max_lengths), len(max_lengths)
        return cls(
            decoder,
            torch.full_like(max_lengths, BOS),
            zeros,
            max_lengths,
            max_lengths.new_full((batch, columns), PAD),
            zeros.float(),
            zeros == 0,
            *others,
        )

    @abstractmethod
    def choose(self, log_probs: LogProbs) -> Tokens:
        """The next token of each row."""

    def extend(self: G, log_probs: LogProbs) -> G:
        tokens = self.choose(log_probs)[:, None]
        new = torch.where(self.is_active[:, None], tokens, PAD)
        added = log_probs.gather(1, tokens)[:, 0]
        lengths, tokens = self.lengths + 1, tokens[:, 0]
        return replace(
            self,
            tokens=tokens,
            lengths=lengths,
            ids=self.ids.scatter_(1, self.lengths[:, None], new),
            scores=self.scores + torch.where(self.is_active, added, 0.0),
            is_active=self.is_active & (tokens != EOS) & (lengths < self.max_lengths),
        )

    def live_scores(self) -> Float[Tensor, " batch"]:
        return torch.where(self.is_active, self.scores, NEG_INF)

    def hypotheses(self, rows: Rows) -> list[list[Hypothesis]]:
        ids, scores = self.ids[rows].tolist(), self.scores[rows].tolist()
        return [
            [Hypothesis([i for i in row if i != PAD], score, score)]
            for row, score in zip(ids, scores, strict=True)
        ]
