"""The tree of hypotheses that beam search kept, for the page: its steps once more, recorded."""

from dataclasses import dataclass
from typing import Any

import torch

from regard.page.schema import Node
from regard.search import Constrain
from regard.search.step import next_log_probs, topk
from regard.text.vocabulary import BOS, EOS, Tokenizer

NEG_INF = float("-inf")


@dataclass(frozen=True)
class Prefix:
    """A hypothesis that can be extended."""

    ids: tuple[int, ...] = (BOS,)
    score: float = 0.0
    node: int | None = None


DEAD = Prefix(score=NEG_INF)


@dataclass(frozen=True)
class BeamRecorder:
    """The steps of beam search for one sentence, as `regard.search.beam` makes them."""

    model: Any
    size: int
    nbest: int
    max_length: int
    length_penalty: float
    constrain: Constrain | None = None

    @torch.inference_mode()
    def record(self, memory: Any, tokenizer: Tokenizer, best: list[int]) -> tuple[Node, ...]:
        """Every hypothesis that was kept; those that lead to the output `best` are marked."""
        state, beam, nodes = self.model.init_state(memory), [Prefix()], []
        finished: list[float] = []
        for step in range(self.max_length):
            log_probs, state = self.next_log_probs(beam, state, step)
            kept = self.extend(beam, log_probs)
            state = state.expand(self.size) if step == 0 else state
            live, rows = [], []
            for row, token, score in kept:
                parent = beam[row]
                ids = (*parent.ids, token)
                nodes.append((parent.node, step, token, score, ids[1:]))
                if token == EOS:
                    finished.append(score / (step + 1) ** self.length_penalty)
                else:
                    live.append(Prefix(ids, score, len(nodes) - 1))
                    rows.append(row)
            if not live or self.is_final(finished, live):
                break
            missing = self.size - len(live)
            beam = [*live, *[DEAD] * missing]
            state = state.reorder(log_probs.new_tensor([rows + [0] * missing]).long())
        return tuple(
            Node(
                parent=parent,
                step=step,
                token=tokenizer.ids_to_tokens([token])[0],
                score=score,
                finished=token == EOS or len(ids) == self.max_length,
                on_best=tuple(best[: len(ids)]) == ids,
            )
            for parent, step, token, score, ids in nodes
        )

    def next_log_probs(self, beam: list[Prefix], state: Any, step: int) -> tuple[Any, Any]:
        device = next(self.model.parameters()).device
        tokens = torch.tensor([one.ids[-1] for one in beam], device=device)
        log_probs, state = next_log_probs(self.model, tokens, state)
        return (self.constrain(log_probs, step) if self.constrain else log_probs), state

    def extend(self, beam: list[Prefix], log_probs: Any) -> list[tuple[int, int, float]]:
        """(hypothesis, token, score) of the best extensions."""
        values, tokens = (x.tolist() for x in topk(log_probs, min(self.size, log_probs.shape[1])))
        extensions = [
            (row, token, one.score + value)
            for row, one in enumerate(beam)
            for token, value in zip(tokens[row], values[row], strict=True)
            if one.score + value > NEG_INF
        ]
        return sorted(extensions, key=lambda one: -one[2])[: self.size]

    def is_final(self, finished: list[float], live: list[Prefix]) -> bool:
        """Can no live hypothesis still enter the n-best list?"""
        bound = max(one.score for one in live) / self.max_length**self.length_penalty
        return len(finished) >= self.nbest and sorted(finished)[-self.nbest] >= bound
