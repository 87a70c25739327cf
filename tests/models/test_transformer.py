"""The Transformer against PyTorch's own layers, and what its parts promise."""

import math

import pytest
import torch
from torch import nn

from regard.attention import POSITIONS
from regard.models.interface import Memory
from regard.models.kv_cache import KVCache
from regard.models.transformer_base import position_ids_of

WIDTH, HEADS, FEED = 14, 2, 31


@pytest.fixture(params=["before", "after"])
def norm_position(request) -> str:
    return request.param


@pytest.fixture(params=["relu", "gelu"])
def activation(request) -> str:
    return request.param


@pytest.fixture
def form(norm_position, activation) -> dict:
    """The same choices, as PyTorch calls them."""
    return FORM | {"norm_first": norm_position == "before", "activation": activation}


@pytest.fixture
def plain(make, norm_position, activation):
    """A Transformer of the shape PyTorch's layers allow: heads that share the width, no positions."""
    table = {
        "kind": "transformer",
        "d_model": WIDTH,
        "d_ff": FEED,
        "activation": activation,
        "norm_position": norm_position,
        "attention": {"heads": HEADS},
        "position": "none",
    }
    model = make(table)
    with torch.no_grad():
        for parameter in model.parameters():  # norms too: away from ones and zeros
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def copy_attention(theirs: nn.MultiheadAttention, ours) -> None:
    theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key_value.weight]))
    theirs.out_proj.weight.copy_(ours.output.weight)
    theirs.in_proj_bias.zero_()  # ours have none
    theirs.out_proj.bias.zero_()


def copy_feed(theirs, ours) -> None:
    theirs.linear1.load_state_dict(ours.up.state_dict())
    theirs.linear2.load_state_dict(ours.down.state_dict())


SHAPE = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": FEED, "dropout": 0.0}
FORM = {"batch_first": True, "dtype": torch.float64}


def torchs_encoder_layer(block, form) -> nn.TransformerEncoderLayer:
    theirs = nn.TransformerEncoderLayer(**SHAPE, **form)
    copy_attention(theirs.self_attn, block.mixer.attention)
    copy_feed(theirs, block.feed_forward)
    theirs.norm1.load_state_dict(block.mixer_norm.state_dict())
    theirs.norm2.load_state_dict(block.feed_forward_norm.state_dict())
    return theirs  # in training mode, without dropout: eval would take another, fused path


def torchs_decoder_layer(block, form) -> nn.TransformerDecoderLayer:
    theirs = nn.TransformerDecoderLayer(**SHAPE, **form)
    copy_attention(theirs.self_attn, block.mixer.attention)
    copy_attention(theirs.multihead_attn, block.cross_attention)
    copy_feed(theirs, block.feed_forward)
    theirs.norm1.load_state_dict(block.mixer_norm.state_dict())
    theirs.norm2.load_state_dict(block.cross_norm.state_dict())
    theirs.norm3.load_state_dict(block.feed_forward_norm.state_dict())
    return theirs


@torch.no_grad()
def test_the_whole_model_is_torchs_layers(plain, form, example):
    x = plain.source_embedding(example.source) * math.sqrt(WIDTH)
    for block in plain.encoder:
        x = torchs_encoder_layer(block, form)(x, src_key_padding_mask=~example.mask)
    states = plain.encoder_norm(x)
    real = example.mask[..., None]
    found = plain.encode(example.source, example.mask).states
    torch.testing.assert_close(found * real, states * real)
    y = plain.target_embedding(example.target) * math.sqrt(WIDTH)
    future = torch.ones(17, 17).triu(1).bool()
    for block in plain.decoder:
        y = torchs_decoder_layer(block, form)(
            y, states, tgt_mask=future, memory_key_padding_mask=~example.mask
        )
    logits = plain.decoder_norm(y) @ plain.target_embedding.weight.T
    torch.testing.assert_close(plain(example.source, example.mask, example.target), logits)


LEFT = [*(f"at-{kind}" for kind in (*POSITIONS, "interleaved", "relative-query")), "space", "llama"]
NAMES = [f"{family}-{name}" for family in ("transformer", "decoder-only") for name in LEFT]


@torch.no_grad()
@pytest.mark.parametrize(
    "name", [*NAMES, "decoder-only-location", "transformer-window", "transformer-latent"]
)
def test_padding_on_the_left_changes_nothing_either(name, make, example):
    model = make(name)
    left = [
        torch.cat([row[n:], row[:n]])
        for row, n in zip(example.source, example.lengths, strict=True)
    ]
    mask = torch.stack([torch.arange(11) >= 11 - n for n in example.lengths])
    found = model(torch.stack(left), mask, example.target)
    wanted = model(example.source, example.mask, example.target)
    torch.testing.assert_close(found, wanted)


@torch.no_grad()
def test_without_positions_the_encoder_is_equivariant(make, example):
    order = torch.tensor([3, 0, 10, 7, 1, 2, 9, 4, 5, 8, 6])
    for kind in (*POSITIONS, "interleaved", "relative-query"):
        model = make(f"transformer-at-{kind}")
        full = torch.ones(1, 11, dtype=torch.bool)
        moved = model.encode(example.source[:1, order], full).states
        same = torch.allclose(moved, model.encode(example.source[:1], full).states[:, order])
        assert same == (kind == "none")


