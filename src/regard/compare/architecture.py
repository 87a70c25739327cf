"""The architectures of presets side by side, read off their configs and the models built from them."""

from regard import presets
from regard.config import AttentionMixer, Table, TransformerBase
from regard.errors import UserError
from regard.evaluation.evaluate import cache_bytes_per_token
from regard.models import Model, build
from regard.text.vocabulary import SPECIAL_TOKENS

Architecture = dict[str, str | int]


def describe_architecture(name: str) -> Architecture:
    """One row of the table of models: a Transformer preset's parts, and what they cost."""
    config = presets.load(name)
    table = config.model
    if not isinstance(table, TransformerBase):
        raise UserError(
            f'the model of "{name}" is {table.kind}, and only Transformers have these parts: name presets '
            "whose model is transformer or decoder-only"
        )
    has_heads = isinstance(table.mixer, AttentionMixer)
    vocab = len(SPECIAL_TOKENS)  # the smallest: what is reported depends on no token
    model = build(table, vocab, vocab, config.tokenizer.joint).eval()
    return {
        "preset": name,
        "position": describe_table(table.position),
        "attention": describe_table(table.attention if has_heads else table.mixer),
        "norm": f"{table.norm}, {table.norm_position}",
        "activation": table.activation,
        "cache bytes per token": cache_bytes_per_token(model),
        "parameters": count_parameters(model),
    }


def describe_table(table: Table) -> str:
    """The kind of a table, and the settings that its preset makes."""
    options = {
        name: value for name, value in table.options.items() if name in table.model_fields_set
    }
    settings = ", ".join(f"{name} = {value}" for name, value in options.items())
    kind = table.model_dump()["kind"]
    return f"{kind} ({settings})" if settings else kind


def count_parameters(model: Model) -> int:
    """Without those that have one row per token: embeddings and output projection."""
    by_token = {id(tensor) for tensors in model.vocab_parameters().values() for tensor in tensors}
    return sum(p.numel() for p in model.parameters() if id(p) not in by_token)
