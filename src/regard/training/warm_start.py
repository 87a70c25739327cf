"""Warm start: initialise a model with the weights of another run (`init`).

The two runs may have different vocabularies. A row of an embedding or of the output projection is copied
if both vocabularies contain its token, and keeps its random initialisation otherwise.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard import documents, files, presets, schemas, shipped
from regard.config import Config, TrainedTokenizer
from regard.errors import UserError, join_names, suggest
from regard.loading import load
from regard.models import Model
from regard.text.corpus import Corpus
from regard.text.overlap import count_overlap, training_sentences
from regard.text.tokenizer import SPECIAL_TOKENS, Tokenizer, TokenizerPair
from regard.training.differences import list_differences
from regard.translator import Translator

# Model settings without weights: how a model is trained, and what a query may attend to and how far.
MAY_DIFFER = (
    *("dropout", "embedding_std", "read_padding"),
    *("scaling", "factor", "original_length", "attention_mask"),
)


@dataclass(frozen=True)
class WarmStart:
    """What was copied: a record for the card, and messages for the user."""

    record: dict[str, Any]
    messages: list[str]


@dataclass(frozen=True)
class SourceCheckpoint:
    """The run that `init` names, checked to have the same model and kind of tokenizer."""

    name: str
    translator: Translator
    seconds: float | None
    """Its training time; None if it is not finished."""

    @classmethod
    def load(cls, config: Config, folder: Path) -> "SourceCheckpoint":
        """Load the run that `init` names, a path from the run's `folder` or the working directory, or a
        shipped model.
        """
        name = config.init or ""
        # normpath resolves ".." before the folder exists
        sibling = files.local_path(Path(os.path.normpath(folder / name)))
        path = sibling if sibling.is_dir() else shipped.find_run(name)
        if not path.is_dir():
            raise UserError(f"init: there is no run folder {name}{suggest_source(name)}")
        translator = load(path)
        check_model(translator.config, config, name)
        check_tokenizer(translator.config, config, name)
        card = path / "card.json"
        figures = documents.read(card, schemas.Card)["figures"] if card.is_file() else {}
        return cls(name, translator, figures.get("training_seconds"))

    @property
    def tokenizers(self) -> TokenizerPair:
        return self.translator.tokenizers

    def warm_start(self, model: Model, tokenizers: TokenizerPair, data: Corpus) -> WarmStart:
        """Copy the weights into `model`, and describe what was copied."""
        counts = self.copy_weights(model, tokenizers)
        if tokenizers.joint:
            counts = {"joint": counts["target"]}
        overlap = self.count_overlap(data)
        messages = [describe_tokens(self.name, side, count) for side, count in counts.items()]
        if self.seconds is None:
            messages.insert(0, f"{self.name} is not finished: its best weights so far are used")
        messages.append(describe_overlap(self.name, overlap))
        record = {"run": self.name, "training_seconds": self.seconds}
        return WarmStart({**record, "pieces": counts, "overlap": overlap}, messages)

    @torch.no_grad()
    def copy_weights(self, model: Model, tokenizers: TokenizerPair) -> dict[str, dict[str, int]]:
        """Copy all weights into `model`; return how many tokens of each side were copied."""
        counts = {}
        old_tables, new_tables = self.translator.model.vocab_parameters(), model.vocab_parameters()
        for side in ("source", "target"):
            old, new = getattr(self.tokenizers, side), getattr(tokenizers, side)
            old_ids, new_ids = shared_token_ids(old, new)
            counts[side] = {"copied": len(new_ids), "new": new.vocab_size - len(new_ids)}
            for new_table, old_table in zip(new_tables[side], old_tables[side], strict=True):
                new_table[new_ids] = old_table[old_ids].to(new_table.device)
        copied = {id(parameter) for tables in new_tables.values() for parameter in tables}
        old_parameters = dict(self.translator.model.named_parameters())
        for name, parameter in model.named_parameters():
            if id(parameter) not in copied:
                parameter.copy_(old_parameters[name])
        return counts

    def count_overlap(self, data: Corpus) -> dict[str, dict[str, int]] | None:
        """Sentences of each held-out split in the source's training data; None: it is not available."""
        try:
            sentences = training_sentences(self.translator.config.data)
        except UserError:
            return None
        held_out = [split for split in data.splits if split != "train"]
        return {split: count_overlap(sentences, data[split]) for split in held_out}


