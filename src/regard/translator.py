"""The whole path in one file: text -> ids -> memory -> search -> text, and where the model looked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from regard import presets
from regard.config import Config
from regard.errors import UserError
from regard.models import Model, build, weights
from regard.search import Hypothesis, greedy
from regard.text.batch import Batches, Encoded, pad
from regard.text.tokenizer import BEGIN, TokenizerPair

Attention = dict[str, Float[Tensor, "layer head query key"]]


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
        self, texts: Sequence[str], *, attention: bool = True, batch_tokens: int = 4096
    ) -> list[Translation]:
        """Translate each text. `attention` costs one more pass over each finished output."""
        if isinstance(texts, str):
            raise UserError("translate takes a list of texts: write translate([text])")
        texts = [self.checked(text, number) for number, text in enumerate(texts, start=1)]
        encoded = Encoded.of(((text, "") for text in texts), self.tokenizers)
        found = self.search(encoded, batch_tokens)
        seen = self.explain(encoded, found, batch_tokens) if attention else [None] * len(found)
        return [
            Translation(
                self.tokenizers.target.decode(hypothesis.ids),
                self.tokenizers.source.tokens(source),
                self.tokenizers.target.tokens(hypothesis.ids),
                hypothesis.score,
                hypothesis.normalised,
                weights=weights,
            )
            for source, hypothesis, weights in zip(encoded.source, found, seen, strict=True)
        ]

    def checked(self, text: str, number: int) -> str:
        """The text, if this model can read it."""
        if not text.strip():
            raise UserError(f"text {number} is empty: there is nothing to translate")
        tokenizer, limit = self.tokenizers.source, self.tokenizers.max_tokens
        length = len(tokenizer.encode(text))
        if length > limit:
            raise UserError(
                f"text {number} has {length} tokens and this model reads at most {limit} "
                "(tokenizer.max_tokens): shorten or split it"
            )
        unknown = tokenizer.unknown(text) if tokenizer.strict else []
        if unknown:
            shown = ", ".join(f'"{piece}"' for piece in unknown[:5])
            known = "".join(sorted(p for p in tokenizer.pieces if len(p) == 1 and not p.isspace()))
            raise UserError(
                f"text {number} holds {shown}, which this model never saw in training; "
                f"it knows {known or len(tokenizer.pieces)}"
            )
        return text

    def search(self, encoded: Encoded, batch_tokens: int) -> list[Hypothesis]:
        """The best output for each source, whatever batch it lands in."""
        found: dict[int, Hypothesis] = {}
        limits = self.config.search
        with torch.inference_mode():
            for rows in batches(encoded, batch_tokens):
                source, mask = pad([encoded.source[row] for row in rows])
                source, mask = source.to(self.device), mask.to(self.device)
                longest = (limits.max_ratio * mask.sum(1) + limits.max_extra).long()
                outputs = greedy(self.model, self.model.encode(source, mask), longest)
                found.update(zip(rows, outputs, strict=True))
        return [found[row] for row in range(len(encoded))]

    def explain(
        self, encoded: Encoded, found: Sequence[Hypothesis], batch_tokens: int
    ) -> list[Attention]:
        """The weights of one pass over each finished output, cut to its own lengths."""
        # Position i of the target read is what predicts output token i: begin, then all but the last.
        read = Encoded(encoded.source, [[BEGIN, *hypothesis.ids[:-1]] for hypothesis in found])
        seen: dict[int, Attention] = {}
        with torch.inference_mode():
            for rows in batches(read, batch_tokens):
                source, mask = pad([read.source[row] for row in rows])
                target, _ = pad([read.target[row] for row in rows])
                to = (source.to(self.device), mask.to(self.device), target.to(self.device))
                weights = {name: w.float().cpu() for name, w in self.model.explain(*to).items()}
                for index, row in enumerate(rows):
                    sizes = {"source": len(read.source[row]), "target": len(read.target[row])}
                    seen[row] = {name: cut(name, w[index], sizes) for name, w in weights.items()}
        return [seen[row] for row in range(len(encoded))]


def batches(encoded: Encoded, tokens: int) -> list[list[int]]:
    return Batches(encoded, tokens, sentences=len(encoded) or 1, seed=0).in_order()


def cut(mechanism: str, weights: Tensor, sizes: dict[str, int]) -> Tensor:
    """Weights without the padding. A copy, so that a kept translation keeps no whole batch."""
    query = sizes["source" if mechanism == "encoder" else "target"]
    key = sizes["target" if mechanism == "decoder" else "source"]
    return weights[:, :, :query, :key].clone()


def load(run: str | Path, device: str | torch.device = "cpu") -> Translator:
    """The translator in a run folder, with its best weights."""
    folder = Path(run)
    config = read_config(folder)
    if not (folder / "tokenizer.json").is_file() or not (folder / "model.safetensors").is_file():
        raise UserError(
            f"{folder} holds no trained model yet: its training stopped before the first "
            "validation; continue it with `regard train ... --resume`"
        )
    tokenizers = TokenizerPair.load(folder / "tokenizer.json")
    model = build(config.model, tokenizers.source.size, tokenizers.target.size, tokenizers.joint)
    path = folder / "model.safetensors"
    weights.fill(model, weights.read(path)[0], path)
    return Translator(config, tokenizers, model.to(device))


def read_config(folder: Path) -> Config:
    """The resolved config of a run folder."""
    if not folder.is_dir():
        raise UserError(f"there is no run folder {folder}: train one with `regard train case`")
    path = folder / "config.toml"
    if not path.is_file():
        raise UserError(f"{folder} is not a run folder: it has no config.toml")
    return presets.check(presets.read_file(path), str(path))
