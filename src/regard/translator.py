"""The whole path in one file: text -> ids -> memory -> search -> text, with attention weights."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random

import torch
from jaxtyping import Float
from torch import Tensor

from regard import models, presets, shipped
from regard.config import Config
from regard.devices import resolve_device
from regard.errors import NotFiniteError, UserError, join_names, suggest
from regard.models import Memory, Model, build, llama, weights
from regard.models.batching import batch_rows
from regard.search import Hypothesis, ScoredPair, beam, greedy, sample, token_log_probs
from regard.text import hub
from regard.text.batch import EncodedPairs, pad
from regard.text.tokenizer import BOS, EOS, TokenizerPair

Attention = dict[str, Float[Tensor, "layer head query key"]]

BATCH_TOKENS = 4096
GPU_BATCH_TOKENS = 32_768  # on a GPU, a step takes as long for one sentence as for a thousand


@dataclass(frozen=True)
class Translation:
    """One output: text, tokens, score, attention weights, and the rest of the n-best list."""

    text: str
    source: list[str]
    """Tokens as strings; both sides end with the EOS token, if the output has one."""
    target: list[str]
    score: float
    """Total log-probability of the output, EOS included."""
    normalised: float
    """The score that ranked it (length-normalised in beam search)."""
    alternatives: list["Translation"] = field(default_factory=list)
    """The rest of the n-best list, best first."""
    weights: Attention | None = field(default=None, repr=False)

    @property
    def attention(self) -> Attention:
        """Weights by mechanism: {"cross": [layer head target source], "encoder": ..., "decoder": ...}."""
        if self.weights is None:
            raise UserError("no attention weights: call translate(texts, attention=True)")
        return self.weights


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise UserError(
                f"temperature must be a positive number, not {self.temperature:g}; 0 would be greedy search"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top-k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top-p must be above 0 and at most 1, not {self.top_p:g}")

    def sample(
        self, model: Model, memory: Memory, max_lengths: Tensor, rows: list[int], count: int
    ) -> list[list[Hypothesis]]:
        """`count` samples for each row, most probable first; each sample has its own seed."""
        samples = [
            sample(
                model,
                memory,
                max_lengths,
                [Random(f"{self.seed}/{row}/{number}").getrandbits(63) for row in rows],
                self.temperature,
                self.top_k,
                self.top_p,
            )
            for number in range(count)
        ]
        return [sorted(row, key=lambda h: -h.normalised) for row in zip(*samples, strict=True)]


class Translator:
    """A trained model with its tokenizers and config: the result of `regard.load`."""

    def __init__(self, config: Config, tokenizers: TokenizerPair, model: Model) -> None:
        self.config = config
        self.tokenizers = tokenizers
        self.model = model.eval()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int = 1,
        nbest: int = 1,
        sample: Sampling | None = None,
        attention: bool = True,
        batch_tokens: int | None = None,
    ) -> list[Translation]:
        """Translate each text with greedy search, beam search or sampling.

        `attention` costs one more forward pass over each output. `batch_tokens`: maximum number of tokens
        in a batch; the default depends on the device.
        """
        if isinstance(texts, str):
            raise UserError("translate takes a list of texts: write translate([text])")
        texts = [self.validate_text(text, number) for number, text in enumerate(texts, start=1)]
        encoded = EncodedPairs.from_pairs(((text, "") for text in texts), self.tokenizers)
        nbest_lists = self.search(encoded, beam, nbest, sample, batch_tokens)
        outputs = [(row, hypothesis) for row, best in enumerate(nbest_lists) for hypothesis in best]
        all_weights: Sequence[Attention | None] = [None] * len(outputs)
        if attention:
            all_weights = self.attention_weights(encoded, outputs, batch_tokens)
        translations = iter(
            Translation(
                self.tokenizers.target.decode(hypothesis.ids),
                self.tokenizers.source.ids_to_tokens(encoded.source[row]),
                self.tokenizers.target.ids_to_tokens(hypothesis.ids),
                hypothesis.score,
                hypothesis.normalised,
                weights=weights,
            )
            for (row, hypothesis), weights in zip(outputs, all_weights, strict=True)
        )
        ranked = [list(islice(translations, len(best))) for best in nbest_lists]
        return [replace(best[0], alternatives=best[1:]) for best in ranked]

    def score(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        attention: bool = False,
        batch_tokens: int | None = None,
    ) -> list[ScoredPair]:
        """Score given (source, translation) pairs: the log-probability of each token, EOS included.

        The scores of a test set sum to minus its loss in `evaluate`; an output of `translate` has its own
        `score`. A language model takes ("", text).
        """
        encoded = self.encode_pairs(pairs)
        log_probs = token_log_probs(self.model, encoded, batch_tokens)
        if not all(math.isfinite(value) for values in log_probs for value in values):
            raise NotFiniteError
        targets = [[*encoded.target[row], EOS] for row in range(len(encoded))]
        all_weights: Sequence[Attention | None] = [None] * len(encoded)
        if attention:
            outputs = [(row, Hypothesis(ids, 0.0, 0.0)) for row, ids in enumerate(targets)]
            all_weights = self.attention_weights(encoded, outputs, batch_tokens)
        return [
            ScoredPair(
                self.tokenizers.source.ids_to_tokens(encoded.source[row]),
                self.tokenizers.target.ids_to_tokens(ids),
                log_probs[row],
                all_weights[row],
            )
            for row, ids in enumerate(targets)
        ]

    def encode_pairs(self, pairs: Iterable[tuple[str, str]]) -> EncodedPairs:
        """The token ids of pairs that this model can read."""
        numbered = enumerate(pairs, start=1)
        encoded = EncodedPairs.from_pairs(
            (self.validate_pair(pair, number) for number, pair in numbered), self.tokenizers
        )
        self.check_lengths(encoded)
        return encoded

    def validate_pair(self, pair: tuple[str, str], number: int) -> tuple[str, str]:
        """The pair, if it is one and this model can read its source."""
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        if not is_pair or not all(isinstance(text, str) for text in pair):
            raise UserError(
                f"score takes pairs, (source, translation), both strings: pair {number} is {pair!r:.80}"
            )
        return self.validate_text(pair[0], number), pair[1]

    def validate_text(self, text: str, number: int) -> str:
        """The text, if this model can read it."""
        if self.config.is_language_model:
            if text:
                raise UserError(
                    f"text {number} is not empty, and this is a language model, which has no source: "
                    "leave the text out, and sample with --sample"
                )
            return text
        if not text.strip():
            raise UserError(f"text {number} is empty: there is nothing to translate")
        tokenizer, limit = self.tokenizers.source, self.tokenizers.max_tokens
        length = len(tokenizer.encode(text))
        if length > limit:
            raise UserError(
                f"text {number} has {length} tokens and this model reads at most {limit} "
                "(tokenizer.max_tokens): shorten or split it"
            )
        # Strict: no UNK occurred in training, so its embedding is untrained.
        unknown = tokenizer.unknown_pieces(text) if tokenizer.strict else []
        if unknown:
            quoted = ", ".join(f'"{piece}"' for piece in unknown[:5])
            known = "".join(sorted(p for p in tokenizer.pieces if len(p) == 1 and not p.isspace()))
            raise UserError(
                f"text {number} contains {quoted}, which is not in this model's vocabulary; "
                f"it knows {known or len(tokenizer.pieces)}"
            )
        return text

    def search(
        self,
        encoded: EncodedPairs,
        beam_size: int = 1,
        nbest: int = 1,
        sampling: Sampling | None = None,
        batch_tokens: int | None = None,
    ) -> list[list[Hypothesis]]:
        """The `nbest` outputs for each source, best first, independent of the batching."""
        if beam_size < 1 or nbest < 1:
            raise UserError(f"beam and nbest must be at least 1: got {beam_size} and {nbest}")
        if sampling is None and nbest > beam_size:
            raise UserError(f"nbest ({nbest}) is above the beam size ({beam_size}): raise --beam")
        if sampling is not None and beam_size > 1:
            raise UserError("choose either beam search or sampling")
        results: dict[int, list[Hypothesis]] = {}
        length_penalty = self.config.search.length_penalty
        on_gpu = self.device.type == "cuda"
        tokens = batch_tokens or (GPU_BATCH_TOKENS if on_gpu else BATCH_TOKENS)
        self.check_lengths(encoded)
        with torch.inference_mode():
            for rows in batch_rows(self.model, encoded, max(1, tokens // beam_size)):
                source, mask = self._pad(encoded.source, rows)
                limits = [self.max_output_length(len(encoded.source[row])) for row in rows]
                max_lengths = torch.tensor(limits, device=self.device)
                memory = self.model.encode(source, mask)
                if sampling is not None:
                    outputs = sampling.sample(self.model, memory, max_lengths, rows, nbest)
                elif beam_size == 1:
                    outputs = [[output] for output in greedy(self.model, memory, max_lengths)]
                else:
                    options = (beam_size, nbest, length_penalty)
                    outputs = beam(self.model, memory, max_lengths, *options)
                results.update(zip(rows, outputs, strict=True))
        return [results[row] for row in range(len(encoded))]

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
    ) -> list[Attention]:
        """The attention weights of one pass over each (row, output), without padding."""
        # The decoder's input at position i predicts output token i: BOS, then all but the last token.
        pairs = EncodedPairs(
            [encoded.source[row] for row, _ in outputs],
            [[BOS, *hypothesis.ids[:-1]] for _, hypothesis in outputs],
        )
        results: dict[int, Attention] = {}
        with torch.inference_mode():
            for rows in batch_rows(self.model, pairs, batch_tokens or BATCH_TOKENS):
                source, mask = self._pad(pairs.source, rows)
                target, _ = self._pad(pairs.target, rows)
                by_mechanism = self.model.attention_weights(source, mask, target)
                weights = {name: w.float().cpu() for name, w in by_mechanism.items()}
                for index, row in enumerate(rows):
                    lengths = {"source": len(pairs.source[row]), "target": len(pairs.target[row])}
                    cropped = {
                        name: crop_padding(name, w[index], lengths) for name, w in weights.items()
                    }
                    if not all(bool(w.isfinite().all()) for w in cropped.values()):
                        raise NotFiniteError
                    results[row] = cropped
        return [results[row] for row in range(len(outputs))]

    def _pad(self, ids: Sequence[Sequence[int]], rows: list[int]) -> tuple[Tensor, Tensor]:
        values, mask = pad([ids[row] for row in rows])
        return values.to(self.device), mask.to(self.device)


def crop_padding(mechanism: str, weights: Tensor, lengths: dict[str, int]) -> Tensor:
    """Weights without padding. A copy, so that a stored translation does not hold the whole batch."""
    query = lengths["source" if mechanism == "encoder" else "target"]
    key = lengths["target" if mechanism == "decoder" else "source"]
    return weights[:, :, :query, :key].clone()


def load(run: str | Path, device: str | torch.device = "cpu", *, int8: bool = False) -> Translator:
    """The translator of a run folder or of a shipped model, `regard.load("de-en")`, with its best weights,
    packed for fast CPU inference or in int8.

    `hf:user/name` or `hf:user/name@revision` is a run on the Hugging Face hub, downloaded once.
    """
    folder = hub.find_run(run)
    config = read_config(folder)
    if not (folder / "tokenizer.json").is_file() or not (folder / "model.safetensors").is_file():
        raise UserError(
            f"{folder} contains no trained model yet: its training stopped before the first "
            f"validation; continue it with `regard train --resume {presets.folder_argument(folder)}`"
        )
    tokenizers = TokenizerPair.load(folder / "tokenizer.json")
    sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    model = build(config.model, *sizes, tokenizers.joint, folder)
    path = folder / "model.safetensors"
    tensors, record = weights.read(path)
    weights.load_tensors(model, llama.from_hugging_face(tensors, record, config.model), path)
    model = model.to(resolve_device(str(device)))
    return Translator(
        config, tokenizers, models.quantize_int8(model) if int8 else models.pack_weights(model)
    )


def read_config(run: str | Path) -> Config:
    """The resolved config of a run folder, a shipped model, or a run on the Hugging Face hub."""
    folder = hub.find_run(run)
    if not folder.is_dir():
        raise UserError(
            f"there is no run folder {run}: train one with `regard train case`, or use a shipped model "
            f"({join_names(shipped.names())}).{suggest(str(run), shipped.names())}"
        )
    path = folder / "config.toml"
    if not path.is_file():
        hint = ""
        if (folder / "config.json").is_file():
            table = f'model = {{kind = "pretrained", name = "{folder}"}}'
            hint = f"; it looks like a Hugging Face checkpoint: fine-tune it with {table}"
        elif str(run) in shipped.names():
            hint = "; it hides the shipped model of that name: rename it, or work in another folder"
        raise UserError(f"{folder} is not a run folder: it has no config.toml{hint}")
    return presets.validate(presets.read_file(path), str(path))
