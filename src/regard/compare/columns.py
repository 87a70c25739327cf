"""The columns of a comparison: Markdown and LaTeX tables show a selection, table.csv has all."""

from dataclasses import dataclass
from typing import Any

from regard.errors import UserError, join_names, suggest


@dataclass(frozen=True)
class Column:
    """One figure of a system: its heading, its path in the system's results, its format string."""

    heading: str
    path: tuple[str, ...]
    format_string: str
    note: str = ""
    """An explanation, printed below every table that has the column."""

    def get_value(self, system: dict[str, Any]) -> float | None:
        """None if it is not available, such as the variance of a single run."""
        value: Any = system
        for key in self.path:
            value = None if value is None else value.get(key)
        return value

    def format_cell(self, system: dict[str, Any]) -> str:
        value = self.get_value(system)
        return "" if value is None else self.format_string.format(value)


def mean_column(heading: str, figure: str, format_string: str, note: str = "") -> Column:
    return Column(heading, ("summary", figure, "mean"), format_string, note)


# Measured during the sweep, where several runs may share one device.
TRAINING_TIME_COLUMNS = ("training_seconds", "tokens_per_second")
# Over seeds, of the metric that the comparison is about (`default_columns`), on a scale of 100.
SPREAD_COLUMNS = ("std", "variance", "interval")

COLUMNS: dict[str, Column] = {
    "seeds": Column("seeds", ("seeds",), "{}"),
    "bleu_lower": mean_column("BLEU (lowercased)", "bleu_lower", "{:.2f}"),
    "std": Column("std", ("summary", "headline", "std"), "{:.2f}"),
    "variance": Column("variance", ("summary", "headline", "variance"), "{:.3f}"),
    "interval": Column("95 % CI", ("summary", "headline", "interval"), "± {:.3f}"),
    "p": Column(
        "p",
        ("p",),
        "{:.3f}",
        "p: paired bootstrap test against {baseline} by {headline}, the maximum over the seeds both have",
    ),
    "welch": Column(
        "p (Welch)",
        ("welch",),
        "{:.2g}",  # it can be far smaller than the bootstrap's, whose minimum is 1 / 1001
        "p (Welch): Welch's t-test over seeds against {baseline} by {headline}",
    ),
    "longest": mean_column(
        "longest fifth",
        "bleu_lower_longest",
        "{:.2f}",
        "longest fifth: BLEU (lowercased) on the 20 % of sentences with the longest source, in characters",
    ),
    "bleu": mean_column("BLEU", "bleu", "{:.2f}"),
    "bleu_tokens": mean_column(
        "BLEU (tokens)",
        "bleu_tokens",
        "{:.2f}",
        "BLEU (tokens): on lower-cased tokens of Moses, for models of such text (data.preprocess)",
    ),
    "chrf": mean_column("chrF", "chrf", "{:.2f}"),
    "ter": mean_column("TER", "ter", "{:.2f}", "TER: lower is better"),
    "exact_match": mean_column("exact match", "exact_match", "{:.2%}"),
    "val_loss": mean_column("validation loss", "val_loss", "{:.3f}"),
    "val_loss_variance": Column("variance", ("summary", "val_loss", "variance"), "{:.5f}"),
    "perplexity": mean_column("perplexity", "perplexity", "{:.3f}"),
    "bits_per_character": mean_column("bits/character", "bits_per_character", "{:.3f}"),
    "parameters": mean_column("parameters", "parameters", "{:,.0f}"),
    "trainable": mean_column(
        "trainable",
        "trainable_parameters",
        "{:,.0f}",
        "trainable: parameters that training updates",
    ),
    "cache": mean_column(
        "cache bytes/token",
        "cache_bytes_per_token",
        "{:,.0f}",
        "cache: bytes that one more token adds to the decoder state of a sentence",
    ),
    "speed": Column(
        "sentences/s",
        ("sentences_per_second",),
        "{:,.0f}",
        "sentences/s: greedy search, first seed, systems timed in turn, best of {rounds} rounds",
    ),
    "training_seconds": mean_column("training s", "training_seconds", "{:,.0f}"),
    "tokens_per_second": mean_column("tokens/s", "tokens_per_second", "{:,.0f}"),
}


def default_columns(headline: str) -> tuple[str, ...]:
    """The columns of a table about this metric: bleu_lower, bleu_tokens if all text is preprocessed, or
    exact_match for synthetic tasks.
    """
    quality = ("chrf",) if headline == "bleu_lower" else ()
    return (
        *(headline, "std", "variance", "interval", "p", "welch", *quality),
        *("val_loss", "val_loss_variance", "perplexity", "parameters", "training_seconds"),
    )


def select_columns(text: str) -> tuple[str, ...]:
    """'bleu_lower,longest' -> ('bleu_lower', 'longest')"""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise UserError(
                f'there is no column "{name}".{suggest(name, COLUMNS)} Columns: {join_names(COLUMNS)}'
            )
    if len(set(names)) < len(names):
        raise UserError(f'"{text}" names a column twice')
    return names