@torch.no_grad()
@pytest.mark.parametrize("name", ["window", "window-grouped-alibi", "window-location"])
def test_a_window_is_for_self_attention_alone(name, make, example):
    found = make(f"transformer-{name}").attention_weights(
        example.source, example.mask, example.target
    )
    for mechanism, length in (("encoder", 11), ("decoder", 17)):
        far = (torch.arange(length)[:, None] - torch.arange(length)).abs() >= 3
        weights = found[mechanism][0]  # the row without padding
        assert (weights[..., far] == 0).all()
        seen = ~far if mechanism == "encoder" else (~far).tril()
        assert (weights[..., seen] > 0).all()
    assert (found["cross"][0] > 0).all()


@pytest.mark.parametrize(
    "name",
    ["at-alibi", "grouped-relative", "window", "attention-dropout", "latent", "latent-narrow"],
)
def test_products_in_half_precision_are_near_and_can_be_trained(name, make, example):
    model = make(f"transformer-{name}").float()
    inputs = (example.source, example.mask, example.target)
    wanted = model(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(*inputs)
        weights = model.attention_weights(*inputs)
        model.train()(*inputs).float().square().mean().backward()
    assert (found - wanted).norm() / wanted.norm() < 0.02
    assert all(shown.isfinite().all() for shown in weights.values())
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "ropes"),
    [("latent", [2, 2]), ("latent-interleaved", [2, 0]), ("latent-at-sinusoidal", [0, 0])],
)
def test_latent_heads_have_a_turned_part_where_the_position_turns(name, ropes, make):
    model = make(f"transformer-{name}")
    for stack in (model.encoder, model.decoder):
        assert [block.mixer.attention.cache_dims for block in stack] == [
            (rope, 7) for rope in ropes
        ]
    assert all(block.cross_attention.cache_dims == (0, 7) for block in model.decoder)


def test_position_ids_count_the_real_tokens():
    mask = torch.tensor([[True, True, False], [False, True, True], [True, True, True]])
    assert position_ids_of(mask).tolist() == [[0, 1, 1], [0, 0, 1], [0, 1, 2]]


def test_a_past_keeps_everything_it_was_given_as_it_grows():
    torch.manual_seed(1)
    keys, values = torch.randn(2, 2, 3, 41, 5)
    past = KVCache()
    sizes, start = [1, 1, 3, 11, 1, 7, 13, 1, 3], 0
    for size in sizes:
        new = slice(start, start + size)
        start += size
        found = past.add(keys[:, :, new], values[:, :, new])
        assert torch.equal(found[0], keys[:, :, :start])
        assert torch.equal(found[1], values[:, :, :start])
    assert start == past.length == 41


CACHED = {  # numbers for each token and layer: (own, of the source)
    "transformer-at-rotary": (2 * 3 * 4, 2 * 3 * 4),
    "transformer-grouped": (2 * 2 * 4, 2 * 2 * 4),
    "transformer-multi-query": (2 * 4, 2 * 4),
    "transformer-latent": (7 + 2, 7),
    "transformer-latent-at-sinusoidal": (7, 7),
}


@torch.no_grad()
@pytest.mark.parametrize("name", CACHED)
def test_a_cache_holds_what_the_kind_of_heads_says(name, make, example):
    model = make(name)
    state = model.init_state(model.encode(example.source, example.mask))
    model._decode_target(example.target, state, need_weights=False)
    state = state.select(torch.tensor([2, 0]))
    for past, source in zip(state.caches, state.source_keys_values, strict=True):
        own = (past.keys, past.values)
        found = [sum(part.nbytes for part in parts) for parts in (own, source)]
        wanted = [2 * 8 * n * length for n, length in zip(CACHED[name], (17, 11), strict=True)]
        assert found == wanted


def test_reading_part_of_a_target_at_once_and_then_stepping(make, example):
    model = make("transformer-at-rotary")
    with torch.no_grad():
        wanted = model(example.source, example.mask, example.target)
        state = model.init_state(model.encode(example.source, example.mask))
        model._decode_target(example.target[:, :5], state, need_weights=False)
        for t in range(5, 17):
            logits, state = model.step(example.target[:, t], state)
            torch.testing.assert_close(logits, wanted[:, t])


def test_the_output_map_is_the_target_embedding_and_joint_vocabularies_share_it(make):
    table = {"kind": "transformer", "d_model": 12}
    apart, joint = make(table), make(table, joint=True)
    assert apart.source_embedding.weight.shape == (23, 12)
    assert apart.target_embedding.weight.shape == (19, 12)
    assert joint.source_embedding is joint.target_embedding
    assert apart.parameter_count - joint.parameter_count == 23 * 12
    features = torch.randn(3, 12, dtype=torch.float64)
    torch.testing.assert_close(apart.project(features), features @ apart.target_embedding.weight.T)


def test_record_copy_shares_no_memory_and_select_reaches_every_tensor():
    memory = Memory(torch.randn(3, 5, 7), torch.ones(3, 5, dtype=torch.bool))
    copy = memory.copy()
    memory.states.zero_()
    assert (copy.states != 0).all()
    chosen = copy.select(torch.tensor([2, 2, 0, 1]))
    assert torch.equal(chosen.states[1], copy.states[2])
    assert chosen.mask.shape == (4, 5)
