"""What a translator takes and returns: decoding options, translations, encoder states."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from jaxtyping import Float
from torch import Tensor

from regard.config import limits
from regard.errors import UserError
from regard.interventions import Intervention
from regard.models import Memory, Model
from regard.models.ensemble import join_layers
from regard.search import Constrain, Hypothesis, sample
from regard.search.graphs import Graphs

Attention = dict[str, Float[Tensor, "layer head query key"]]


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
    """What ranks it: score / length^search.length_penalty in beam search and for a given output (`explain`),
    the score itself in greedy search and sampling."""
    alternatives: list["Translation"] = field(default_factory=list)
    """The rest of the n-best list, best first."""
    weights: list[Attention] | None = field(default=None, repr=False, compare=False)
    """The attention weights of each member of an ensemble; one item for any other model."""
    ids: list[int] = field(default_factory=list, repr=False, compare=False)
    """The ids of `target`."""

    @property
    def attention(self) -> Attention:
        """Weights by mechanism: {"cross": [layer head target source], "encoder": ..., "decoder": ...}.

        Of an ensemble, the layers of the second member follow those of the first, and so on.
        """
        return join_layers(self.members, dim=0)

    @property
    def members(self) -> list[Attention]:
        """The weights by mechanism of each member of an ensemble; one item for any other model."""
        if self.weights is None:
            raise UserError("no attention weights: call translate(texts, attention=True)")
        return self.weights

    def show(self, height: int = 760) -> None:
        """Display its attention in a notebook: every layer and head, as `regard page` does; no network."""
        from regard.page import notebook

        notebook.show(notebook.render_translation(self), height)


@dataclass(frozen=True)
class EncoderStates:
    """The encoder's state of each source token."""

    tokens: list[str]
    states: Float[Tensor, "length dim"] = field(repr=False)


SAMPLING_TYPES: dict[str, Any] = {
    "temperature": int | float,
    "top_k": int | None,
    "top_p": int | float | None,
    "seed": int,
}


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kinds in SAMPLING_TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise UserError(f"{name} of Sampling must be a number: got {value!r}")
        if not 0 < self.temperature <= limits.TEMPERATURE:
            raise UserError(
                f"temperature must be above 0 and at most {limits.TEMPERATURE:g}, not {self.temperature}; 0 "
                "would be greedy search"
            )
        if self.top_k is not None and not 1 <= self.top_k <= limits.COUNT:
            raise UserError(f"top-k must be from 1 to {limits.COUNT:,}, not {self.top_k}")
        if not 0 <= self.seed <= limits.SEED:
            raise UserError(f"seed must be from 0 to {limits.SEED}, not {self.seed}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top-p must be above 0 and at most 1, not {self.top_p:g}")

    def sample(
        self,
        model: Model,
        memory: Memory,
        max_lengths: Tensor,
        rows: list[int],
        count: int,
        constrain: Constrain | None = None,
        cuda_graphs: bool | Graphs = True,
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
                constrain=constrain,
                cuda_graphs=cuda_graphs,
            )
            for number in range(count)
        ]
        return [sorted(row, key=lambda h: -h.normalised) for row in zip(*samples, strict=True)]


@dataclass(frozen=True)
class Decoding:
    """How to search: greedy by default, else beam search or sampling."""

    beam: int = 1
    nbest: int = 1
    sample: Sampling | None = None
    attention: bool = False
    """Whether to compute attention weights, in one more forward pass over each output."""
    batch_tokens: int | None = None
    """Maximum number of tokens in a batch; the default depends on the device."""
    interventions: tuple[Intervention, ...] = ()
    """Changes to the model: see `regard.interventions`."""

    def __post_init__(self) -> None:
        given = (self.beam, self.nbest)
        if not all(isinstance(value, int) and 1 <= value <= limits.BEAM for value in given):
            got = f"{self.beam!r} and {self.nbest!r}"
            raise UserError(f"beam and nbest must be integers from 1 to {limits.BEAM:,}: got {got}")
        check_batch_tokens(self.batch_tokens)
        if not isinstance(self.sample, Sampling | None):
            raise UserError(f"sample takes Sampling(temperature=...), not {self.sample!r}")
        if self.sample is None and self.nbest > self.beam:
            raise UserError(
                f"nbest ({self.nbest}) is above the beam size ({self.beam}): raise --beam"
            )
        if self.sample is not None and self.beam > 1:
            raise UserError("choose either beam search or sampling")


def check_batch_tokens(value: Any) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (is_integer and 1 <= value <= limits.COUNT):
        raise UserError(
            f"batch_tokens must be an integer from 1 to {limits.COUNT:,}, or None: got {value!r}"
        )
