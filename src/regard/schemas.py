"""The schema of each JSON file that we read: types and ranges of the fields that we use.

Fields that a version from 0.2.0 on did not write are optional, and other fields are not checked.
"""

from pathlib import PureWindowsPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from regard.documents import Document

Count = Annotated[int, Field(ge=0)]
Loss = Annotated[float, Field(ge=0, le=1e100)]
Seconds = Annotated[float, Field(ge=0)]
Percentage = Annotated[float, Field(ge=0, le=100 + 1e-6)]
Piece = Annotated[str, Field(min_length=1)]
Texts = Annotated[dict[str, str], Field(default_factory=dict)]
Table = Annotated[dict[str, Any], Field(default_factory=dict)]
Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Checksums = Annotated[dict[str, Checksum], Field(default_factory=dict)]


# --- card.json, evaluation-SPLIT.json -------------------------------------------------------------


class AugmentCard(Document):
    """FILE.card.json: where synthetic pairs came from."""

    recipe: dict[str, Any]
    counts: dict[str, Count]
    seconds: Seconds


class Settings(Document):
    """config.toml as any version wrote it, or a copy of it on a card."""

    description: str = ""
    data: Table
    tokenizer: Table
    model: Table


class Figures(Document):
    parameters: Count | None = None
    trainable_parameters: Count | None = None
    val_loss: Loss
    val_bleu_lower: Percentage | None = None
    val_bleu_tokens: Percentage | None = None
    best_step: Count
    steps: Count
    training_seconds: Seconds
    tokens_per_second: float | None = None


class BestCheckpoint(Document):
    step: Count
    val_loss: Loss
    val_bleu_lower: Percentage | None = None


class Average(Document):
    """The mean of the weights at some validations, and the best single checkpoint."""

    steps: Annotated[list[Count], Field(min_length=1)]
    val_loss: Loss
    val_bleu_lower: Percentage | None = None
    is_saved: bool
    best: BestCheckpoint


class Signatures(Document):
    bleu: str | None = None
    bleu_lower: str | None = None
    bleu_tokens: str | None = None


class Result(Document):
    """The scores of one beam width."""

    beam: Annotated[int, Field(ge=1)]
    bleu: Percentage | None
    bleu_lower: Percentage | None
    bleu_tokens: Percentage | None = None
    bleu_lower_longest: Percentage | None = None
    chrf: Percentage | None = None
    ter: float | None = None
    exact_match: Annotated[float, Field(ge=0, le=1)]
    sentences: Count | None = None
    signatures: Signatures | None = None
    outputs: list[str] | None = None

    @model_validator(mode="after")
    def check_bleu(self) -> "Result":
        """BLEU of detokenised text, or on tokens of preprocessed text, with the signatures of those."""
        names = ("bleu_tokens",) if self.bleu_tokens is not None else ("bleu", "bleu_lower")
        for record in (self, self.signatures):
            for name in names:
                if record is not None and getattr(record, name) is None:
                    raise ValueError(f"{name} is missing")
        return self

    @model_validator(mode="after")
    def check_outputs(self) -> "Result":
        if self.outputs is not None and len(self.outputs) != self.sentences:
            raise ValueError(f"{len(self.outputs)} outputs for {self.sentences} sentences")
        return self


class Evaluation(Document):
    repair = "Delete it, and run the command that wrote it again"

    split: str
    perplexity: float | None = None
    bits_per_character: float | None = None
    cache_bytes_per_token: float | None = None
    results: list[Result]


class ComparedEvaluation(Evaluation):
    """With what a comparison needs, and `evaluate --json` leaves out."""

    @model_validator(mode="after")
    def check_complete(self) -> "ComparedEvaluation":
        if not self.results or any(None in (r.outputs, r.signatures) for r in self.results):
            raise ValueError("results: outputs or signatures are missing")
        return self


class Results(Document):
    results: list[Result]


class CardEvaluation(Results):
    split: str


class ShippedEvaluation(Document):
    """Of the weights as they are shipped."""

    split: str
    int8: Results


class Card(Document):
    config: Settings | None = None
    seed: int | None = None
    versions: dict[str, str]
    device: str
    threads: int | None = None
    jobs: Count = 1
    processes: Annotated[int, Field(ge=1, le=2**20)] = 1
    data: Texts
    init: dict[str, Any] | None = None
    synthetic: Annotated[list[AugmentCard], Field(default_factory=list)]
    figures: Figures
    average: Average | None = None
    evaluations: Annotated[list[CardEvaluation], Field(default_factory=list)]
    evaluation: ShippedEvaluation | None = None
    terms: Texts


# --- metrics.jsonl --------------------------------------------------------------------------------


class Event(Document):
    repair = "Restore it from a copy, or delete that line"

    event: str


class StartEvent(Event):
    seed: int | None = None
    parameters: Count | None = None
    versions: Texts
    device: str | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    jobs: Count = 1
    processes: Annotated[int, Field(ge=1, le=2**20)] = 1
    data: Texts
    init: dict[str, Any] | None = None
    synthetic: Annotated[list[AugmentCard], Field(default_factory=list)]
    terms: Texts


