"""The figures of a model card: BLEU with its signature and a bootstrap confidence interval.

A figure comes from an evaluation in the run folder, or is measured; there is none without a source.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from regard import documents, schemas
from regard.errors import UserError
from regard.evaluation import evaluate
from regard.evaluation.metrics import METRICS
from regard.text import corpus
from regard.translator import Translator

RESAMPLES = 1000


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate for the card. `split` None: the split test, if there is one and its data is there."""

    split: str | None = None
    beam: int = 5
    skip: bool = False
    """Do not evaluate: the card then has no BLEU."""


@dataclass(frozen=True)
class Scores:
    """BLEU of one search on one split. Without references, the interval is unknown."""

    split: str
    beam: int
    sentences: int
    bleu: float
    signature: str
    chrf: float | None
    exact_match: float
    source: str
    """Where the figures come from."""
    interval: tuple[float, float] | None = None
    """95 % confidence interval of BLEU, from bootstrap resampling of the sentences."""
    metric: str = "bleu"
    """Which BLEU it is, of `METRICS`: cased, or on the tokens of preprocessed text."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_scores(
    translator: Translator, folder: Path, evaluation: Evaluation
) -> tuple[Scores | None, str]:
    """(the scores, or None; why there are none)."""
    split = evaluation.split or "test"
    if translator.config.is_language_model:
        return None, "a language model has no translations to score"
    if evaluation.skip:
        return None, "it was not asked for"
    saved = find_saved(folder, split, evaluation.beam)
    try:
        pairs = corpus.load_split(translator.config.data, split)
    except UserError as error:
        if saved is not None:
            return summarise(saved, split, None), ""
        if evaluation.split is not None:
            raise
        return None, str(error)
    if saved is None or len(saved.get("outputs", ())) != len(pairs):
        (saved,) = evaluate(translator, pairs, [evaluation.beam])["results"]
        saved["source"] = "measured when the model was exported"
    return summarise(saved, split, [target for _, target in pairs]), ""


def find_saved(folder: Path, split: str, beam: int) -> dict[str, Any] | None:
    """The result with that beam width in the evaluation that `regard compare` wrote to the run, if any."""
    path = folder / f"evaluation-{split}.json"
    results = documents.read(path, schemas.Evaluation)["results"] if path.is_file() else []
    complete = [one for one in results if one.keys() >= {"outputs", "signatures", "chrf"}]
    found = next((result for result in complete if result["beam"] == beam), None)
    return None if found is None else found | {"source": f"{path.name} of the run"}


def summarise(result: dict[str, Any], split: str, references: Sequence[str] | None) -> Scores:
    """A result of `evaluate` as scores, with an interval if there are references to resample."""
    metric = "bleu" if result["bleu"] is not None else "bleu_tokens"
    names = ("beam", "sentences", "chrf", "exact_match", "source")
    fields = {name: result[name] for name in names} | {"bleu": result[metric], "metric": metric}
    if references is None:
        return Scores(split=split, signature=result["signatures"][metric], **fields)
    interval, signature = bootstrap_bleu(result["outputs"], references, metric)
    return Scores(split=split, signature=signature, interval=interval, **fields)


def bootstrap_bleu(
    outputs: Sequence[str], references: Sequence[str], name: str = "bleu"
) -> tuple[tuple[float, float], str]:
    """The 95 % confidence interval of BLEU, and the signature, which names number and seed of resamples.

    mean ± half-width over sets of sentences drawn with replacement (Koehn, 2004), as sacreBLEU computes it.
    """
    metric = METRICS[name].create()
    score: Any = metric.corpus_score(list(outputs), [list(references)], n_bootstrap=RESAMPLES)
    interval = (max(0.0, score._mean - score._ci), min(100.0, score._mean + score._ci))
    return interval, str(metric.get_signature())
