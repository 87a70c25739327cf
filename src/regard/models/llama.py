"""A decoder-only model of LLaMA's form as Hugging Face stores it, and back, without any rounding.

What differs: the names; W_k and W_v in one matrix; rotary, which turns the neighbours (2i, 2i + 1) of a head
here and the halves (i, i + d/2) there, so that the rows of W_q and W_k are permuted; and the embedding, which
is multiplied by sqrt(d_model) here. There, the product is stored, and the output projection is never tied.
"""

import math
from typing import Any

import torch
from torch import Tensor

from regard import config
from regard.models.layers import RMS_EPS
from regard.text.tokenizer import TokenizerPair
from regard.text.vocabulary import BOS, EOS, PAD

LAYOUT = {"layout": "llama"}  # in the metadata of a file of weights
ROTARY, PAIRED = "mixer.attention.query", "mixer.attention.key_value"
# Our name of a layer's weight, and Hugging Face's: what is the same in both.
SAME = {
    "mixer.attention.output": "self_attn.o_proj",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "mixer_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
}


def find_difference(settings: config.Config, tokenizers: TokenizerPair) -> str | None:
    """Why a model is not of LLaMA's form, as the rest of a sentence; None if it is."""
    table = settings.model
    if not isinstance(table, config.DecoderOnly):
        return f'model.kind is "{table.kind}", not "decoder-only"'
    attention, position = table.attention, table.position
    wanted = {
        "model.mixer": (table.mixer.kind, "attention"),
        "model.attention": (attention.kind, "multi-head"),
        "model.attention.score": (attention.score.kind, "scaled-dot"),
        "model.attention.normaliser": (attention.normaliser.kind, "softmax"),
        "model.attention.window": (attention.window, None),
        "model.attention_mask": (table.attention_mask, "causal"),
        "model.position": (position.kind, "rotary"),
        "model.position.scaling": (getattr(position, "scaling", "none"), "none"),
        "model.norm": (table.norm, "rms"),
        "model.norm_position": (table.norm_position, "pre"),
        "model.activation": (table.activation, "swiglu"),
    }
    for name, (given, llama) in wanted.items():
        if given != llama:
            expected = "none" if llama is None else f'"{llama}"'
            return f'{name} is "{given}", not {expected}'
    if not tokenizers.joint:
        return "source and target have a vocabulary each (tokenizer.joint = false)"
    return None


def hugging_face_config(table: config.DecoderOnly, tokenizers: TokenizerPair) -> dict[str, Any]:
    """The config.json of the model, which loads in `AutoModelForCausalLM`."""
    heads = table.attention.heads
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": tokenizers.target.vocab_size,
        "hidden_size": table.d_model,
        "intermediate_size": table.d_ff,
        "num_hidden_layers": table.decoder.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": table.attention.kv_heads or heads,
        "head_dim": table.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": RMS_EPS,
        "rope_theta": table.position.base,
        "rope_parameters": {"rope_type": "default", "rope_theta": table.position.base},
        "max_position_embeddings": 2 * (tokenizers.max_tokens + 1),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "dtype": "float32",
    }


def to_hugging_face(tensors: dict[str, Tensor], table: config.DecoderOnly) -> dict[str, Tensor]:
    """Our weights by name as Hugging Face's `LlamaForCausalLM` has them."""
    heads, kv_heads = table.attention.heads, table.attention.kv_heads or table.attention.heads
    embedding = tensors["source_embedding.weight"]
    result = {
        "model.embed_tokens.weight": embedding * math.sqrt(table.d_model),
        "model.norm.weight": tensors["norm.weight"],
        "lm_head.weight": tensors.get("output.weight", embedding),
    }
    for layer in range(table.decoder.layers):
        ours, theirs = f"decoder.{layer}.", f"model.layers.{layer}."
        key, value = tensors[f"{ours}{PAIRED}.weight"].chunk(2)
        query = tensors[f"{ours}{ROTARY}.weight"]
        result[f"{theirs}self_attn.q_proj.weight"] = neighbours_to_halves(query, heads)
        result[f"{theirs}self_attn.k_proj.weight"] = neighbours_to_halves(key, kv_heads)
        result[f"{theirs}self_attn.v_proj.weight"] = value
        for name, hf_name in SAME.items():
            result[f"{theirs}{hf_name}.weight"] = tensors[f"{ours}{name}.weight"]
    return result


def from_hugging_face(
    tensors: dict[str, Tensor], record: dict[str, Any], table: Any
) -> dict[str, Tensor]:
    """The inverse of `to_hugging_face` for a file with that layout in its record; others stay as they are.

    So do tensors that do not match the table: `weights.load_tensors` reports them.
    """
    if record.get("layout") != LAYOUT["layout"]:
        return tensors
    try:
        return invert(tensors, table)
    except (KeyError, AttributeError, RuntimeError):
        return tensors


def invert(tensors: dict[str, Tensor], table: config.DecoderOnly) -> dict[str, Tensor]:
    heads, kv_heads = table.attention.heads, table.attention.kv_heads or table.attention.heads
    embedding = head = tensors["lm_head.weight"]
    if not table.tie_embeddings:
        embedding = divide_exactly(tensors["model.embed_tokens.weight"], math.sqrt(table.d_model))
    result = {"source_embedding.weight": embedding, "norm.weight": tensors["model.norm.weight"]}
    result |= {} if table.tie_embeddings else {"output.weight": head}
    for layer in range(table.decoder.layers):
        ours, theirs = f"decoder.{layer}.", f"model.layers.{layer}."
        query, key, value = (tensors[f"{theirs}self_attn.{name}_proj.weight"] for name in "qkv")
        result[f"{ours}{ROTARY}.weight"] = halves_to_neighbours(query, heads)
        result[f"{ours}{PAIRED}.weight"] = torch.cat([halves_to_neighbours(key, kv_heads), value])
        for name, hf_name in SAME.items():
            result[f"{ours}{name}.weight"] = tensors[f"{theirs}{hf_name}.weight"]
    return result


def neighbours_to_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows 2i and 2i + 1 of each head become rows i and i + d/2."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def halves_to_neighbours(weight: Tensor, heads: int) -> Tensor:
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def divide_exactly(product: Tensor, factor: float) -> Tensor:
    """An x with x * factor equal to `product`, a rounded product of this factor, to the last bit.

    The quotient is at most one unit in the last place from such an x.
    """
    quotient = product / factor
    for direction in (-math.inf, math.inf):
        neighbour = quotient.nextafter(torch.full_like(quotient, direction))
        quotient = torch.where(neighbour * factor == product, neighbour, quotient)
    return quotient