class ValidationEvent(Event):
    step: Count
    loss: Loss
    seconds: Seconds


class AverageEvent(Event):
    step: Count
    steps: list[Count]
    loss: Loss
    is_saved: bool


EVENTS: dict[Any, type[Event]] = {
    "start": StartEvent,
    "validation": ValidationEvent,
    "average": AverageEvent,
}


def event_schema(document: dict[str, Any]) -> type[Event]:
    """The schema of a line of metrics.jsonl."""
    kind = document.get("event")
    return EVENTS.get(kind, Event) if isinstance(kind, str) else Event


# --- tokenizer.json, architecture.json ------------------------------------------------------------


class Exact(Document):
    """Decides what a model computes: a field that we do not know is an error."""

    model_config = ConfigDict(extra="forbid")


class Vocabulary(Exact):
    lower: bool
    strict: bool
    symbols: list[Piece]
    pieces: list[Piece]

    @model_validator(mode="after")
    def check_unique(self) -> "Vocabulary":
        if len(set(self.pieces)) < len(self.pieces) or len(set(self.symbols)) < len(self.symbols):
            raise ValueError("a piece or a symbol occurs twice")
        return self


class WholeVocabulary(Vocabulary):
    kind: Literal["characters", "words"]


class BpeVocabulary(Vocabulary):
    kind: Literal["bpe"]
    merges: list[Annotated[list[Piece], Field(min_length=2, max_length=2)]]


class PretrainedVocabulary(Exact):
    kind: Literal["pretrained"]
    lower: bool
    engine: str
    rows: Annotated[int, Field(ge=1, le=2**24)]
    end: Count
    unknown: Count | None
    head: Annotated[list[str], Field(default_factory=list)]
    prefix: str = ""
    tail: Annotated[list[str], Field(default_factory=list)]

    @model_validator(mode="after")
    def check_rows(self) -> "PretrainedVocabulary":
        if max(self.end, self.unknown or 0) >= self.rows:
            raise ValueError(f"a special token has no row: there are {self.rows}")
        return self


Side = Annotated[
    WholeVocabulary | BpeVocabulary | PretrainedVocabulary, Field(discriminator="kind")
]


class Tokenizers(Exact):
    repair = "Restore it from a copy: the weights belong to exactly this vocabulary"

    joint: Side | None = None
    source: Side | None = None
    target: Side | None = None
    max_tokens: Annotated[int, Field(ge=1)]
    source_eos: bool = True  # version 0.2 always had one

    @model_validator(mode="after")
    def check_sides(self) -> "Tokenizers":
        sides = (self.joint is not None, self.source is not None, self.target is not None)
        if sides not in ((True, False, False), (False, True, True)):
            raise ValueError('it should have either "joint", or "source" and "target"')
        return self


class Architecture(Exact):
    repair = "Restore it from a copy: it says how the model is built"

    hf_config: dict[str, Any]
    logit_scale: float
    suppressed_ids: list[Count]
    prompt_ids: Annotated[list[Count], Field(default_factory=list)]
    pad_shift: int = 0
    base_checksum: str | None = None


# --- weights, checkpoints, exported folders -------------------------------------------------------


class Record(Document):
    """The record in the metadata of model.safetensors."""

    repair = "Restore it from a copy"

    step: Count | None = None
    files: Checksums
    checksum: Checksum | None = None


class Progress(Exact):
    """The record of last/state.safetensors. A score is null before the first validation."""

    step: Count
    epoch: Count
    batch: Count
    best_score: float | None
    best_loss: Loss | None
    best_step: Count
    validations_since_best: Count
    tokens: Count
    seconds: Seconds
    metrics_bytes: Count
    finished: bool
    averaged_steps: Annotated[list[Count], Field(default_factory=list)]
    loss_steps: Count
    files: Checksums


class AugmentProgress(Exact):
    """FILE.progress.json: how far `regard augment` is."""

    repair = "Delete it to start again"

    lines: Count
    bytes: Count
    seconds: Seconds
    counts: dict[str, Count]
    origin: dict[str, Any]


class ExportRecord(Document):
    """regard.json of a CTranslate2 folder. `files`: their SHA-256."""

    run: str
    files: dict[str, Checksum]


def check_inside(name: str) -> str:
    """A name of a file that stays inside its folder, on every system."""
    path = PureWindowsPath(name)  # which has all separators, and drives
    if path.anchor or ".." in path.parts or "\0" in name:
        raise ValueError(f"{name!r} is outside of its folder")
    return name


class Blob(Document):
    rfilename: Annotated[str, AfterValidator(check_inside)]
    blobId: str  # noqa: N815
    lfs: dict[str, Any] | None = None


class RepositoryListing(Document):
    """The files of a commit, as the Hugging Face hub lists them."""

    sha: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    siblings: list[Blob]
