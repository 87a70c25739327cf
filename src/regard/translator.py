"""The whole path in one file: text -> ids -> memory -> search -> text, with attention weights."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from regard.config import Config
from regard.engines.ctranslate2 import CTranslate2
from regard.errors import NotFiniteError, UserError
from regard.intervention_checks import check_model, check_text, constrain_output
from regard.interventions import Intervention, parse
from regard.models import Model
from regard.models.batching import batch_rows
from regard.models.intervene import intervene
from regard.search import Constrain, Hypothesis, beam, greedy
from regard.search.graphs import find_graphs
from regard.search.run import SOURCE_STEP, encode, round_batch
from regard.text import moses
from regard.text.batch import EncodedPairs, pad
from regard.text.sequences import check_texts
from regard.text.tokenizer import BOS, EOS, UNK, TokenizerPair
from regard.translation import Attention, Decoding, Sampling, Translation

__all__ = ["Sampling", "Translation", "Translator"]

BATCH_TOKENS = 4096
GPU_BATCH_TOKENS = 32_768  # on a GPU, a step takes as long for one sentence as for a thousand


class Translator:
    """A trained model with its tokenizers and config: the result of `regard.load`."""

    def __init__(
        self,
        config: Config,
        tokenizers: TokenizerPair,
        model: Model,
        card: dict[str, Any] | None = None,
        engine: CTranslate2 | None = None,
    ) -> None:
        self.config = config
        self.tokenizers = tokenizers
        self.model = model.eval()
        self.card = card
        """The result card of its run, if it has one."""
        self.engine = engine
        """What searches for the outputs; None: the loop of `search`, in PyTorch."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def translate(
        self,
        texts: Iterable[str],
        *,
        beam: int = 1,
        nbest: int = 1,
        sample: Sampling | None = None,
        attention: bool = True,
        batch_tokens: int | None = None,
        interventions: Iterable[Intervention | Mapping[str, Any]] | None = (),
    ) -> list[Translation]:
        """Translate each text with greedy search, beam search or sampling.

        `attention` costs one more forward pass over each output. `batch_tokens`: maximum number of tokens
        in a batch; the default depends on the device. `interventions` change the model for these texts (see
        `regard.interventions`).
        """
        decoding = Decoding(beam, nbest, sample, attention, batch_tokens, parse(interventions))
        check_texts(texts, "translate")
        self._check_interventions(decoding.interventions)
        sources = [
            self._encode_checked(text, f"text {n}", decoding.interventions)
            for n, text in enumerate(texts, start=1)
        ]
        return self._translate(sources, range(len(sources)), decoding)

    def try_translate(
        self, texts: Sequence[str], decoding: Decoding, first_number: int = 1, noun: str = "text"
    ) -> list[Translation | UserError]:
        """The translation of each text, or the error that says why there is none.

        `first_number` is the number of the first text, as a seed of its samples and, after `noun`, in errors.
        """
        self._check_interventions(decoding.interventions)
        names = (f"{noun} {first_number + row}" for row in range(len(texts)))
        sources = [
            self.try_encode(text, name, decoding.interventions)
            for text, name in zip(texts, names, strict=True)
        ]
        encoded = {row: ids for row, ids in enumerate(sources) if not isinstance(ids, UserError)}
        numbers = [first_number - 1 + row for row in encoded]
        outputs = self._translate(list(encoded.values()), numbers, decoding)
        translated = dict(zip(encoded, outputs, strict=True))
        return [
            source if isinstance(source, UserError) else translated[row]
            for row, source in enumerate(sources)
        ]

    def try_encode(
        self, text: str, name: str, interventions: Sequence[Intervention] = ()
    ) -> list[int] | UserError:
        """The ids of a text, with its EOS, or the error that says why this model cannot read it."""
        try:
            return self._encode_checked(text, name, interventions)
        except UserError as error:
            return error

    def _encode_checked(
        self, text: str, name: str, interventions: Sequence[Intervention]
    ) -> list[int]:
        ids = self.encode_source(text, name)
        check_text(interventions, name, len(ids), self.max_output_length(len(ids)))
        return ids

    def _check_interventions(self, interventions: Sequence[Intervention]) -> None:
        if interventions:
            self.check_engine("interventions")
            check_model(interventions, self.model)
            constrain_output(interventions, self.tokenizers.target)

    def _translate(
        self, sources: list[list[int]], numbers: Sequence[int], decoding: Decoding
    ) -> list[Translation]:
        """The translations of encoded sources; `numbers` seed their samples."""
        encoded = EncodedPairs(sources, [[] for _ in sources])
        options = (decoding.beam, decoding.nbest, decoding.sample, decoding.batch_tokens)
        constrain = constrain_output(decoding.interventions, self.tokenizers.target)
        with intervene(self.model, decoding.interventions):
            nbest_lists = self.search(encoded, *options, numbers, constrain)
            outputs = [
                (row, hypothesis) for row, best in enumerate(nbest_lists) for hypothesis in best
            ]
            translations = iter(self._translations(encoded, outputs, decoding))
        ranked = [list(islice(translations, len(best))) for best in nbest_lists]
        return [replace(best[0], alternatives=best[1:]) for best in ranked]

    def _translations(
        self,
        encoded: EncodedPairs,
        outputs: Sequence[tuple[int, Hypothesis]],
        decoding: Decoding,
    ) -> list[Translation]:
        """Each (row, output) as text and tokens, with its attention weights if they are wanted."""
        all_weights: Sequence[list[Attention] | None] = [None] * len(outputs)
        if decoding.attention:
            all_weights = self.attention_weights(encoded, outputs, decoding.batch_tokens)
        return [
            Translation(
                self.tokenizers.target.decode(hypothesis.ids),
                self.tokenizers.source.ids_to_tokens(encoded.source[row]),
                self.tokenizers.target.ids_to_tokens(hypothesis.ids),
                hypothesis.score,
                hypothesis.normalised,
                weights=weights,
                ids=hypothesis.ids,
            )
            for (row, hypothesis), weights in zip(outputs, all_weights, strict=True)
        ]

    def encode_source(self, text: str, name: str) -> list[int]:
        """The ids of a raw text, with its EOS, if this model can read it; errors call it by its `name`."""
        if not isinstance(text, str):
            raise UserError(f"{name} is not a string but a {type(text).__name__}: {text!r}")
        if self.config.is_language_model:
            if text:
                raise UserError(
                    f"{name} is not empty, and this is a language model, which has no source: "
                    "leave the text out, and sample with --sample"
                )
            return self.tokenizers.encode_source(text)
        text = moses.preprocess(text, self.config.data, "source")
        if not text.strip():
            raise UserError(f"{name} is empty: there is nothing to translate")
        tokenizer, limit = self.tokenizers.source, self.tokenizers.max_tokens
        ids = tokenizer.encode(text)
        if len(ids) > limit:
            raise UserError(
                f"{name} has {len(ids)} tokens and this model reads at most {limit} "
                "(tokenizer.max_tokens): shorten or split it"
            )
        if tokenizer.strict and UNK in ids:
            # No UNK occurred in training, so its embedding is untrained.
            quoted = ", ".join(f'"{piece}"' for piece in tokenizer.unknown_pieces(text)[:5])
            known = "".join(sorted(p for p in tokenizer.pieces if len(p) == 1 and not p.isspace()))
            raise UserError(
                f"{name} contains {quoted}, which is not in this model's vocabulary; "
                f"it knows {known or len(tokenizer.pieces)}"
            )
        return ids + [EOS] * self.tokenizers.source_eos

    def search(
        self,
        encoded: EncodedPairs,
        beam_size: int = 1,
        nbest: int = 1,
        sampling: Sampling | None = None,
        batch_tokens: int | None = None,
        numbers: Sequence[int] | None = None,
        constrain: Constrain | None = None,
    ) -> list[list[Hypothesis]]:
        """The `nbest` outputs for each source, best first, independent of the batching.

        `numbers` seed the samples of each source: 0, 1, ... by default. `constrain`: the tokens allowed.
        """
        Decoding(beam_size, nbest, sampling)  # raises an error if they do not go together
        numbers = range(len(encoded)) if numbers is None else numbers
        results: dict[int, list[Hypothesis]] = {}
        length_penalty = self.config.search.length_penalty
        on_gpu = self.device.type == "cuda"
        use_graphs = self.config.search.cuda_graphs and constrain is None
        graphs = (use_graphs and find_graphs(self.model, self.device)) or False
        tokens = batch_tokens or (GPU_BATCH_TOKENS if on_gpu else BATCH_TOKENS)
        self.check_lengths(encoded)
        if self.engine is not None:
            if sampling is not None:
                self.check_engine("sampling")
            lengths = [self.max_output_length(len(source)) for source in encoded.source]
            options = (beam_size, nbest, length_penalty, batch_tokens)
            return self.engine.search(encoded.source, lengths, *options)
        with torch.inference_mode():
            for rows in batch_rows(self.model, encoded, max(1, tokens // beam_size)):
                # Copies of the last row, so that there are few shapes of batches.
                batch = rows + rows[-1:] * (round_batch(len(rows)) - len(rows)) if graphs else rows
                source, mask = self._pad(encoded.source, batch, SOURCE_STEP if graphs else 1)
                limits = [self.max_output_length(len(encoded.source[row])) for row in batch]
                max_lengths = torch.tensor(limits, device=self.device)
                memory = encode(self.model, source, mask, graphs)
                search = {"constrain": constrain, "cuda_graphs": graphs}
                if sampling is not None:
                    seeds = [numbers[row] for row in batch]
                    outputs = sampling.sample(
                        self.model, memory, max_lengths, seeds, nbest, **search
                    )
                elif beam_size == 1:
                    found = greedy(self.model, memory, max_lengths, **search)
                    outputs = [[output] for output in found]
                else:
                    options = (beam_size, nbest, length_penalty)
                    outputs = beam(self.model, memory, max_lengths, *options, **search)
                results.update(zip(rows, outputs, strict=False))
        return [results[row] for row in range(len(encoded))]

    def check_engine(self, feature: str) -> None:
        """Raise an error for what only the engine pytorch can do."""
        if self.engine is not None:
            raise UserError(f"the engine ctranslate2 has no {feature}: use the engine pytorch")

    def max_output_length(self, source_length: int) -> int:
        """Maximum output length in tokens for a source of this length."""
        search = self.config.search
        length = max(1, int(search.max_ratio * source_length + search.max_extra))
        if self.config.is_language_model:
            length = self.tokenizers.max_tokens
        limit = self.model.max_target_length(source_length)
        return length if limit is None else min(length, limit)

    def check_lengths(self, encoded: EncodedPairs) -> None:
        """Raise an error for a pair with more tokens than the model has positions."""
        for number, (target, source) in enumerate(encoded.lengths(), start=1):
            limit = self.model.max_target_length(source)
            if limit is not None and target + 1 > limit:  # the decoder's input starts with BOS
                allowed = (
                    f"at most {limit - 1} after that source" if limit else "fewer in the source"
                )
                raise UserError(
                    f"text {number} is too long for this model's position table: its source has "
                    f"{source} tokens and its target {target}; the table allows {allowed}. Shorten it, "
                    "leave it out, or train with a larger max_length"
                )

    def attention_weights(
        self,
        encoded: EncodedPairs,
        outputs: Sequence[tuple[int, Hypothesis]],
        batch_tokens: int | None = None,
    ) -> list[list[Attention]]:
        """The attention weights of one pass over each (row, output), by member, without padding."""
        # The decoder's input at position i predicts output token i: BOS, then all but the last token.
        pairs = EncodedPairs(
            [encoded.source[row] for row, _ in outputs],
            [[BOS, *hypothesis.ids[:-1]] for _, hypothesis in outputs],
        )
        results: dict[int, list[Attention]] = {}
        with torch.inference_mode():
            for rows in batch_rows(self.model, pairs, batch_tokens or BATCH_TOKENS):
                source, mask = self._pad(pairs.source, rows)
                target, _ = self._pad(pairs.target, rows)
                for member in self.model.members:
                    by_mechanism = member.attention_weights(source, mask, target)
                    weights = {name: w.float().cpu() for name, w in by_mechanism.items()}
                    for index, row in enumerate(rows):
                        lengths = (len(pairs.source[row]), len(pairs.target[row]))
                        results.setdefault(row, []).append(crop_padding(weights, index, *lengths))
        return [results[row] for row in range(len(outputs))]

    def _pad(
        self, ids: Sequence[Sequence[int]], rows: list[int], multiple: int = 1
    ) -> tuple[Tensor, Tensor]:
        """(ids, mask) of these rows, whose length is a multiple of a number."""
        values, mask = pad([ids[row] for row in rows], multiple)
        return values.to(self.device), mask.to(self.device)


def crop_padding(weights: Mapping[str, Tensor], row: int, source: int, target: int) -> Attention:
    """The weights of a row, without padding, by mechanism; an error if they are not finite.

    Copies, so that a stored translation does not hold the whole batch.
    """
    cropped: Attention = {}
    for mechanism, batch in weights.items():
        query = source if mechanism == "encoder" else target
        key = target if mechanism == "decoder" else source
        cropped[mechanism] = batch[row, :, :, :query, :key].clone()
    if not all(bool(w.isfinite().all()) for w in cropped.values()):
        raise NotFiniteError
    return cropped
