"""CTranslate2 searches for the outputs: the same weights and length limits, other kernels.

Its greedy search is ours. Its beam search differs: a finished hypothesis is replaced in the beam at once, so
that k stay live, and a sentence is done when k times "patience" hypotheses are finished, while ours goes on
until no live one can win. Both rank by score / length^length_penalty, EOS included.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from regard.config import Config
from regard.engines.conversion import token_names
from regard.engines.folders import VMAP, find_model
from regard.errors import NotFiniteError
from regard.models.interface import Model
from regard.search import Hypothesis
from regard.text.tokenizer import BOS, EOS, PAD, TokenizerPair

BATCH_TOKENS = 4096  # source tokens in a batch, times the beam size
SHORTLIST_BATCH_TOKENS = (
    400  # with a shortlist: fewer, since the sentences of a batch share candidates
)
PATIENCE = 2  # with 1, 6 % of the outputs with beam 5 were worse than ours; with 2, 0.1 %
Source = Sequence[int]
Scored = tuple[list[int], float]
"""Ids, and their total log-probability."""


class CTranslate2(ABC):
    """A CTranslate2 model with our vocabularies."""

    class_name: ClassVar[str]
    """Its class in CTranslate2."""
    has_shortlist: bool = False

    def __init__(self, folder: Path, tokenizers: TokenizerPair, int8: bool = False) -> None:
        import ctranslate2

        self.folder, self.tokenizers = folder, tokenizers
        self.source_names = token_names(tokenizers.source)
        self.names = token_names(tokenizers.target)
        self.ids = {name: index for index, name in enumerate(self.names)}
        self.model = getattr(ctranslate2, self.class_name)(
            str(folder),
            compute_type="int8" if int8 else "default",  # the type of the weights in the folder
            intra_threads=torch.get_num_threads(),
        )

    @property
    def is_int8(self) -> bool:
        return self.model.compute_type.startswith("int8")

    @abstractmethod
    def generate(
        self, sources: list[Source], limit: int, options: dict[str, Any]
    ) -> list[list[Scored]]:
        """One call of CTranslate2: all hypotheses of each source, with scores / length^length_penalty."""

    @abstractmethod
    def score(self, source: Source, outputs: list[list[int]]) -> list[float]:
        """The total log-probability of each output."""

    @abstractmethod
    def batches(self, sources: Sequence[Source], max_tokens: int) -> Iterator[list[int]]:
        """Rows that one call takes."""

    def search(
        self,
        sources: Sequence[Source],
        limits: Sequence[int],
        beam_size: int = 1,
        nbest: int = 1,
        length_penalty: float = 1.0,
        batch_tokens: int | None = None,
    ) -> list[list[Hypothesis]]:
        """The `nbest` outputs for each source, best first, of at most `limits` tokens."""
        results: dict[int, list[Hypothesis]] = {}
        penalty = 0.0 if beam_size == 1 else length_penalty  # as in our greedy search
        search = Search(self, beam_size, penalty)
        max_tokens = (batch_tokens or BATCH_TOKENS) // beam_size
        if self.has_shortlist and batch_tokens is None:
            max_tokens = SHORTLIST_BATCH_TOKENS
        for rows in self.batches(sources, max_tokens):
            batch = [sources[row] for row in rows], [limits[row] for row in rows]
            results |= zip(rows, search.search(*batch), strict=True)
        return [results[row][:nbest] for row in range(len(sources))]


class Search:
    """Greedy or beam search with the limits and tokens of our own."""

    def __init__(self, engine: CTranslate2, beam_size: int, penalty: float) -> None:
        self.engine, self.penalty = engine, penalty
        self.options = {
            "beam_size": beam_size,
            "patience": PATIENCE,
            "num_hypotheses": 1 if beam_size == 1 else beam_size * PATIENCE,
            "length_penalty": penalty,
            "return_end_token": True,
            "return_scores": True,
        }

    def search(self, sources: list[Source], limits: list[int]) -> list[list[Hypothesis]]:
        """All hypotheses of each source, best first.

        A call has one limit, the largest; what exceeds its own is searched again.
        """
        found = self.engine.generate(sources, max(limits), self.options)
        for row, (source, limit) in enumerate(zip(sources, limits, strict=True)):
            if any(len(ids) > limit for ids, _ in found[row]):
                [found[row]] = self.engine.generate([source], limit, self.options)
            if any(PAD in ids or BOS in ids for ids, _ in found[row]):
                found[row] = self.search_without_special(source, limit)
        return [self.rank(outputs) for outputs in found]

    def search_without_special(self, source: Source, limit: int) -> list[Scored]:
        """Again, with PAD and BOS disabled, which are almost never generated.

        Not always so: probabilities are renormalised without disabled tokens, so the outputs are scored anew.
        """
        names = [[self.engine.names[PAD]], [self.engine.names[BOS]]]
        options = self.options | {"suppress_sequences": names}
        [outputs] = self.engine.generate([source], limit, options)
        ids = [ids for ids, _ in outputs]
        scores = self.engine.score(source, ids)
        return [
            (one, score / len(one) ** self.penalty) for one, score in zip(ids, scores, strict=True)
        ]

    def rank(self, outputs: list[Scored]) -> list[Hypothesis]:
        """Best first; truncated ones count only where none has ended with EOS."""
        ended = [one for one in outputs if one[0][-1] == EOS]
        ranked = sorted(ended or outputs, key=lambda one: -one[1])
        if not all(math.isfinite(normalised) for _, normalised in ranked):
            raise NotFiniteError
        return [
            Hypothesis(ids, normalised * len(ids) ** self.penalty, normalised)
            for ids, normalised in ranked
        ]


class EncoderDecoder(CTranslate2):
    """The source through the encoder; with a shortlist, if the folder has one."""

    class_name = "Translator"

    def __init__(self, folder: Path, tokenizers: TokenizerPair, int8: bool = False) -> None:
        super().__init__(folder, tokenizers, int8)
        self.has_shortlist = (folder / VMAP).is_file()

    def generate(
        self, sources: list[Source], limit: int, options: dict[str, Any]
    ) -> list[list[Scored]]:
        results = self.model.translate_batch(
            [self.tokens(source) for source in sources],
            max_decoding_length=limit,
            min_decoding_length=0,
            max_input_length=0,
            use_vmap=self.has_shortlist,
            **options,
        )
        return [
            [
                ([self.ids[token] for token in tokens], score)
                for tokens, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for result in results
        ]

    def tokens(self, source: Source) -> list[str]:
        """As strings, without EOS, which CTranslate2 adds."""
        ids = source[:-1] if self.tokenizers.source_eos else source
        return [self.source_names[i] for i in ids]

    def score(self, source: Source, outputs: list[list[int]]) -> list[float]:
        targets = [[self.names[i] for i in ids if i != EOS] for ids in outputs]
        results = self.model.score_batch([self.tokens(source)] * len(outputs), targets)
        return [sum(one.log_probs[: len(ids)]) for one, ids in zip(results, outputs, strict=True)]

    def batches(self, sources: Sequence[Source], max_tokens: int) -> Iterator[list[int]]:
        """Sources of similar length."""
        batch: list[int] = []
        for row in sorted(range(len(sources)), key=lambda row: len(sources[row])):
            if batch and (len(batch) + 1) * len(sources[row]) > max_tokens:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch


class DecoderOnly(CTranslate2):
    """The source and BOS as a prompt."""

    class_name = "Generator"

    def generate(
        self, sources: list[Source], limit: int, options: dict[str, Any]
    ) -> list[list[Scored]]:
        results = self.model.generate_batch(
            [self.prompt(source) for source in sources],
            max_length=limit,
            min_length=0,
            include_prompt_in_result=False,
            **options,
        )
        return [list(zip(one.sequences_ids, one.scores, strict=True)) for one in results]

    def prompt(self, source: Source) -> list[str]:
        return [self.names[i] for i in [*source, BOS]]

    def score(self, source: Source, outputs: list[list[int]]) -> list[float]:
        prompt = self.prompt(source)
        texts = [prompt + [self.names[i] for i in ids] for ids in outputs]
        results = self.model.score_batch(texts)
        return [sum(one.log_probs[len(prompt) - 1 :]) for one in results]

    def batches(self, sources: Sequence[Source], max_tokens: int) -> Iterator[list[int]]:
        """Sources of the same length: prompts are read at once only up to the shortest."""
        by_length: dict[int, list[int]] = {}
        for row, source in enumerate(sources):
            by_length.setdefault(len(source), []).append(row)
        for length, rows in by_length.items():
            size = max(1, max_tokens // length)
            yield from (rows[start : start + size] for start in range(0, len(rows), size))


def load_engine(
    settings: Config,
    tokenizers: TokenizerPair,
    model: Model,
    run: Path,
    folder: Path | None = None,
    int8: bool = False,
) -> CTranslate2:
    """The engine of a run; `folder`: written by `regard export`, else one in the cache."""
    kind = DecoderOnly if model.is_decoder_only else EncoderDecoder
    return kind(find_model(settings, tokenizers, model, run, folder), tokenizers, int8)
