"""A checkpoint becomes a model of ours: its vocabulary in our order, its parts behind our interface.

A run keeps what it takes to build the model again without the checkpoint, in architecture.json. That the
model says what the checkpoint says is not assumed: it is tried.
"""

import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import config, files
from regard.errors import UserError
from regard.models.hub import fetch, kind_for, library, quiet
from regard.models.pretrained import NEVER, Pretrained, PretrainedDecoder, PretrainedPair
from regard.models.tuning import tune
from regard.text.batch import pad
from regard.text.pretrained import PretrainedTokenizer
from regard.text.tokenizer import TokenizerPair
from regard.text.vocabulary import BOS, EOS, PAD, SPECIAL_TOKENS, UNK

FILE = "architecture.json"
FEW = 8  # tokens: no text that is worth reading is shorter
ROUNDING = 1e-3  # of the largest logit: how far two ways of computing in float32 may lie apart


@dataclass(frozen=True)
class Architecture:
    """All that is not in the weights."""

    hugging: dict[str, Any]
    """Hugging Face's config."""
    scale: float
    """What multiplies the features before the output map."""
    silent: list[int]
    """Ids of ours that the checkpoint has no word for, or never says."""

    def build(self) -> Pretrained:
        """The model, its weights still to come."""
        made = config_of(self.hugging)
        with quiet():
            hugging = kind_for(made).from_config(made, trust_remote_code=False).float()
        kind = PretrainedPair if made.is_encoder_decoder else PretrainedDecoder
        return kind(hugging, self.scale, self.silent)

    def save(self, folder: Path) -> None:
        files.write(folder / FILE, json.dumps(asdict(self), indent=1, ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> "Architecture":
        try:
            return cls(**json.loads((folder / FILE).read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{folder / FILE} is missing or damaged: {error}") from None


def config_of(record: dict[str, Any]) -> Any:
    kinds = library().models.auto.configuration_auto.CONFIG_MAPPING
    if record.get("model_type") not in kinds:
        raise UserError(
            f'this version of transformers knows no model "{record.get("model_type")}": update it'
        )
    return kinds[record["model_type"]].from_dict(record)


@dataclass(frozen=True)
class Adopted:
    """A checkpoint as a run begins with it."""

    tokenizers: TokenizerPair
    model: Pretrained
    architecture: Architecture

    def keep(self, folder: Path) -> tuple[TokenizerPair, Pretrained]:
        """Both parts, with what it takes to build them again left in `folder`."""
        self.architecture.save(folder)
        self.tokenizers.save(folder / "tokenizer.json")
        return self.tokenizers, self.model


def adopt(table: config.Pretrained, text: config.PretrainedTokenizer) -> Adopted:
    """The model that a [model] table names, with the weights it has and the tokenizers it needs."""
    original, theirs = fetch(table.name)
    tokenizers, begin = tokenizers_of(original, theirs, table, text)
    tokenizers = replace(tokenizers, max_tokens=within_room(original.config, text))
    order = tokenizers.target.row_order(begin)  # type: ignore[attr-defined]
    trial = Trial(original, order)
    reorder(original, order)
    silent = [PAD, BOS, *([UNK] if order[UNK] == order[EOS] else [])]
    architecture = Architecture(described(original.config), 1.0, silent)
    model = architecture.build().eval()
    model.hugging.load_state_dict(original.state_dict())
    if model.bias is not None:
        model.bias.data.copy_(original.final_logits_bias[0])
    model.scale = trial.scale(model)
    trial.check(model, table.name)
    tune(model.hugging, table.tune)
    return Adopted(tokenizers, model, replace(architecture, scale=model.scale))


def rebuilt(table: config.Pretrained, folder: Path) -> Pretrained:
    """The model of a run folder, its weights still to come."""
    model = Architecture.load(folder).build()
    tune(model.hugging, table.tune)
    return model


def tokenizers_of(
    original: Any, theirs: Any, table: config.Pretrained, text: config.PretrainedTokenizer
) -> tuple[TokenizerPair, int]:
    """Both sides, and what the checkpoint reads at the beginning of a target."""
    rows = original.get_input_embeddings().weight.shape[0]
    end, unknown = theirs.eos_token_id, theirs.unk_token_id
    if end >= rows:
        raise UserError(f'the end token of "{table.name}" has no row in its embedding')
    known = unknown is not None and unknown != end and unknown < rows
    engine = theirs.backend_tokenizer
    make = partial(
        PretrainedTokenizer,
        engine.to_str(),
        rows,
        end,
        unknown if known else None,
        text.lowercase,
    )
    around = theirs("").input_ids
    head = [engine.id_to_token(i) for i in (around[:-1] if around[-1:] == [end] else around)]
    if original.config.is_encoder_decoder:
        begin = original.config.decoder_start_token_id
        sides = make(head, table.prefix), make(head)
        return TokenizerPair(*sides, text.max_tokens), end if begin is None else begin
    # A space that ends the separator belongs to the target's first word.
    separator = table.separator.rstrip(" ") or table.separator
    space = table.separator.removeprefix(separator)
    *tail, last = make().tokenize_plain(separator)
    sides = make(head, table.prefix, tail), make((), space)
    return TokenizerPair(*sides, text.max_tokens), engine.token_to_id(last)


def within_room(hugging: Any, text: config.PretrainedTokenizer) -> int:
    """How long a text may be: what is asked for, or, if nothing is, what the model has places for."""
    room = getattr(hugging.get_text_config(), "max_position_embeddings", None)
    parts, why = 1, "tokenizer.max_tokens and one"
    if not hugging.is_encoder_decoder:
        parts, why = 2, "twice tokenizer.max_tokens and one, for source and target"
    longest = parts * (text.max_tokens + 1)
    if room is None or longest <= room:
        return text.max_tokens
    if text.changed("max_tokens"):
        raise UserError(
            f"this model has {room} places, and a text may need {longest} ({why}): lower "
            "tokenizer.max_tokens"
        )
    if room // parts - 1 < FEW:
        raise UserError(f"this model has {room} places, too few for a sentence: choose another")
    return room // parts - 1


@torch.no_grad()
def reorder(original: Any, order: list[int]) -> None:
    """Row i of whatever has a row for each token becomes what was row order[i]."""
    with quiet():
        original.resize_token_embeddings(len(order), mean_resizing=False)
    head = original.get_output_embeddings()
    bias = getattr(original, "final_logits_bias", None)
    found = [original.get_input_embeddings().weight, head.weight, head.bias]
    found.append(None if bias is None else bias[0])
    for one in {id(tensor): tensor for tensor in found if tensor is not None}.values():
        one.copy_(one[order])
    names = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK, "decoder_start": BOS}
    for hugging in (original.config, original.config.get_text_config()):
        for name, ours in names.items():
            if getattr(hugging, f"{name}_token_id", None) is not None:
                setattr(hugging, f"{name}_token_id", ours)


def described(hugging: Any) -> dict[str, Any]:
    """A config as plain data, without what would name code to run or tie it to where it came from."""
    foreign = {"auto_map", "_name_or_path", "transformers_version", "torch_dtype", "dtype"}
    foreign |= {"quantization_config"}  # what was rounded once is not any more
    return {name: value for name, value in hugging.to_dict().items() if name not in foreign}


class Trial:
    """What a checkpoint says of a few tokens, in its own numbers, to hold the model to."""

    LENGTHS = ((7, 5), (4, 3))

    @torch.no_grad()
    def __init__(self, original: Any, order: list[int]) -> None:
        ours = torch.linspace(len(SPECIAL_TOKENS), len(order) - 1, 24).long().tolist()
        theirs = torch.tensor(order)
        self.rows = []
        for source, target in self.LENGTHS:
            words = torch.tensor([[*ours[:source], EOS]])
            said = torch.tensor([[BOS, *ours[-target:]]])
            if original.config.is_encoder_decoder:
                out = original(input_ids=theirs[words], decoder_input_ids=theirs[said])
                wanted = out.logits
            else:
                both = torch.cat([words[:, :-1], said], dim=1)
                wanted = original(input_ids=theirs[both]).logits[:, source:]
            self.rows.append((words[0].tolist(), said, wanted[..., theirs]))

    def scale(self, model: Pretrained) -> float:
        """The c of wanted = c W f + b, by a model whose own is 1."""
        bias = model.output_projection[1]
        loud = bias > NEVER / 2
        pairs = [(logits - bias, wanted - bias) for logits, wanted in self.said(model)]
        raw, wanted = (
            torch.cat([x[..., loud].flatten() for x in side]).double()
            for side in zip(*pairs, strict=True)
        )
        found = float((raw * wanted).sum() / (raw * raw).sum())
        return 1.0 if abs(found - 1) < ROUNDING else found

    @torch.no_grad()
    def said(self, model: Pretrained) -> list[tuple[Tensor, Tensor]]:
        """(the model's logits, the checkpoint's) of each row, all rows in one padded batch."""
        source, mask = pad([words for words, _, _ in self.rows])
        memory = model.encode(source, mask)
        found = []
        for row, (_, said, wanted) in enumerate(self.rows):
            state, logits = model.init_state(memory.select(torch.tensor([row]))), []
            for token in said[0]:
                step, state = model.step(token[None], state)
                logits.append(step)
            found.append((torch.stack(logits, dim=1), wanted))
        return found

    def check(self, model: Pretrained, name: str) -> None:
        """Does the model, padded and word by word, say what the checkpoint says in one go?"""
        loud = model.output_projection[1] > NEVER / 2
        for found, wanted in self.said(model):
            apart = (found - wanted)[..., loud].abs().max()
            if not apart <= ROUNDING * wanted.abs().max():
                raise UserError(
                    f'"{name}" is a {model.hugging.config.model_type} model, and regard does not read '
                    f"such a one as it was meant to be (logits differ by {apart:.2g}): choose another"
                )
