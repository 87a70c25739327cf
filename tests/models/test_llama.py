"""A LLaMA-style decoder-only model against Hugging Face's, with the same weights."""

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")

D_MODEL, HEADS, D_FF = 24, 3, 31


def permute_rotary(weight: Tensor) -> Tensor:
    """Rows of W_q or W_k for a rotary that pairs i with i + d/2, where ours pairs 2i with 2i + 1."""
    heads = weight.unflatten(0, (HEADS, -1, 2))  # [heads pairs 2 d_model]
    return heads.transpose(1, 2).flatten(0, 2)


def build_llama(model):
    """A LLaMA with the model's weights in its layers and its final norm."""
    sizes = {"hidden_size": D_MODEL, "intermediate_size": D_FF, "num_hidden_layers": 2}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    # Its norms always compute in float32, so the comparison does too.
    config = transformers.LlamaConfig(
        **sizes, **heads, vocab_size=19, rms_norm_eps=1e-6, attn_implementation="eager"
    )
    llama = transformers.LlamaModel(config).eval()
    for layer, block in zip(llama.layers, model.decoder, strict=True):
        attention = block.mixer.attention
        key, value = attention.key_value.weight.chunk(2)
        layer.self_attn.q_proj.weight.copy_(permute_rotary(attention.query.weight))
        layer.self_attn.k_proj.weight.copy_(permute_rotary(key))
        layer.self_attn.v_proj.weight.copy_(value)
        layer.self_attn.o_proj.weight.copy_(attention.output.weight)
        layer.mlp.gate_proj.weight.copy_(block.feed_forward.gate.weight)
        layer.mlp.up_proj.weight.copy_(block.feed_forward.up.weight)
        layer.mlp.down_proj.weight.copy_(block.feed_forward.down.weight)
        layer.input_layernorm.weight.copy_(block.mixer_norm.weight)
        layer.post_attention_layernorm.weight.copy_(block.feed_forward_norm.weight)
    llama.norm.weight.copy_(model.norm.weight)
    return llama


@torch.no_grad()
def test_llama_equals_hugging_faces(make, example):
    model = make(
        {
            "kind": "decoder-only",
            "d_model": D_MODEL,
            "d_ff": D_FF,
            "activation": "swiglu",
            "norm": "rms",
            "position": "rotary",
            "attention": {"heads": HEADS},
        }
    ).float()
    for parameter in model.parameters():  # so that norms are not the identity
        parameter += 0.1 * torch.randn_like(parameter)
    llama = build_llama(model)
    for row in range(len(example.lengths)):
        source, mask, target = example.unpadded(row)
        embeddings = model.source_embedding(source), model.target_embedding(target)
        x = torch.cat(embeddings, dim=1) * model.scale
        expected = llama(inputs_embeds=x).last_hidden_state
        features = model.features(model.encode(source, mask), target)
        torch.testing.assert_close(features, expected[:, source.shape[1] :], atol=2e-5, rtol=1e-4)
