"""The whole path in one file: text -> ids -> memory -> search -> text, and where the model looked."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard import models, presets
from regard.config import Config
from regard.errors import UserError
from regard.models import Model, build, weights
from regard.search import Hypothesis, beam, greedy, sample
from regard.text.batch import BatchSampler, EncodedPairs, pad
from regard.text.tokenizer import BOS, TokenizerPair

Attention = dict[str, Float[Tensor, "layer head query key"]]

TOGETHER = 4096  # tokens of a batch
ON_A_GPU = 32_768  # it takes as long for one sentence's next word as for a thousand sentences'


@dataclass(frozen=True)
class Translation:
    """One output, with its tokens, its score, and the attention that goes with them."""

    text: str
    source: list[str]
    """Tokens as strings; both sides end with the end token, if the output has one."""
    target: list[str]
    score: float
    """Total log-probability of the output, end token included."""
    normalised: float
    """What ranked it."""
    alternatives: list["Translation"] = field(default_factory=list)
    """The rest of the n-best, best first."""
    weights: Attention | None = field(default=None, repr=False)

    @property
    def attention(self) -> Attention:
        """{"cross": [layer head target source], "encoder": [...], ...}: what the model has."""
        if self.weights is None:
            raise UserError("ask for the weights: translate(texts, attention=True)")
        return self.weights


@dataclass(frozen=True)
class Sampling:
    """How to draw outputs by chance."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise UserError(
                f"a temperature is a number above 0, not {self.temperature:g}; 0 would be greedy"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top-k is 1 or more, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top-p is above 0 and at most 1, not {self.top_p:g}")

    def draw(
        self, model: Model, memory: Any, limits: Tensor, rows: list[int], count: int
    ) -> list[list[Hypothesis]]:
        """`count` draws for each row, likeliest first; each has a seed of its own."""
        draws = [
            sample(
                model,
                memory,
                limits,
                [Random(f"{self.seed}/{row}/{number}").getrandbits(63) for row in rows],
                self.temperature,
                self.top_k,
                self.top_p,
            )
            for number in range(count)
        ]
        return [sorted(row, key=lambda h: -h.normalised) for row in zip(*draws, strict=True)]