def shared_token_ids(old: Tokenizer, new: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids of the shared tokens, in the old and in the new vocabulary."""
    old_ids, new_ids = token_ids(old), token_ids(new)
    shared = [token for token in new_ids if token in old_ids]
    return [old_ids[token] for token in shared], [new_ids[token] for token in shared]


def token_ids(tokenizer: Tokenizer) -> dict[tuple[bool, str], int]:
    """(is ordinary, string) -> id. A special token never equals an ordinary one of the same spelling."""
    first = len(SPECIAL_TOKENS) + len(tokenizer.symbols)
    return {(number >= first, token): number for number, token in enumerate(tokenizer.vocab)}


def check_model(old: Config, new: Config, name: str) -> None:
    """Raise an error unless the weights have the same shapes and meaning in both models."""
    saved, given = (config.model.model_dump() for config in (old, new))
    differences = [
        line for line in list_differences(saved, given, "model") if last_key(line) not in MAY_DIFFER
    ]
    if saved["kind"] != given["kind"]:  # then the other settings cannot be compared
        differences = [line for line in differences if line.startswith("model.kind:")]
    if differences:
        raise UserError(
            f"init: the weights of {name} do not fit this model ({'; '.join(differences[:5])}). Give "
            f"both runs the same [model]; only {join_names(MAY_DIFFER)} may differ"
        )


def last_key(difference: str) -> str:
    """The last part of a setting's name: 'model.d_model: saved 8, given 9' -> 'd_model'."""
    return difference.partition(":")[0].rpartition(".")[2]


def check_tokenizer(old: Config, new: Config, name: str) -> None:
    """Raise an error unless a token stands for the same text in both vocabularies."""
    for key in ("kind", "lowercase", "joint"):
        saved, given = (getattr(config.tokenizer, key) for config in (old, new))
        if saved != given:
            saved, given = format_value(saved), format_value(given)
            raise UserError(
                f"init: tokenizer.{key} is {saved} in {name} and {given} here, so their tokens do "
                f"not mean the same: set tokenizer.{key}={saved}"
            )
    if not new.tokenizer.reuse:
        return
    vocabulary_keys = set(type(new.tokenizer).model_fields) - set(TrainedTokenizer.model_fields)
    for key in new.tokenizer.changed(*vocabulary_keys - {"dropout"}):
        saved, given = (getattr(config.tokenizer, key) for config in (old, new))
        if saved != given:
            raise UserError(
                f"init: tokenizer.{key} is {given} here, but tokenizer.reuse takes the vocabulary of "
                f"{name}, built with {saved}: remove one of the two"
            )
    if old.is_language_model and not old.tokenizer.joint:
        raise UserError(
            f"init: {name} is a language model without a source vocabulary to reuse: train it with "
            "tokenizer.joint=true, or remove tokenizer.reuse"
        )


def format_value(value: str | bool) -> str:
    return str(value).lower()


def suggest_source(name: str) -> str:
    """The end of an error message for a missing `init`: how to train the run, or a close spelling."""
    known, last = presets.names(), Path(name).name
    if last in known and last != name:
        return f": train it first with `regard train {last} --run {name}`"
    if name not in known and not name.endswith(".toml"):
        folder = Path(name).parent
        runs = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
        suggestion = suggest(last, runs) or suggest(name, [*known, *shipped.names()])
        return f".{suggestion}" if suggestion else ""
    return (
        f"; {name} is a preset: train it with `regard train {name}`, then repeat this command with "
        f"`--init runs/{Path(name).stem}`"
    )


def describe_tokens(name: str, side: str, counts: dict[str, int]) -> str:
    side = "" if side == "joint" else f"{side} "
    return (
        f"{counts['copied']:,} of {sum(counts.values()):,} {side}token embeddings are copied from "
        f"{name}, {counts['new']:,} are newly initialised"
    )


def describe_overlap(name: str, overlap: dict[str, dict[str, int]] | None) -> str:
    if overlap is None:
        return (
            f"the training data of {name} is not available: "
            "its overlap with the held-out splits is unknown"
        )
    parts = [
        f"{counts['source']:,} sources and {counts['target']:,} targets of {split}"
        for split, counts in overlap.items()
    ]
    return f"the training data of {name} contains {', '.join(parts)}"
