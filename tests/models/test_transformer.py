"""The Transformer against PyTorch's layers, and properties of its parts."""

import math

import pytest
import torch
from torch import nn

from regard.attention import POSITIONS
from regard.models.interface import Memory
from regard.models.kv_cache import KVCache
from regard.models.transformer_base import position_ids_of

D_MODEL, HEADS, D_FF = 14, 2, 31


@pytest.fixture(params=["pre", "post"])
def norm_position(request) -> str:
    return request.param


@pytest.fixture(params=["relu", "gelu"])
def activation(request) -> str:
    return request.param


@pytest.fixture
def options(norm_position, activation) -> dict:
    """The same options for PyTorch's layers."""
    return OPTIONS | {"norm_first": norm_position == "pre", "activation": activation}


@pytest.fixture
def plain(make, norm_position, activation):
    """A Transformer that PyTorch's layers can express: head_dim = d_model / heads, no positions."""
    table = {
        "kind": "transformer",
        "d_model": D_MODEL,
        "d_ff": D_FF,
        "activation": activation,
        "norm_position": norm_position,
        "attention": {"heads": HEADS},
        "position": "none",
    }
    model = make(table)
    with torch.no_grad():
        for parameter in model.parameters():  # so that norms are not the identity
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def copy_attention(reference: nn.MultiheadAttention, attention) -> None:
    reference.in_proj_weight.copy_(torch.cat([attention.query.weight, attention.key_value.weight]))
    reference.out_proj.weight.copy_(attention.output.weight)
    reference.in_proj_bias.zero_()  # our projections have no bias
    reference.out_proj.bias.zero_()


def copy_feed_forward(reference, feed_forward) -> None:
    reference.linear1.load_state_dict(feed_forward.up.state_dict())
    reference.linear2.load_state_dict(feed_forward.down.state_dict())


SIZES = {"d_model": D_MODEL, "nhead": HEADS, "dim_feedforward": D_FF, "dropout": 0.0}
OPTIONS = {"batch_first": True, "dtype": torch.float64}


def torch_encoder_layer(block, options) -> nn.TransformerEncoderLayer:
    reference = nn.TransformerEncoderLayer(**SIZES, **options)
    copy_attention(reference.self_attn, block.mixer.attention)
    copy_feed_forward(reference, block.feed_forward)
    reference.norm1.load_state_dict(block.mixer_norm.state_dict())
    reference.norm2.load_state_dict(block.feed_forward_norm.state_dict())
    return reference  # in training mode, without dropout: eval mode takes another, fused path


def torch_decoder_layer(block, options) -> nn.TransformerDecoderLayer:
    reference = nn.TransformerDecoderLayer(**SIZES, **options)
    copy_attention(reference.self_attn, block.mixer.attention)
    copy_attention(reference.multihead_attn, block.cross_attention)
    copy_feed_forward(reference, block.feed_forward)
    reference.norm1.load_state_dict(block.mixer_norm.state_dict())
    reference.norm2.load_state_dict(block.cross_norm.state_dict())
    reference.norm3.load_state_dict(block.feed_forward_norm.state_dict())
    return reference


@torch.no_grad()
def test_model_equals_pytorchs_layers(plain, options, example):
    x = plain.source_embedding(example.source) * math.sqrt(D_MODEL)
    for block in plain.encoder:
        x = torch_encoder_layer(block, options)(x, src_key_padding_mask=~example.mask)
    expected_states = plain.encoder_norm(x)
    mask = example.mask[..., None]
    states = plain.encode(example.source, example.mask).states
    torch.testing.assert_close(states * mask, expected_states * mask)
    y = plain.target_embedding(example.target) * math.sqrt(D_MODEL)
    future = torch.ones(17, 17).triu(1).bool()
    for block in plain.decoder:
        y = torch_decoder_layer(block, options)(
            y, expected_states, tgt_mask=future, memory_key_padding_mask=~example.mask
        )
    expected = plain.decoder_norm(y) @ plain.target_embedding.weight.T
    torch.testing.assert_close(plain(example.source, example.mask, example.target), expected)


VARIANTS = [
    *(f"position-{kind}" for kind in (*POSITIONS, "interleaved", "relative-query")),
    "state-space",
    "llama",
]
NAMES = [f"{family}-{name}" for family in ("transformer", "decoder-only") for name in VARIANTS]


@torch.no_grad()
@pytest.mark.parametrize(
    "name", [*NAMES, "decoder-only-location", "transformer-window", "transformer-latent"]
)
def test_left_padding_does_not_change_the_output(name, make, example):
    model = make(name)
    left_padded = [
        torch.cat([row[n:], row[:n]])
        for row, n in zip(example.source, example.lengths, strict=True)
    ]
    mask = torch.stack([torch.arange(11) >= 11 - n for n in example.lengths])
    logits = model(torch.stack(left_padded), mask, example.target)
    expected = model(example.source, example.mask, example.target)
    torch.testing.assert_close(logits, expected)


@torch.no_grad()
def test_encoder_without_positions_is_permutation_equivariant(make, example):
    order = torch.tensor([3, 0, 10, 7, 1, 2, 9, 4, 5, 8, 6])
    for kind in (*POSITIONS, "interleaved", "relative-query"):
        model = make(f"transformer-position-{kind}")
        full = torch.ones(1, 11, dtype=torch.bool)
        permuted = model.encode(example.source[:1, order], full).states
        states = model.encode(example.source[:1], full).states
        assert torch.allclose(permuted, states[:, order]) == (kind == "none")


