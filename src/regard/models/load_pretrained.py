"""Load a Hugging Face checkpoint as a model behind our interface, its vocabulary in our order.

A run folder keeps all that rebuilds the model without the checkpoint, in architecture.json. A parity check
compares the logits of the model with those of the checkpoint.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import config, documents, files, schemas
from regard.errors import UserError, is_rust_error
from regard.models import weights
from regard.models.hub import (
    auto_class,
    check_config,
    explain_unloadable,
    first_line,
    import_transformers,
    load_checkpoint,
    quiet,
)
from regard.models.languages import check_none_given, find_template
from regard.models.pretrained import (
    SUPPRESSED_LOGIT,
    Pretrained,
    PretrainedDecoder,
    PretrainedEncoderDecoder,
)
from regard.models.tuning import tune
from regard.text.batch import pad
from regard.text.pretrained import PretrainedTokenizer
from regard.text.tokenizer import TokenizerPair
from regard.text.vocabulary import BOS, EOS, PAD, SPECIAL_TOKENS, UNK

FILE = "architecture.json"
MIN_TEXT_LENGTH = 8  # tokens; a model whose context allows fewer is refused
TOLERANCE = 1e-3  # of the largest logit: two float32 computations of it may differ by this much


@dataclass(frozen=True)
class Architecture:
    """Everything but the weights."""

    hf_config: dict[str, Any]
    """Hugging Face's config."""
    logit_scale: float
    """Factor on the features before the output projection."""
    suppressed_ids: list[int]
    """Ids of ours that the checkpoint has no token for, or never generates."""
    prompt_ids: list[int] = field(default_factory=list)
    """What the decoder reads before BOS (multilingual checkpoints)."""
    pad_shift: int = 0
    """The checkpoint's padding id - ours: where positions are counted from it, tables are shifted."""
    base_checksum: str | None = None
    """SHA-256 of the checkpoint's weights, if the run folder holds only an adapter of them."""

    def build(self) -> Pretrained:
        """The model, its weights not yet loaded."""
        check_config(FILE, self.hf_config)
        hf_config = config_from_dict(self.hf_config)
        with quiet():
            hf_model = auto_class(hf_config).from_config(hf_config, trust_remote_code=False).float()
        shift_positions(hf_model, self.pad_shift)
        if hf_config.is_encoder_decoder:
            options = (self.logit_scale, self.suppressed_ids, self.prompt_ids)
            return PretrainedEncoderDecoder(hf_model, *options)
        return PretrainedDecoder(hf_model, self.logit_scale, self.suppressed_ids)

    @classmethod
    def from_model(cls, model: Pretrained) -> "Architecture":
        """The architecture of a model, which may have been trained since it was built."""
        suppressed_ids = model.suppression.nonzero()[:, 0].tolist()
        return cls(portable_config(model.hf_model.config), model.logit_scale, suppressed_ids)

    def save(self, folder: Path) -> None:
        files.write(folder / FILE, documents.dumps(asdict(self), indent=1, ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> "Architecture":
        return cls(**documents.read(folder / FILE, schemas.Architecture))


def config_from_dict(record: dict[str, Any]) -> Any:
    classes = import_transformers().models.auto.configuration_auto.CONFIG_MAPPING
    if record.get("model_type") not in classes:
        raise UserError(
            f'this version of transformers has no model type "{record.get("model_type")}": update it'
        )
    return classes[record["model_type"]].from_dict(record)


@dataclass(frozen=True)
class PretrainedCheckpoint:
    """A checkpoint as a run starts from it."""

    tokenizers: TokenizerPair
    model: Pretrained
    architecture: Architecture

    def save(self, folder: Path) -> None:
        """Write to `folder` everything but the weights."""
        self.architecture.save(folder)
        self.tokenizers.save(folder / "tokenizer.json")


def load_pretrained(
    table: config.Pretrained, text: config.PretrainedTokenizer
) -> PretrainedCheckpoint:
    """The model that a [model] table names, with its weights and its tokenizers."""
    try:
        return convert_checkpoint(*load_checkpoint(table.name), table, text)
    except UserError:
        raise
    except BaseException as error:  # files that do not fit each other can raise any
        if not is_rust_error(error):
            raise
        raise UserError(explain_unloadable(table.name, error)) from error


def convert_checkpoint(
    original: Any, hf_tokenizer: Any, table: config.Pretrained, text: config.PretrainedTokenizer
) -> PretrainedCheckpoint:
    """Hugging Face's model and tokenizer as ours."""
    tokenizers, bos_row, prompt_rows = convert_tokenizer(original, hf_tokenizer, table, text)
    max_tokens = max_text_length(original.config, text, len(prompt_rows))
    tokenizers = replace(tokenizers, max_tokens=max_tokens)
    order = tokenizers.target.row_order(bos_row)  # type: ignore[attr-defined]
    prompt_ids = [len(order) - 1 - order[::-1].index(row) for row in prompt_rows]
    parity = ParityCheck(original, order, prompt_rows)
    pad_shift = (original.config.pad_token_id or 0) - PAD
    permute_vocabulary(original, order)
    suppressed_ids = [PAD, BOS, *([UNK] if order[UNK] == order[EOS] else [])]
    architecture = Architecture(
        portable_config(original.config), 1.0, suppressed_ids, prompt_ids, pad_shift
    )
    model = architecture.build().eval()
    model.hf_model.load_state_dict(original.state_dict())
    if model.bias is not None:
        model.bias.data.copy_(original.final_logits_bias[0])
    model.logit_scale = parity.fit_scale(model)
    parity.check(model, table.name)
    architecture = replace(architecture, logit_scale=model.logit_scale)
    if is_adapter_only(table):
        base = weights.checksum(weights.state_tensors(model))
        architecture = replace(architecture, base_checksum=base)
    tune(model.hf_model, table.tune)
    select_saved(model, table)
    return PretrainedCheckpoint(tokenizers, model, architecture)


def is_adapter_only(table: config.Pretrained) -> bool:
    return isinstance(table.tune, config.Lora) and table.tune.adapter_only


def select_saved(model: Pretrained, table: config.Pretrained) -> None:
    """Of an adapter-only run, save the trained parameters only."""
    if is_adapter_only(table):
        trained = (name for name, p in model.named_parameters() if p.requires_grad)
        model.saved_names = frozenset(trained)


def load_base(table: config.Pretrained, folder: Path) -> Pretrained:
    """The model of an adapter-only run: the checkpoint's weights, the adapter's not yet loaded."""
    saved = Architecture.load(folder)
    try:
        checkpoint = load_pretrained(table, config.PretrainedTokenizer())
    except UserError as error:
        raise UserError(
            f"{folder} holds only an adapter of {table.name}, which cannot be loaded: {error}"
        ) from None
    if checkpoint.architecture.base_checksum != saved.base_checksum:
        raise UserError(
            f"{folder} holds only an adapter of {table.name}, whose weights have changed since: restore "
            "the checkpoint that the adapter was trained on"
        )
    return checkpoint.model


def rebuild(table: config.Pretrained, folder: Path) -> Pretrained:
    """The model of a run folder, its weights not yet loaded."""
    if is_adapter_only(table):
        return load_base(table, folder)
    try:
        model = Architecture.load(folder).build()
    except UserError:
        raise
    except Exception as error:  # a damaged config of Hugging Face's can raise any
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise documents.damaged(folder / FILE, reason, schemas.Architecture) from None
    tune(model.hf_model, table.tune)
    return model


def shift_positions(hf_model: Any, shift: int) -> None:
    """Keep the position of each token where it is counted from the padding id, which is another one here.

    M2M-100 and NLLB look the n-th token up in row padding id + n of a table of sinusoids.
    """
    if not shift or hf_model.config.model_type not in ("m2m_100", "nllb-moe"):
        return
    for module in hf_model.modules():
        if hasattr(module, "make_weights"):
            build_table = module.get_embedding

            def shifted(
                rows: int, dim: int, padding_id: int, build_table: Any = build_table
            ) -> Tensor:
                table = build_table(rows + shift, dim, None)[shift:]
                table[padding_id] = 0
                return table

            module.get_embedding = shifted
            module.make_weights(len(module.weights), module.embedding_dim, module.padding_idx)


def convert_tokenizer(
    original: Any, hf_tokenizer: Any, table: config.Pretrained, text: config.PretrainedTokenizer
) -> tuple[TokenizerPair, int, tuple[int, ...]]:
    """The tokenizers of both sides; the embedding rows that the checkpoint reads as BOS, and before it."""
    rows = original.get_input_embeddings().weight.shape[0]
    eos, unk = hf_tokenizer.eos_token_id, hf_tokenizer.unk_token_id
    if eos >= rows:
        raise UserError(
            f'the end-of-sequence token of "{table.name}" has no row in its embedding matrix'
        )
    has_unk = unk is not None and unk != eos and unk < rows
    backend = hf_tokenizer.backend_tokenizer
    make_tokenizer = partial(
        PretrainedTokenizer,
        backend.to_str(),
        rows,
        eos,
        unk if has_unk else None,
        text.lowercase,
    )
    if original.config.is_encoder_decoder:
        parts = find_template(original, hf_tokenizer, table)
        source = make_tokenizer(parts.head, table.prefix, parts.tail)
        target = make_tokenizer(parts.target_head)
        pair = TokenizerPair(source, target, text.max_tokens, source_eos=not parts.tail)
        return pair, parts.bos_row, parts.prompt_rows
    check_none_given(table.name, {"source": table.source_language, "target": table.target_language})
    added = hf_tokenizer("").input_ids
    head = [backend.id_to_token(i) for i in (added[:-1] if added[-1:] == [eos] else added)]
    # A space at the end of the separator belongs to the first word of the target.
    separator = table.separator.rstrip(" ") or table.separator
    space = table.separator.removeprefix(separator)
    *tail, last = make_tokenizer().tokenize_plain(separator)
    sides = make_tokenizer(head, table.prefix, tail), make_tokenizer((), space)
    return TokenizerPair(*sides, text.max_tokens), backend.token_to_id(last), ()


def max_text_length(
    hf_config: Any, text: config.PretrainedTokenizer, prompt_length: int = 0
) -> int:
    """The limit on a text's tokens: tokenizer.max_tokens, or if that is unset, what the context allows."""
    context = getattr(hf_config.get_text_config(), "max_position_embeddings", None)
    context = None if context is None else context - prompt_length
    texts, formula = 1, "tokenizer.max_tokens + 1"
    if not hf_config.is_encoder_decoder:
        texts, formula = 2, "2 (tokenizer.max_tokens + 1), for source and target"
    longest = texts * (text.max_tokens + 1)
    if context is None or longest <= context:
        return text.max_tokens
    if text.changed("max_tokens"):
        raise UserError(
            f"the context of this model is {context} tokens, and it may need {longest} ({formula}): lower "
            "tokenizer.max_tokens"
        )
    if context // texts - 1 < MIN_TEXT_LENGTH:
        raise UserError(
            f"the context of this model is {context} tokens, too short for a sentence: choose another"
        )
    return context // texts - 1


@torch.no_grad()
def permute_vocabulary(original: Any, order: list[int]) -> None:
    """Row i of every tensor with a row for each token becomes the former row order[i]."""
    with quiet():
        original.resize_token_embeddings(len(order), mean_resizing=False)
    head = original.get_output_embeddings()
    bias = getattr(original, "final_logits_bias", None)
    tensors = [original.get_input_embeddings().weight, head.weight, head.bias]
    tensors.append(None if bias is None else bias[0])
    for tensor in {id(tensor): tensor for tensor in tensors if tensor is not None}.values():
        tensor.copy_(tensor[order])
    ids = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK, "decoder_start": BOS}
    for hf_config in (original.config, original.config.get_text_config()):
        for name, token_id in ids.items():
            if getattr(hf_config, f"{name}_token_id", None) is not None:
                setattr(hf_config, f"{name}_token_id", token_id)


def portable_config(hf_config: Any) -> dict[str, Any]:
    """A config as plain data, without what names code to run or depends on where it came from."""
    excluded = {"auto_map", "_name_or_path", "transformers_version", "torch_dtype", "dtype"}
    excluded |= {"quantization_config"}  # the weights are float32 by now
    return {name: value for name, value in hf_config.to_dict().items() if name not in excluded}


class ParityCheck:
    """The checkpoint's logits on a few tokens, in its original vocabulary, to compare the model with."""

    LENGTHS = ((7, 5), (4, 3))  # of source and target

    @torch.no_grad()
    def __init__(self, original: Any, order: list[int], prompt_rows: Sequence[int] = ()) -> None:
        # No padding: some checkpoints count positions without it.
        padding = original.config.pad_token_id
        plain = [i for i in range(len(SPECIAL_TOKENS), len(order)) if order[i] != padding]
        ids = [plain[int(i)] for i in torch.linspace(0, len(plain) - 1, 24)]
        rows, prompt = torch.tensor(order), torch.tensor([prompt_rows], dtype=torch.long)
        self.examples = []
        for source_length, target_length in self.LENGTHS:
            source = torch.tensor([[*ids[:source_length], EOS]])
            target = torch.tensor([[BOS, *ids[-target_length:]]])
            if original.config.is_encoder_decoder:
                target_rows = torch.cat([prompt, rows[target]], dim=1)
                out = original(input_ids=rows[source], decoder_input_ids=target_rows)
                expected = out.logits[:, len(prompt_rows) :]
            else:
                sequence = torch.cat([source[:, :-1], target], dim=1)
                expected = original(input_ids=rows[sequence]).logits[:, source_length:]
            self.examples.append((source[0].tolist(), target, expected[..., rows]))

    def fit_scale(self, model: Pretrained) -> float:
        """The c of expected = c W f + b by least squares, for a model whose logit_scale is 1."""
        bias = model.output_projection[1]
        allowed = bias > SUPPRESSED_LOGIT / 2
        pairs = [(logits - bias, expected - bias) for logits, expected in self.logits(model)]
        raw, expected = (
            torch.cat([x[..., allowed].flatten() for x in side]).double()
            for side in zip(*pairs, strict=True)
        )
        scale = float((raw * expected).sum() / (raw * raw).sum())
        return 1.0 if abs(scale - 1) < TOLERANCE else scale

    @torch.no_grad()
    def logits(self, model: Pretrained) -> list[tuple[Tensor, Tensor]]:
        """(the model's logits, the checkpoint's) of each example, the sources in one padded batch."""
        source, mask = pad([source for source, _, _ in self.examples])
        memory = model.encode(source, mask)
        pairs = []
        for row, (_, target, expected) in enumerate(self.examples):
            state, steps = model.init_state(memory.select(torch.tensor([row]))), []
            for token in target[0]:
                logits, state = model.step(token[None], state)
                steps.append(logits)
            pairs.append((torch.stack(steps, dim=1), expected))
        return pairs

    def check(self, model: Pretrained, name: str) -> None:
        """Raise an error unless the model, padded and step by step, has the logits of the checkpoint."""
        allowed = model.output_projection[1] > SUPPRESSED_LOGIT / 2
        for logits, expected in self.logits(model):
            difference = (logits - expected)[..., allowed].abs().max()
            if not difference <= TOLERANCE * expected.abs().max():
                raise UserError(
                    f'"{name}" is a {model.hf_model.config.model_type} model, which regard does not '
                    f"reproduce exactly (logits differ by {difference:.2g}): choose another"
                )
