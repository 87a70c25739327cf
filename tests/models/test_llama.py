"""The LLaMA form against Hugging Face's layer, with the same weights."""

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")

WIDTH, HEADS, FEED = 24, 3, 31


def halves(weight: Tensor) -> Tensor:
    """Rows of W_q or W_k for a rotary that pairs i with i + d/2, where ours pairs neighbours."""
    heads = weight.unflatten(0, (HEADS, -1, 2))  # [heads pairs 2 width]
    return heads.transpose(1, 2).flatten(0, 2)


def theirs(model):
    """A LLaMA with the model's weights in its layers and its last norm."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": FEED, "num_hidden_layers": 2}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    # Its norms compute in float32 whatever they are given: so does all of this comparison.
    made = transformers.LlamaConfig(
        **sizes, **heads, vocab_size=19, rms_norm_eps=1e-6, attn_implementation="eager"
    )
    llama = transformers.LlamaModel(made).eval()
    for layer, block in zip(llama.layers, model.decoder, strict=True):
        ours = block.mixer.attention
        key, value = ours.key_value.weight.chunk(2)
        layer.self_attn.q_proj.weight.copy_(halves(ours.query.weight))
        layer.self_attn.k_proj.weight.copy_(halves(key))
        layer.self_attn.v_proj.weight.copy_(value)
        layer.self_attn.o_proj.weight.copy_(ours.output.weight)
        layer.mlp.gate_proj.weight.copy_(block.feed_forward.gate.weight)
        layer.mlp.up_proj.weight.copy_(block.feed_forward.up.weight)
        layer.mlp.down_proj.weight.copy_(block.feed_forward.down.weight)
        layer.input_layernorm.weight.copy_(block.mixer_norm.weight)
        layer.post_attention_layernorm.weight.copy_(block.feed_forward_norm.weight)
    llama.norm.weight.copy_(model.norm.weight)
    return llama


@torch.no_grad()
def test_the_llama_form_is_hugging_faces(make, example):
    model = make(
        {
            "kind": "decoder-only",
            "d_model": WIDTH,
            "d_ff": FEED,
            "activation": "swiglu",
            "norm": "rms",
            "position": "rotary",
            "attention": {"heads": HEADS},
        }
    ).float()
    for parameter in model.parameters():  # norms too: away from ones
        parameter += 0.1 * torch.randn_like(parameter)
    llama = theirs(model)
    for row in range(len(example.lengths)):
        source, mask, target = example.alone(row)
        both = model.source_embedding(source), model.target_embedding(target)
        x = torch.cat(both, dim=1) * model.scale
        wanted = llama(inputs_embeds=x).last_hidden_state
        found = model.features(model.encode(source, mask), target)
        torch.testing.assert_close(found, wanted[:, source.shape[1] :], atol=2e-5, rtol=1e-4)
