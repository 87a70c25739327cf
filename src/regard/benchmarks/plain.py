"""What a careful user would write: the same weights, caches that grow by concatenation, PyTorch's own
fused attention, `log_softmax` and `topk`, every row with a copy of its sentence.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from regard.text.tokenizer import BEGIN, END, PAD

Cache = list[dict[str, Tensor]]


def heads(x: Tensor, count: int) -> Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def attend(layer: Any, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    query = heads(linear(x, layer.query.weight), layer.heads)
    seen = scaled_dot_product_attention(query, keys, values, mask)
    return linear(seen.transpose(1, 2).flatten(2), layer.output.weight)


def keys_values(layer: Any, x: Tensor) -> list[Tensor]:
    return [heads(half, layer.heads) for half in linear(x, layer.key_value.weight).chunk(2, -1)]


def feed(block: Any, x: Tensor) -> Tensor:
    grow, shrink = block.feed.grow, block.feed.shrink
    inner = linear(block.feed_norm(x), grow.weight, grow.bias).relu()
    return x + linear(inner, shrink.weight, shrink.bias)


def encode(model: Any, source: Tensor, mask: Tensor) -> Cache:
    """The cache before the first word."""
    at = torch.arange(source.shape[1], device=source.device).expand_as(source)
    x = model.position.embed(model.source_embedding(source) * model.scale, at)
    for block in model.encoder:
        normed, own = block.own_norm(x), block.own.attention
        x = x + attend(own, normed, *keys_values(own, normed), mask[:, None, None])
        x = feed(block, x)
    states = model.encoder_norm(x)
    crossed = [keys_values(block.cross, states) for block in model.decoder]
    return [
        {"keys": keys, "values": values, "mask": mask[:, None, None]} for keys, values in crossed
    ]


def step(model: Any, tokens: Tensor, place: int, cache: Cache) -> Tensor:
    """Log-probabilities of the next token."""
    at = torch.full_like(tokens[:, None], place)
    x = model.position.embed(model.target_embedding(tokens[:, None]) * model.scale, at)
    for block, past in zip(model.decoder, cache, strict=True):
        normed, own = block.own_norm(x), block.own.attention
        for name, new in zip(("own_keys", "own_values"), keys_values(own, normed), strict=True):
            past[name] = torch.cat([past[name], new], dim=2) if name in past else new
        x = x + attend(own, normed, past["own_keys"], past["own_values"], None)
        normed = block.cross_norm(x)
        x = x + attend(block.cross, normed, past["keys"], past["values"], past["mask"])
        x = feed(block, x)
    logits = linear(model.decoder_norm(x)[:, 0], *model.output_map)
    logits[:, [PAD, BEGIN, END]] = -1e9
    return logits.log_softmax(-1)


def plain_greedy(model: Any, source: Tensor, mask: Tensor, steps: int) -> Tensor:
    cache = encode(model, source, mask)
    tokens = torch.full_like(source[:, 0], BEGIN)
    ids = []
    for place in range(steps):
        tokens = step(model, tokens, place, cache).argmax(-1)
        ids.append(tokens)
    return torch.stack(ids, dim=1)


def plain_beam(model: Any, source: Tensor, mask: Tensor, steps: int, width: int) -> Tensor:
    """The best output of each sentence, of those that no end cuts short."""
    rows = torch.arange(len(source), device=source.device)
    cache = encode(model, source, mask)
    chances = step(model, torch.full_like(rows, BEGIN), 0, cache)
    scores, tokens = chances.topk(width)
    origin, ids = rows[:, None].expand(-1, width), tokens[..., None]
    for place in range(1, steps):
        for past in cache:
            past.update({name: x[origin.flatten()] for name, x in past.items()})
        chances = step(model, tokens.flatten(), place, cache)
        totals = scores[..., None] + chances.view(len(rows), width, -1)
        scores, index = totals.flatten(1).topk(width)
        slot, tokens = index // chances.shape[-1], index % chances.shape[-1]
        origin = rows[:, None] * width + slot
        ids = torch.cat([ids.flatten(0, 1)[origin], tokens[..., None]], dim=-1)
    return ids[:, 0]
