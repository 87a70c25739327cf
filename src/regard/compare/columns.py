"""The columns a comparison can have; a table for people shows some, the files for programs all."""

from dataclasses import dataclass
from typing import Any

from regard.errors import UserError, join_names, suggest


@dataclass(frozen=True)
class Column:
    """A figure of a system: its heading, where it lies in the system's results, how it is shown."""

    head: str
    path: tuple[str, ...]
    form: str
    note: str = ""
    """What a reader should know; it stands under a table that has the column."""

    def value(self, system: dict[str, Any]) -> float | None:
        """None: not known, as with a variance of one run."""
        found: Any = system
        for step in self.path:
            found = None if found is None else found.get(step)
        return found

    def cell(self, system: dict[str, Any]) -> str:
        value = self.value(system)
        return "" if value is None else self.form.format(value)


def mean(head: str, figure: str, form: str, note: str = "") -> Column:
    return Column(head, ("summary", figure, "mean"), form, note)


# Training was timed in the sweep, where the runs may have shared one device.
TIMED = ("training_seconds", "tokens_per_second")

COLUMNS: dict[str, Column] = {
    "seeds": Column("seeds", ("seeds",), "{}"),
    "bleu_lower": mean("BLEU lower", "bleu_lower", "{:.2f}"),
    "variance": Column("variance", ("summary", "bleu_lower", "variance"), "{:.3f}"),
    "interval": Column("95 % CI", ("summary", "bleu_lower", "interval"), "± {:.3f}"),
    "p": Column(
        "p",
        ("p",),
        "{:.3f}",
        "p: paired bootstrap against {baseline}, the largest over the seeds both have",
    ),
    "longest": mean(
        "longest fifth",
        "bleu_lower_longest",
        "{:.2f}",
        "longest fifth: BLEU lower on the fifth of the sentences with the longest source, in characters",
    ),
    "bleu": mean("BLEU", "bleu", "{:.2f}"),
    "chrf": mean("chrF", "chrf", "{:.2f}"),
    "exact_match": mean("exact match", "exact_match", "{:.2%}"),
    "val_loss": mean("validation loss", "val_loss", "{:.3f}"),
    "val_loss_variance": Column("variance", ("summary", "val_loss", "variance"), "{:.5f}"),
    "perplexity": mean("perplexity", "perplexity", "{:.3f}"),
    "bits_per_character": mean("bits/character", "bits_per_character", "{:.3f}"),
    "parameters": mean("parameters", "parameters", "{:,.0f}"),
    "learned": mean("learned", "learned_parameters", "{:,.0f}", "learned: parameters that change"),
    "cache": mean(
        "cache bytes/token",
        "cache_bytes_per_token",
        "{:,.0f}",
        "cache: what one more token adds to the memory of a sentence's decoder",
    ),
    "speed": Column(
        "sentences/s",
        ("sentences_per_second",),
        "{:,.0f}",
        "sentences/s: greedy, first seed, one system at a time in turn, best of {rounds}",
    ),
    "training_seconds": mean("training s", "training_seconds", "{:,.0f}"),
    "tokens_per_second": mean("tokens/s", "tokens_per_second", "{:,.0f}"),
}

USUAL = (
    *("bleu_lower", "variance", "interval", "p", "chrf", "val_loss", "val_loss_variance"),
    *("perplexity", "parameters", "training_seconds"),
)


def chosen(text: str) -> tuple[str, ...]:
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
