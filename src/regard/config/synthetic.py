"""Synthetic pairs: text in one language, and what a model makes of it in the other."""

from typing import Any

from pydantic import Field, create_model, model_validator

from regard.config import limits
from regard.config.table import Table

TRAIN = "train"
"""As `monolingual`: the real training pairs themselves, one side of them."""
RECIPE = (
    *("monolingual", "language", "limit", "reverse", "beam", "sample", "temperature"),
    *("top_k", "top_p", "seed", "max_ratio", "min_score"),
)
"""The settings of a translation, which a file of pairs has behind it."""


class Recipe(Table):
    """How a model makes pairs of monolingual text: search and filters. The same in `regard augment`."""

    reverse: bool = True
    """Back-translation (Sennrich et al., 2016): the output is the source of a pair, the text its target.
    False: forward translation, as for sequence-level distillation (Kim and Rush, 2016)."""
    beam: int = Field(default=1, ge=1, le=limits.BEAM)
    """Beam width; 1 is greedy search."""
    sample: bool = False
    """Sample instead of searching: more varied pairs (Edunov et al., 2018)."""
    temperature: float = Field(default=1.0, gt=0, le=limits.TEMPERATURE)
    """Sampling: the logits are divided by it."""
    top_k: int | None = Field(default=None, ge=1, le=limits.COUNT)
    """Sampling: only the k most probable tokens."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sampling: only the most probable tokens of total probability p."""
    seed: int = Field(default=1, ge=0, le=limits.SEED)
    """Sampling: random seed."""
    max_ratio: float = Field(default=3.0, ge=1, le=limits.RATIO)
    """Pairs are left out if one side has more than this many times the tokens of the other."""
    min_score: float | None = Field(default=None, le=0, ge=-limits.RATIO)
    """Pairs are left out if the mean log-probability of a token of the output is lower."""

    @model_validator(mode="after")
    def _check_search(self) -> "Recipe":
        if self.sample and self.beam > 1:
            raise ValueError(
                "beam and sample are both given: choose either beam search or sampling"
            )
        unused = [] if self.sample else self.changed("temperature", "top_k", "top_p", "seed")
        if unused:
            raise ValueError(f"{unused[0]} is about sampling: add sample = true")
        return self


class _Mixed(Recipe):
    """Pairs that are mixed into the training data."""

    file: str | None = Field(default=None, min_length=1)
    """Pairs, as `regard augment` or you have written them: a .jsonl or .tsv, plain or .gz. With `from`, where
    they are written; by default in the run folder."""
    monolingual: str | None = Field(default=None, min_length=1)
    """The text: a file with one sentence per line, plain or .gz, the name of a public corpus, or "train": the
    source side of the real training pairs (with reverse, their target side)."""
    language: str | None = Field(default=None, min_length=1)
    """Which language of a public corpus; by default that of the side that the text becomes."""
    limit: int | None = Field(default=None, ge=1, le=limits.SENTENCES)
    """At most this many sentences of the text; a smaller selection is a subset of a larger one."""
    repeat: int = Field(default=1, ge=1, le=1000)
    """How often each pair occurs in an epoch."""
    tag: bool = False
    """Start each source with the token <BT> (tagged back-translation, Caswell et al., 2019), so that the
    model can tell synthetic from real sources."""

    @model_validator(mode="after")
    def _check_origin(self) -> "_Mixed":
        if self.file is None and self.translator is None:
            raise ValueError("give file, or from and monolingual")
        if self.translator is not None and self.monolingual is None:
            raise ValueError(
                'from translates text, and monolingual says which: give monolingual = "text.txt", '
                f'a public corpus, or "{TRAIN}"'
            )
        unused = self.changed(*RECIPE) if self.translator is None else []
        if unused:
            raise ValueError(
                f"{unused[0]} is about translating, and the pairs of file are translated already: leave it "
                "out, or give from"
            )
        return self

    @property
    def translator(self) -> str | None:
        """`from`, which is no name in Python."""
        return getattr(self, "from")


_FROM: Any = (
    str | None,
    Field(
        default=None,
        min_length=1,
        description="The model that translates: a run, a shipped model, several joined by commas, or a "
        "preset or .toml file, whose model is then trained first, on the real pairs of this experiment (with "
        "reverse, on their sides swapped).",
    ),
)
SyntheticPairs = create_model(
    "SyntheticPairs",
    __base__=_Mixed,
    __module__=__name__,
    __doc__=_Mixed.__doc__,
    **{"from": _FROM},
)
