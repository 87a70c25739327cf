"""Select which weights of a pretrained model are trained: all, all but the first layers, or LoRA adapters."""

from typing import Any

from torch import nn

from regard import config
from regard.errors import UserError, join_names, suggest
from regard.models.hub import EXTRA, quiet


def tune(hf_model: Any, table: config.Full | config.Frozen | config.Lora) -> None:
    """Freeze the weights, or add the adapters, that the [model.tune] table asks for."""
    if isinstance(table, config.Frozen):
        freeze(hf_model, table.layers)
    elif isinstance(table, config.Lora):
        add_adapters(hf_model, table)


def freeze(hf_model: Any, layers: int) -> None:
    """Freeze the embeddings and the first `layers` layers of each stack."""
    is_pair = hf_model.config.is_encoder_decoder
    stacks = [hf_model.get_encoder(), hf_model.get_decoder()] if is_pair else [hf_model.base_model]
    hf_model.get_input_embeddings().requires_grad_(False)
    for stack in stacks:
        blocks = next(module for module in stack.children() if isinstance(module, nn.ModuleList))
        if layers > len(blocks):
            raise UserError(
                f"model.tune.layers is {layers}, but the model has only {len(blocks)} layers to freeze"
            )
        embeddings = [module for module in stack.children() if isinstance(module, nn.Embedding)]
        for module in [*embeddings, *blocks[:layers]]:
            module.requires_grad_(False)


def add_adapters(hf_model: Any, table: config.Lora) -> None:
    """W x + (alpha / rank) B A x in each linear layer (LoRA; Hu et al., 2021); only A and B are trained."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise UserError(EXTRA) from None
    check_targets(hf_model, table.target_modules)
    lora = LoraConfig(
        r=table.rank,
        lora_alpha=table.alpha,  # type: ignore[arg-type]
        lora_dropout=table.dropout,
        target_modules=list(table.target_modules) or "all-linear",
    )
    with quiet():
        inject_adapter_in_model(lora, hf_model)


def check_targets(hf_model: Any, targets: tuple[str, ...]) -> None:
    """Each target must be the name of a linear layer, or end one: peft only checks that one of them is.

    The output projection is excluded: its weight is used directly.
    """
    head = hf_model.get_output_embeddings()
    names = [
        name
        for name, module in hf_model.named_modules()
        if is_linear(module) and module is not head
    ]
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name in names):
            endings = sorted({name.rpartition(".")[2] for name in names})
            raise UserError(
                f'model.tune.target_modules: there is no linear layer "{target}".'
                f"{suggest(target, endings)} This model has {join_names(endings)}"
            )


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