class Translator:
    """A trained model with its tokenizers and config: what `regard.load` gives."""

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
        """Translate each text, greedily, with a beam, or by chance.

        `attention` costs one more pass over each finished output. `batch_tokens`: how many are read
        together, if not what suits the device.
        """
        if isinstance(texts, str):
            raise UserError("translate takes a list of texts: write translate([text])")
        texts = [self.checked(text, number) for number, text in enumerate(texts, start=1)]
        encoded = EncodedPairs.from_pairs(((text, "") for text in texts), self.tokenizers)
        found = self.search(encoded, beam, nbest, sample, batch_tokens)
        flat = [(row, hypothesis) for row, best in enumerate(found) for hypothesis in best]
        seen = self.explain(encoded, flat, batch_tokens) if attention else [None] * len(flat)
        made = [
            Translation(
                self.tokenizers.target.decode(hypothesis.ids),
                self.tokenizers.source.ids_to_tokens(encoded.source[row]),
                self.tokenizers.target.ids_to_tokens(hypothesis.ids),
                hypothesis.score,
                hypothesis.normalised,
                weights=weights,
            )
            for (row, hypothesis), weights in zip(flat, seen, strict=True)
        ]
        outputs = iter(made)
        ranked = [list(islice(outputs, len(best))) for best in found]
        return [replace(best[0], alternatives=best[1:]) for best in ranked]

    def checked(self, text: str, number: int) -> str:
        """The text, if this model can read it."""
        if self.config.is_language_model:
            if text:
                raise UserError(
                    f"text {number} is not empty, and this model has learned to write, not to "
                    "translate: leave the text out, and draw with --sample"
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
        unknown = tokenizer.unknown_pieces(text) if tokenizer.strict else []
        if unknown:
            shown = ", ".join(f'"{piece}"' for piece in unknown[:5])
            known = "".join(sorted(p for p in tokenizer.pieces if len(p) == 1 and not p.isspace()))
            raise UserError(
                f"text {number} holds {shown}, which this model never saw in training; "
                f"it knows {known or len(tokenizer.pieces)}"
            )
        return text

    def search(
        self,
        encoded: EncodedPairs,
        beam_width: int = 1,
        nbest: int = 1,
        sampling: Sampling | None = None,
        batch_tokens: int | None = None,
    ) -> list[list[Hypothesis]]:
        """The `nbest` outputs for each source, best first, whatever batch it lands in."""
        if beam_width < 1 or nbest < 1:
            raise UserError(f"beam and nbest start at 1: got {beam_width} and {nbest}")
        if sampling is None and nbest > beam_width:
            raise UserError(f"a beam of {beam_width} has no {nbest} best: ask for a wider beam")
        if sampling is not None and beam_width > 1:
            raise UserError("choose one: a beam, or sampling")
        found: dict[int, list[Hypothesis]] = {}
        power = self.config.search.length_penalty
        tokens = batch_tokens or (ON_A_GPU if self.device.type == "cuda" else TOGETHER)
        self.refuse_too_long(encoded)
        with torch.inference_mode():
            for rows in batches(self.model, encoded, max(1, tokens // beam_width)):
                source, mask = self._padded(encoded.source, rows)
                limits = [self.limit(len(encoded.source[row])) for row in rows]
                longest = torch.tensor(limits, device=self.device)
                memory = self.model.encode(source, mask)
                if sampling is not None:
                    outputs = sampling.draw(self.model, memory, longest, rows, nbest)
                elif beam_width == 1:
                    outputs = [[output] for output in greedy(self.model, memory, longest)]
                else:
                    outputs = beam(self.model, memory, longest, beam_width, nbest, power)
                found.update(zip(rows, outputs, strict=True))
        return [found[row] for row in range(len(encoded))]

    def limit(self, source: int) -> int:
        """How long an output may be, in tokens, behind so long a source."""
        wanted = max(1, int(self.config.search.max_ratio * source + self.config.search.max_extra))
        if self.config.is_language_model:  # no source says how long a text should be
            wanted = self.tokenizers.max_tokens
        room = self.model.room(source)
        return wanted if room is None else min(wanted, room)

    def refuse_too_long(self, encoded: EncodedPairs) -> None:
        """What the model has no places for is told before anything is read."""
        for number, (target, source) in enumerate(encoded.lengths(), start=1):
            room = self.model.room(source)
            if room is not None and target + 1 > room:  # what is read begins with the begin token
                holds = f"{room - 1} behind that" if room else "not so many"
                raise UserError(
                    f"text {number} is too long for this model's table of positions: its source has "
                    f"{source} tokens, its target {target}, and there is room for {holds}; shorten "
                    "it, leave it out, or train with a larger max_length"
                )

    def explain(
        self,
        encoded: EncodedPairs,
        found: Sequence[tuple[int, Hypothesis]],
        batch_tokens: int | None = None,
    ) -> list[Attention]:
        """The weights of one pass over each (row, finished output), cut to its own lengths."""
        # Position i of what is read predicts output token i: begin, then all but the last.
        read = EncodedPairs(
            [encoded.source[row] for row, _ in found],
            [[BOS, *hypothesis.ids[:-1]] for _, hypothesis in found],
        )
        seen: dict[int, Attention] = {}
        with torch.inference_mode():
            for rows in batches(self.model, read, batch_tokens or TOGETHER):
                source, mask = self._padded(read.source, rows)
                target, _ = self._padded(read.target, rows)
                explained = self.model.explain(source, mask, target)
                weights = {name: w.float().cpu() for name, w in explained.items()}
                for index, row in enumerate(rows):
                    sizes = {"source": len(read.source[row]), "target": len(read.target[row])}
                    seen[row] = {name: cut(name, w[index], sizes) for name, w in weights.items()}
        return [seen[row] for row in range(len(found))]

    def _padded(self, ids: Sequence[Sequence[int]], rows: list[int]) -> tuple[Tensor, Tensor]:
        values, mask = pad([ids[row] for row in rows])
        return values.to(self.device), mask.to(self.device)


def batches(model: Model, encoded: EncodedPairs, tokens: int) -> list[list[int]]:
    """Rows to read together; one by one where a row's padding would stand past the model's places."""
    found = BatchSampler(encoded, tokens, max_sentences=len(encoded) or 1, seed=0).in_order()
    lengths = encoded.lengths()

    def fits(rows: list[int]) -> bool:
        longest = 1 + max(lengths[row][0] for row in rows)
        rooms = [model.room(lengths[row][1]) for row in rows]
        return all(room is None or longest <= room for room in rooms)

    return [part for rows in found for part in ([rows] if fits(rows) else [[r] for r in rows])]


def cut(mechanism: str, weights: Tensor, sizes: dict[str, int]) -> Tensor:
    """Weights without the padding. A copy, so that a kept translation keeps no whole batch."""
    query = sizes["source" if mechanism == "encoder" else "target"]
    key = sizes["target" if mechanism == "decoder" else "source"]
    return weights[:, :, :query, :key].clone()


def load(run: str | Path, device: str | torch.device = "cpu", *, int8: bool = False) -> Translator:
    """The translator in a run folder, with its best weights; in int8, quicker on a CPU."""
    folder = Path(run)
    config = read_config(folder)
    if not (folder / "tokenizer.json").is_file() or not (folder / "model.safetensors").is_file():
        raise UserError(
            f"{folder} holds no trained model yet: its training stopped before the first "
            "validation; continue it with `regard train ... --resume`"
        )
    tokenizers = TokenizerPair.load(folder / "tokenizer.json")
    sizes = (tokenizers.source.vocab_size, tokenizers.target.vocab_size)
    model = build(config.model, *sizes, tokenizers.joint, folder)
    path = folder / "model.safetensors"
    weights.fill(model, weights.read(path)[0], path)
    model = model.to(device)
    return Translator(config, tokenizers, models.int8(model) if int8 else models.packed(model))


def read_config(folder: Path) -> Config:
    """The resolved config of a run folder."""
    if not folder.is_dir():
        raise UserError(f"there is no run folder {folder}: train one with `regard train case`")
    path = folder / "config.toml"
    if not path.is_file():
        theirs = (folder / "config.json").is_file()
        way = f'; a checkpoint is trained first, with model = {{kind = "pretrained", name = "{folder}"}}'
        raise UserError(
            f"{folder} is not a run folder: it has no config.toml{way if theirs else ''}"
        )
    return presets.validate(presets.read_file(path), str(path))
