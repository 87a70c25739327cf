"""Requests to a model and its answers: between the page and its worker, and in `regard translate --json`.

The page posts `{"id": 1, "request": {...}}` to its worker and gets `{"id": 1, "response": {...}}`, or
`{"id": 1, "error": "a sentence"}`. Tensors are flat lists of numbers with a shape (typed arrays between the
page and its worker).
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from regard.config import limits
from regard.config.table import Table
from regard.interventions import Index, Intervention

if TYPE_CHECKING:
    from torch import Tensor

    from regard import translation

DECIMALS = 6  # of attention weights


class Sampling(Table):
    temperature: float = Field(default=1.0, gt=0, le=limits.TEMPERATURE)
    top_k: int | None = Field(default=None, ge=1, le=limits.COUNT)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int = Field(default=0, ge=0, le=limits.SEED)


class Decoding(Table):
    """Greedy search by default, else beam search or sampling."""

    beam: int = Field(default=1, ge=1, le=32)
    nbest: int = Field(default=1, ge=1, le=32)
    sample: Sampling | None = None


# --- requests -------------------------------------------------------------------------------------


class ModelsRequest(Table):
    """Which models are there? Answer: `Models`."""

    kind: Literal["models"] = "models"


class TranslateRequest(Table):
    """Translate one text. Answer: `Translation`, with attention, steps and, for a beam, its tree."""

    kind: Literal["translate"] = "translate"
    model: str
    text: str
    decoding: Decoding = Decoding()
    interventions: tuple[Intervention, ...] = ()
    best: int = Field(default=5, ge=0, le=50)
    """How many of the most probable tokens to list for each step."""


class ExplainRequest(Table):
    """Score a given translation, with its attention. Answer: `Translation`."""

    kind: Literal["explain"] = "explain"
    model: str
    text: str
    target: str
    interventions: tuple[Intervention, ...] = ()
    best: int = Field(default=5, ge=0, le=50)


Request = Annotated[ModelsRequest | TranslateRequest | ExplainRequest, Field(discriminator="kind")]


# --- responses ------------------------------------------------------------------------------------


class TensorData(Table):
    shape: tuple[int, ...]
    data: tuple[float, ...]
    """Row by row."""

    @classmethod
    def of(cls, tensor: "Tensor") -> "TensorData":
        """A tensor, rounded to six decimals, which halves its JSON."""
        rounded = tensor.double().round(decimals=DECIMALS).flatten().tolist()
        return cls.model_construct(shape=tuple(tensor.shape), data=tuple(rounded))


class Candidate(Table):
    """A token that could come next."""

    token: str
    log_prob: float


class Step(Table):
    """One produced token."""

    token: str
    log_prob: float
    best: tuple[Candidate, ...] = ()
    """The most probable tokens of this step, best first."""


class Node(Table):
    """A hypothesis that beam search kept, or that was finished: a node of the tree of its prefixes."""

    parent: Index | None
    """Index of the node before it; None: the first token."""
    step: Index
    token: str
    score: float
    """Log-probability of the whole prefix."""
    finished: bool = False
    on_best: bool = False
    """Whether it is part of the best output."""


class Translation(Table):
    """An output, as `regard translate --json` prints it; the fields after `alternatives` are optional."""

    text: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    """Tokens; they end with the EOS token, if the output has one."""
    score: float | None
    """Log-probability of the output, EOS included."""
    normalised: float | None
    """What ranked it."""
    alternatives: tuple["Translation", ...] = ()
    """The rest of the n-best list."""
    error: str | None = None
    """Why there is no translation (`regard translate --input` only)."""
    attention: dict[str, TensorData] | None = None
    """By mechanism, [layer head query key]."""
    steps: tuple[Step, ...] | None = None
    tree: tuple[Node, ...] | None = None
    milliseconds: dict[str, float] | None = None
    """Time of each part: encode, search, attention."""

    @classmethod
    def of(cls, output: "translation.Translation", **more: Any) -> "Translation":
        """A translation, with its attention weights if it has them."""
        if output.weights is not None:
            more["attention"] = {name: TensorData.of(w) for name, w in output.attention.items()}
        return cls(
            text=output.text,
            source=tuple(output.source),
            target=tuple(output.target),
            score=output.score,
            normalised=output.normalised,
            alternatives=tuple(map(cls.of, output.alternatives)),
            **more,
        )


class ModelInfo(Table):
    """What the page says about a model."""

    name: str
    kind: str
    """recurrent, transformer or decoder-only."""
    heads: dict[str, tuple[int, int]]
    """[layers, heads] of each mechanism."""
    parameters: int
    tokenizer: str
    source_language: str | None = None
    target_language: str | None = None
    examples: tuple[str, ...] = ()
    facts: dict[str, str] = Field(default_factory=dict)
    """Lines about its training, data and terms, by key: description, vocabulary, training, ..."""


class Models(Table):
    models: tuple[ModelInfo, ...]
