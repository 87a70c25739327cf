"""What a run takes over from another: its weights, token by token where they belong to tokens.

A run has a vocabulary of its own. A row of an embedding or of the output map is taken over where both
vocabularies have the same string, and starts fresh where the other has not.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard import files, presets
from regard.config import Config, TokenizerConfig
from regard.errors import UserError, suggest
from regard.models import Model
from regard.text.corpus import Corpus
from regard.text.overlap import count_overlap, training_sentences
from regard.text.tokenizer import SPECIAL_TOKENS, Tokenizer, TokenizerPair
from regard.training.differences import differences
from regard.translator import Translator, load

FREE = ("dropout", "embedding_std")  # settings of a model that do not change what its weights mean


@dataclass(frozen=True)
class Origin:
    """Where a run's first weights came from: for its card, and for the person who waits."""

    record: dict[str, Any]
    told: list[str]


@dataclass(frozen=True)
class Ancestor:
    """The run that `init` names, checked to be of the same making as the one that starts from it."""

    name: str
    run: Translator
    seconds: float | None
    """What it took to train; None, if it is not done yet."""

    @classmethod
    def of(cls, config: Config, folder: Path) -> "Ancestor":
        """The ancestor of a run in `folder`; `init` is a path from that folder, or from here."""
        name = config.init or ""
        beside = Path(os.path.normpath(folder / name))  # "..", though the folder is not there yet
        path = next((path for path in (beside, Path(name)) if path.is_dir()), None)
        if path is None:
            raise UserError(f"init: there is no run folder {name}{advice(name)}")
        run = load(path)
        check_model(run.config, config, name)
        check_tokenizer(run.config, config, name)
        card = path / "card.json"
        done = files.read_json(card)["figures"] if card.is_file() else {}
        return cls(name, run, done.get("training_seconds"))

    @property
    def tokenizers(self) -> TokenizerPair:
        return self.run.tokenizers

    def give(self, model: Model, tokenizers: TokenizerPair, data: Corpus) -> Origin:
        """Fill the model with the ancestor's weights, and say what came of it."""
        pieces = self.fill(model, tokenizers)
        if tokenizers.joint:
            pieces = {"joint": pieces["target"]}
        found = self.overlap(data)
        told = [piece_line(self.name, *each) for each in pieces.items()]
        if self.seconds is None:
            told.insert(0, f"{self.name} is not done: what it has learned so far is taken")
        told.append(overlap_line(self.name, found))
        facts = {"run": self.name, "training_seconds": self.seconds}
        return Origin({**facts, "pieces": pieces, "overlap": found}, told)

    @torch.no_grad()
    def fill(self, model: Model, tokenizers: TokenizerPair) -> dict[str, dict[str, int]]:
        """Put the weights there; how many tokens of each side were taken over."""
        pieces = {}
        theirs, ours = self.run.model.vocab_parameters(), model.vocab_parameters()
        for side in ("source", "target"):
            old, new = getattr(self.tokenizers, side), getattr(tokenizers, side)
            known, here = shared(old, new)
            pieces[side] = {"kept": len(here), "fresh": new.vocab_size - len(here)}
            for one, other in zip(ours[side], theirs[side], strict=True):
                one[here] = other[known].to(one.device)
        rows = {id(parameter) for side in ours.values() for parameter in side}
        old_weights = dict(self.run.model.named_parameters())
        for name, parameter in model.named_parameters():
            if id(parameter) not in rows:
                parameter.copy_(old_weights[name])
        return pieces

    def overlap(self, data: Corpus) -> dict[str, dict[str, int]] | None:
        """How many sentences of val and test the ancestor has learned from; None: its text is gone."""
        try:
            text = training_sentences(self.run.config.data)
        except UserError:
            return None
        held_out = [split for split in data.splits if split != "train"]
        return {split: count_overlap(text, data[split]) for split in held_out}


def shared(old: Tokenizer, new: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids in both vocabularies of the tokens that both have, pieces and symbols apart."""
    known, own = ids(old), ids(new)
    both = [token for token in own if token in known]
    return [known[token] for token in both], [own[token] for token in both]


def ids(tokenizer: Tokenizer) -> dict[tuple[bool, str], int]:
    """The id of each token, under its string and whether a text may hold it."""
    first_piece = len(SPECIAL_TOKENS) + len(tokenizer.symbols)
    return {(number >= first_piece, name): number for number, name in enumerate(tokenizer.vocab)}


def check_model(old: Config, new: Config, name: str) -> None:
    """Weights mean the same in both models, and fit."""
    there, here = (config.model.model_dump() for config in (old, new))
    found = [line for line in differences(there, here, "model") if key(line) not in FREE]
    if there["kind"] != here["kind"]:  # then the rest is of another kind, too
        found = [line for line in found if line.startswith("model.kind:")]
    if found:
        raise UserError(
            f"init: the weights of {name} do not fit this model ({'; '.join(found[:5])}). Give both "
            f"runs the same [model]; only {' and '.join(FREE)} may differ"
        )


def key(difference: str) -> str:
    """The last part of a setting's name: 'model.d_model: 8 there, 9 here' -> 'd_model'."""
    return difference.partition(":")[0].rpartition(".")[2]


def check_tokenizer(old: Config, new: Config, name: str) -> None:
    """A string stands for the same text in both vocabularies."""
    for choice in ("kind", "lowercase", "joint"):
        there, here = (getattr(config.tokenizer, choice) for config in (old, new))
        if there != here:
            raise UserError(
                f"init: tokenizer.{choice} is {shown(there)} in {name} and {shown(here)} here, so "
                f"their tokens do not mean the same: set tokenizer.{choice}={shown(there)}"
            )
    learned = set(type(new.tokenizer).model_fields) - set(TokenizerConfig.model_fields)
    for choice in new.tokenizer.changed(*learned) if new.tokenizer.reuse else ():
        there, here = (getattr(config.tokenizer, choice) for config in (old, new))
        if there != here:
            raise UserError(
                f"init: tokenizer.{choice} is {here} here, and tokenizer.reuse takes the vocabulary of "
                f"{name}, made with {there}: leave out one of the two"
            )
    if new.tokenizer.reuse and old.is_language_model and not old.tokenizer.joint:
        raise UserError(
            f"init: {name} has read nothing, so it has no source vocabulary to reuse: train it with "
            "tokenizer.joint=true, or leave out tokenizer.reuse"
        )


def shown(value: str | bool) -> str:
    return str(value).lower()


def advice(name: str) -> str:
    known, last = presets.names(), Path(name).name
    if last in known and last != name:
        return f": make it first with `regard train {last} --run {name}`"
    if name not in known and not name.endswith(".toml"):
        folder = Path(name).parent
        runs = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
        close = suggest(last, runs) or suggest(name, known)
        return f".{close}" if close else ""
    return (
        f", but a preset to make one: type `regard train {name}`, then this command again with "
        f"`--init runs/{Path(name).stem}`"
    )


def piece_line(name: str, side: str, counts: dict[str, int]) -> str:
    which = "" if side == "joint" else f"{side} "
    return (
        f"{counts['kept']:,} of {sum(counts.values()):,} {which}pieces come from {name}, "
        f"{counts['fresh']:,} start fresh"
    )


def overlap_line(name: str, found: dict[str, dict[str, int]] | None) -> str:
    if found is None:
        return f"what {name} learned from is not here: whether val and test are in it is not known"
    parts = [
        f"{counts['source']:,} sources and {counts['target']:,} targets of {split}"
        for split, counts in found.items()
    ]
    return f"{name} has learned from {', '.join(parts)}"
