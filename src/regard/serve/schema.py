"""What clients of `regard serve` send and get; translations are those of `regard translate --json`.

Every error, whatever its status, is an `Error`. The page's own requests are in `regard.page.schema`.
"""

from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field

from regard.config.table import Table
from regard.interventions import Intervention
from regard.page.schema import Decoding, TensorData, Translation

if TYPE_CHECKING:
    from regard import translation
    from regard.search import ScoredPair

GERMAN = "Ein Mann schläft auf einer grünen Bank."
ENGLISH = "A man is sleeping on a green bench."


def example(**fields: Any) -> ConfigDict:
    """Documented with this example."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class Error(Table):
    """Why there is no answer."""

    error: str
    """A sentence: what was given, what is allowed, what to do."""
    code: str
    """The same in one word, for programs: see docs/serving.md."""


# --- requests -------------------------------------------------------------------------------------


class ModelRequest(Table):
    """A question to a model."""

    model: str | None = None
    """Its name in `/api/models`; the first by default."""
    interventions: tuple[Intervention, ...] = ()
    """Changes to the model: see docs/page.md."""


class TranslateTexts(ModelRequest):
    """Translate texts; each gets the output that it would get alone."""

    model_config = example(texts=[GERMAN], decoding={"beam": 5, "nbest": 2})
    texts: tuple[str, ...] = Field(min_length=1)
    decoding: Decoding = Decoding()
    attention: bool = False
    """Whether to return attention weights."""


class StreamText(Table):
    """Translate a text with greedy search, and send each token at once."""

    model_config = example(text=GERMAN)
    model: str | None = None
    """Its name in `/api/models`; the first by default."""
    text: str


class Pairs(ModelRequest):
    """Sources with given targets."""

    model_config = example(pairs=[[GERMAN, ENGLISH]])
    pairs: tuple[tuple[str, str], ...] = Field(min_length=1)
    attention: bool = False
    """Whether to return attention weights."""


class InterveneText(ModelRequest):
    """Translate a text twice: with the model as it is, and with interventions."""

    model_config = example(text=GERMAN, interventions=[{"what": "mask", "keys": [4]}])
    text: str
    interventions: tuple[Intervention, ...] = Field(min_length=1)
    decoding: Decoding = Decoding()
    attention: bool = False
    """Whether to return attention weights."""


class RunLab(Table):
    """Run a lab at these parameters; those that are not given have their defaults."""

    model_config = example(seed=0, parameters={})
    seed: int = Field(default=0, ge=0, lt=2**31)
    parameters: dict[str, bool | int | float | str] = Field(default_factory=dict)


# --- answers --------------------------------------------------------------------------------------


class Scored(Table):
    """A scored pair, as `regard score` prints it."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    log_probs: tuple[float, ...]
    """log p(token | source, tokens before it), EOS included."""
    score: float
    """Their sum."""
    perplexity: float
    attention: dict[str, TensorData] | None = None

    @classmethod
    def of(cls, pair: "ScoredPair") -> "Scored":
        """A pair, with its attention weights if it has them."""
        weights = pair.attention if pair.weights else {}
        more = {"attention": {name: TensorData.of(w) for name, w in weights.items()}}
        return cls(
            source=tuple(pair.source),
            target=tuple(pair.target),
            log_probs=tuple(pair.log_probs),
            score=pair.score,
            perplexity=pair.perplexity,
            **(more if weights else {}),
        )


class Intervened(Table):
    """A translation by the model as it is, and with interventions."""

    before: Translation
    after: Translation

    @classmethod
    def of(cls, outputs: "tuple[translation.Translation, translation.Translation]") -> "Intervened":
        before, after = map(Translation.of, outputs)
        return cls(before=before, after=after)


class StreamedToken(Table):
    """Data of the event `token`. At the end comes `translation`, a `Translation`, or `error`, an `Error`."""

    token: str
    text: str
    """The output so far."""


class RunState(Table):
    """A run that was named when the server was started."""

    name: str
    finished: bool
    """Whether its training is over."""
    ready: bool
    """Whether it has weights, so that it translates."""
    logged: bool
    """Whether it has a training log."""
    step: int | None = None
    """The training step of the weights in use, if known."""


class Sample(Table):
    """Translations of a few sentences by a run in training, when its best weights had this step."""

    step: int | None
    sources: tuple[str, ...]
    outputs: tuple[str, ...]


class TrainingLog(RunState):
    """What a run has logged after the first `after` events. Ask again with `after` = `next`."""

    events: tuple[dict[str, Any], ...]
    """Lines of its metrics.jsonl: the event `start`, then one `validation` each."""
    next: int
    samples: tuple[Sample, ...]


class LabInfo(Table):
    name: str
    claim: str
    derivation: str
    parameters: dict[str, Any]
    """JSON schema of its parameters: type, default, range and description of each."""
    quick: dict[str, Any]
    """Parameters of a shorter run, for a lab that trains or times models."""
    absent: dict[str, Any]
    """Parameters at which the law holds and the effect is absent."""


class LabList(Table):
    labs: tuple[LabInfo, ...]
    palettes: dict[str, tuple[str, ...]]
    """Colours of the places `@0@`, `@1@`, ... of plots, by theme."""


class LabResult(Table):
    """A result, as a page of labs has it, with its figures and its plot."""

    name: str
    seed: int
    parameters: dict[str, Any]
    passed: bool
    figures: dict[str, Any]
    result: dict[str, Any]
    """law, effect, law_holds, effect_is_present, columns, rows, notes, command"""
    plot: dict[str, str]
    """SVG by theme, or `both`, with places for colours; glyphs are in `glyphs`."""
    glyphs: dict[str, str]
    seconds: float


class ComparisonList(Table):
    comparisons: tuple[str, ...]


class Comparison(Table):
    """A folder of `regard compare`."""

    name: str
    finished: bool
    """Whether its tables are written."""
    results: dict[str, Any] | None
    """results.json: its systems with their summaries, and the command."""
    table: str
    """table.md, in Markdown."""
    columns: tuple[str, ...]
    """The headings of the table."""
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    """What stands below the table, but for the command."""
    curves: dict[str, tuple[tuple[int, float], ...]]
    """(step, validation loss) of each run, by its folder: those in training too."""


class Health(Table):
    status: str
    """ok, or stopping."""
