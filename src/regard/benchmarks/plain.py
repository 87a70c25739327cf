"""A plain PyTorch decoding loop on the same weights, as a careful user would write it.

KV caches grow by concatenation; attention is PyTorch's fused one; search is `log_softmax` and `topk`; every
hypothesis has a copy of its encoded sentence.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from regard.text.tokenizer import BOS, EOS, PAD

Cache = list[dict[str, Tensor]]


def split_heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def attend(layer: Any, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    query = split_heads(linear(x, layer.query.weight), layer.heads)
    context = scaled_dot_product_attention(query, keys, values, mask)
    return linear(context.transpose(1, 2).flatten(2), layer.output.weight)


def project_keys_values(layer: Any, x: Tensor) -> list[Tensor]:
    projected = linear(x, layer.key_value.weight)
    return [split_heads(half, layer.heads) for half in projected.chunk(2, -1)]


def feed_forward(block: Any, x: Tensor) -> Tensor:
    up, down = block.feed_forward.up, block.feed_forward.down
    hidden = linear(block.feed_forward_norm(x), up.weight, up.bias).relu()
    return x + linear(hidden, down.weight, down.bias)


def encode(model: Any, source: Tensor, mask: Tensor) -> Cache:
    """The decoder's cache before the first token."""
    position_ids = torch.arange(source.shape[1], device=source.device).expand_as(source)
    x = model.position.embed(model.source_embedding(source) * model.scale, position_ids)
    for block in model.encoder:
        normed, attention = block.mixer_norm(x), block.mixer.attention
        x = x + attend(
            attention, normed, *project_keys_values(attention, normed), mask[:, None, None]
        )
        x = feed_forward(block, x)
    states = model.encoder_norm(x)
    cross = [project_keys_values(block.cross_attention, states) for block in model.decoder]
    return [{"keys": keys, "values": values, "mask": mask[:, None, None]} for keys, values in cross]


def step(model: Any, tokens: Tensor, position: int, cache: Cache) -> Tensor:
    """Log-probabilities of the next token."""
    position_ids = torch.full_like(tokens[:, None], position)
    x = model.position.embed(model.target_embedding(tokens[:, None]) * model.scale, position_ids)
    for block, layer in zip(model.decoder, cache, strict=True):
        normed, attention = block.mixer_norm(x), block.mixer.attention
        projected = project_keys_values(attention, normed)
        for name, new in zip(("self_keys", "self_values"), projected, strict=True):
            layer[name] = torch.cat([layer[name], new], dim=2) if name in layer else new
        x = x + attend(attention, normed, layer["self_keys"], layer["self_values"], None)
        normed = block.cross_norm(x)
        x = x + attend(block.cross_attention, normed, layer["keys"], layer["values"], layer["mask"])
        x = feed_forward(block, x)
    logits = linear(model.decoder_norm(x)[:, 0], *model.output_projection)
    logits[:, [PAD, BOS, EOS]] = -1e9
    return logits.log_softmax(-1)


def plain_greedy(model: Any, source: Tensor, mask: Tensor, steps: int) -> Tensor:
    cache = encode(model, source, mask)
    tokens = torch.full_like(source[:, 0], BOS)
    ids = []
    for position in range(steps):
        tokens = step(model, tokens, position, cache).argmax(-1)
        ids.append(tokens)
    return torch.stack(ids, dim=1)


def plain_beam(model: Any, source: Tensor, mask: Tensor, steps: int, width: int) -> Tensor:
    """The best hypothesis of each sentence; EOS is suppressed, so all have `steps` tokens."""
    rows = torch.arange(len(source), device=source.device)
    cache = encode(model, source, mask)
    log_probs = step(model, torch.full_like(rows, BOS), 0, cache)
    scores, tokens = log_probs.topk(width)
    beam_indices, ids = rows[:, None].expand(-1, width), tokens[..., None]
    for position in range(1, steps):
        for layer in cache:
            layer.update({name: x[beam_indices.flatten()] for name, x in layer.items()})
        log_probs = step(model, tokens.flatten(), position, cache)
        totals = scores[..., None] + log_probs.view(len(rows), width, -1)
        scores, index = totals.flatten(1).topk(width)
        beam, tokens = index // log_probs.shape[-1], index % log_probs.shape[-1]
        beam_indices = rows[:, None] * width + beam
        ids = torch.cat([ids.flatten(0, 1)[beam_indices], tokens[..., None]], dim=-1)
    return ids[:, 0]