@torch.no_grad()
@pytest.mark.parametrize("name", ["window", "window-grouped-alibi", "window-location"])
def test_window_applies_to_self_attention_only(name, make, example):
    all_weights = make(f"transformer-{name}").attention_weights(
        example.source, example.mask, example.target
    )
    for mechanism, length in (("encoder", 11), ("decoder", 17)):
        far = (torch.arange(length)[:, None] - torch.arange(length)).abs() >= 3
        weights = all_weights[mechanism][0]  # the row without padding
        assert (weights[..., far] == 0).all()
        attended = ~far if mechanism == "encoder" else (~far).tril()
        assert (weights[..., attended] > 0).all()
    assert (all_weights["cross"][0] > 0).all()


@pytest.mark.parametrize(
    "name",
    [
        "position-alibi",
        "grouped-relative",
        "window",
        "attention-dropout",
        "latent",
        "latent-narrow",
    ],
)
def test_autocast_to_bfloat16_is_close_and_can_be_trained(name, make, example):
    model = make(f"transformer-{name}").float()
    inputs = (example.source, example.mask, example.target)
    expected = model(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(*inputs)
        weights = model.attention_weights(*inputs)
        model.train()(*inputs).float().square().mean().backward()
    assert (logits - expected).norm() / expected.norm() < 0.02
    assert all(w.isfinite().all() for w in weights.values())
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "rope_dims"),
    [("latent", [2, 2]), ("latent-interleaved", [2, 0]), ("latent-position-sinusoidal", [0, 0])],
)
def test_latent_heads_have_a_rotary_part_in_rotary_layers(name, rope_dims, make):
    model = make(f"transformer-{name}")
    for blocks in (model.encoder, model.decoder):
        cache_dims = [block.mixer.attention.cache_dims for block in blocks]
        assert cache_dims == [(rope_dim, 7) for rope_dim in rope_dims]
    assert all(block.cross_attention.cache_dims == (0, 7) for block in model.decoder)


def test_position_ids_count_the_real_tokens():
    mask = torch.tensor([[True, True, False], [False, True, True], [True, True, True]])
    assert position_ids_of(mask).tolist() == [[0, 1, 1], [0, 0, 1], [0, 1, 2]]


def test_kv_cache_returns_all_keys_and_values_as_it_grows():
    torch.manual_seed(1)
    keys, values = torch.randn(2, 2, 3, 41, 5)
    cache = KVCache()
    sizes, start = [1, 1, 3, 11, 1, 7, 13, 1, 3], 0
    for size in sizes:
        new = slice(start, start + size)
        start += size
        cached_keys, cached_values = cache.append(keys[:, :, new], values[:, :, new])
        assert torch.equal(cached_keys, keys[:, :, :start])
        assert torch.equal(cached_values, values[:, :, :start])
    assert start == cache.length == 41


CACHED = {  # elements per token and layer: (self-attention, cross-attention)
    "transformer-position-rotary": (2 * 3 * 4, 2 * 3 * 4),
    "transformer-grouped": (2 * 2 * 4, 2 * 2 * 4),
    "transformer-multi-query": (2 * 4, 2 * 4),
    "transformer-latent": (7 + 2, 7),
    "transformer-latent-position-sinusoidal": (7, 7),
}


@torch.no_grad()
@pytest.mark.parametrize("name", CACHED)
def test_cache_size_depends_on_the_kind_of_heads(name, make, example):
    model = make(name)
    state = model.init_state(model.encode(example.source, example.mask))
    model._decode_target(example.target, state, need_weights=False)
    state = state.select(torch.tensor([2, 0]))
    for cache, source in zip(state.caches, state.source_keys_values, strict=True):
        both = (cache.keys, cache.values), source
        sizes = [sum(tensor.nbytes for tensor in keys_values) for keys_values in both]
        lengths = (17, 11)  # of 2 sentences, in float64
        assert sizes == [
            2 * 8 * n * length for n, length in zip(CACHED[name], lengths, strict=True)
        ]


def test_stepping_continues_after_a_prefix_read_at_once(make, example):
    model = make("transformer-position-rotary")
    with torch.no_grad():
        expected = model(example.source, example.mask, example.target)
        state = model.init_state(model.encode(example.source, example.mask))
        model._decode_target(example.target[:, :5], state, need_weights=False)
        for t in range(5, 17):
            logits, state = model.step(example.target[:, t], state)
            torch.testing.assert_close(logits, expected[:, t])


def test_tied_output_projection_and_joint_vocabulary(make):
    table = {"kind": "transformer", "d_model": 12}
    separate, joint = make(table), make(table, joint=True)
    assert separate.source_embedding.weight.shape == (23, 12)
    assert separate.target_embedding.weight.shape == (19, 12)
    assert joint.source_embedding is joint.target_embedding
    assert separate.parameter_count - joint.parameter_count == 23 * 12
    features = torch.randn(3, 12, dtype=torch.float64)
    torch.testing.assert_close(
        separate.project(features), features @ separate.target_embedding.weight.T
    )


def test_record_copy_shares_no_memory_and_select_applies_to_every_tensor():
    memory = Memory(torch.randn(3, 5, 7), torch.ones(3, 5, dtype=torch.bool))
    copy = memory.copy()
    memory.states.zero_()
    assert (copy.states != 0).all()
    selected = copy.select(torch.tensor([2, 2, 0, 1]))
    assert torch.equal(selected.states[1], copy.states[2])
    assert selected.mask.shape == (4, 5)
