"""How much of a pretrained model learns: all of it, all but the first layers, or a little beside it."""

from typing import Any

from torch import nn

from regard import config
from regard.errors import UserError
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
    wanted = LoraConfig(
        r=table.rank,
        lora_alpha=table.alpha,  # type: ignore[arg-type]
        lora_dropout=table.dropout,
        target_modules=list(table.targets) or "all-linear",
    )
    try:
        with quiet():
            inject_adapter_in_model(wanted, hugging)
    except ValueError as error:
        linear = {name.rpartition(".")[2] for name, part in hugging.named_modules() if is_map(part)}
        raise UserError(
            f"model.tune.targets: no such maps ({str(error).splitlines()[0]}). This model has "
            + ", ".join(sorted(linear))
        ) from None


def is_map(part: nn.Module) -> bool:
    return isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"
