"""How much of a pretrained model learns: all of it, all but the first layers, or a little beside it."""

from typing import Any

from torch import nn

from regard import config
from regard.errors import UserError, join_names, suggest
from regard.models.hub import EXTRA, quiet


def tune(hugging: Any, table: config.Full | config.Frozen | config.Lora) -> None:
    """Let of the model's weights only those learn that should."""
    if isinstance(table, config.Frozen):
        freeze(hugging, table.layers)
    elif isinstance(table, config.Lora):
        add_adapters(hugging, table)


def freeze(hugging: Any, layers: int) -> None:
    """Embeddings and the first `layers` of each stack keep their weights."""
    both = hugging.config.is_encoder_decoder
    stacks = [hugging.get_encoder(), hugging.get_decoder()] if both else [hugging.base_model]
    hugging.get_input_embeddings().requires_grad_(False)
    for stack in stacks:
        blocks = next(part for part in stack.children() if isinstance(part, nn.ModuleList))
        if layers > len(blocks):
            raise UserError(
                f"model.tune.layers is {layers}, and the model has {len(blocks)} layers to freeze"
            )
        embeddings = [part for part in stack.children() if isinstance(part, nn.Embedding)]
        for part in [*embeddings, *blocks[:layers]]:
            part.requires_grad_(False)


def add_adapters(hugging: Any, table: config.Lora) -> None:
    """B A beside each matrix; nothing else learns."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise UserError(EXTRA) from None
    check_targets(hugging, table.target_modules)
    wanted = LoraConfig(
        r=table.rank,
        lora_alpha=table.alpha,  # type: ignore[arg-type]
        lora_dropout=table.dropout,
        target_modules=list(table.target_modules) or "all-linear",
    )
    with quiet():
        inject_adapter_in_model(wanted, hugging)


def check_targets(hugging: Any, targets: tuple[str, ...]) -> None:
    """Each is the name of a map, or its end: theirs is content if one of several is. The output map
    is none of them: it is applied as it is.
    """
    head = hugging.get_output_embeddings()
    maps = [name for name, part in hugging.named_modules() if is_map(part) and part is not head]
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name in maps):
            ends = sorted({name.rpartition(".")[2] for name in maps})
            raise UserError(
                f'model.tune.target_modules: there is no map "{target}".{suggest(target, ends)} This model '
                f"has {join_names(ends)}"
            )


def is_map(part: nn.Module) -> bool:
    return isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"
