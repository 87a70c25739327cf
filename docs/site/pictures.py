"""`python -m docs.site.pictures KIND NAME --out FILE`: what a score, normaliser or position does, drawn.

score NAME        A layer with this score learns to find, for each of eight words, the same word among eight
                  keys in a random order. The picture: its weights on a new order, with the keys sorted. A
                  score that compares query and key finds the diagonal; one that does not, cannot.
normaliser NAME   The weights of eight rows of the same scores, from small to large ones.
position NAME     The weights (scaled-dot, softmax) of 24 tokens whose content is the same everywhere: what
                  is left is the position. Learned tables are as they are before training.
"""

import argparse
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.attention import NORMALISERS, POSITIONS, SCORES, SingleHead
from regard.diagrams import heatmap, save

WORDS, KQ_DIM, BATCH, STEPS, NOISE = 8, 16, 32, 300, 0.1
LENGTH, MODEL_DIM, HEADS = 24, 64, 4
ROW = (-1.0, -0.4, 0.1, 0.5, 0.9, 1.2, 1.9, 2.2)


def new_sentence(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Queries for the words in order, keys in a random order, and where the key of each query is."""
    order = torch.stack([torch.randperm(WORDS, generator=generator) for _ in range(BATCH)])
    words = torch.eye(WORDS)
    noise = NOISE * torch.randn(2, BATCH, WORDS, WORDS, generator=generator)
    return words + noise[0], words[order] + noise[1], order.argsort(-1)


@cache
def score_weights(name: str) -> Tensor:
    """The weights [query key] of a layer that was trained to find the key of each query."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    options = {"max_length": WORDS} if name == "location" else {}
    dim = KQ_DIM if SCORES[name].projected else WORDS
    layer = SingleHead(WORDS, WORDS, KQ_DIM, SCORES[name](dim, dim, **options))
    parameters = list(layer.parameters())
    optimizer = torch.optim.Adam(parameters, lr=0.02) if parameters else None
    for _ in range(STEPS if optimizer else 0):
        queries, keys, found = new_sentence(generator)
        _, weights = layer(queries, layer.keys(keys), keys)
        loss = nn.functional.nll_loss((weights + 1e-9).log().flatten(0, 1), found.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    queries, keys, found = new_sentence(generator)
    with torch.no_grad():
        _, weights = layer(queries, layer.keys(keys), keys)
    return weights[0][:, found[0]]


def normaliser_weights(name: str) -> Tensor:
    """The weights of the same eight scores times 0.25, 0.5, .., 2."""
    factors = torch.arange(1, 9) / 4
    return NORMALISERS[name](factors[:, None] * torch.tensor(ROW))


def position_weights(name: str) -> Tensor:
    """softmax(q . k / sqrt(d) + bias), of the first head, if query and key are the same at every position."""
    torch.manual_seed(0)
    form = {"form": "query"} if name == "relative-query" else {}
    position = POSITIONS[name.removesuffix("-query")](MODEL_DIM, HEADS, **form)
    ids = torch.arange(LENGTH)[None]
    content = torch.ones(MODEL_DIM // HEADS)
    if name in ("sinusoidal", "learned"):
        embedded = position.embed(torch.zeros(1, LENGTH, MODEL_DIM), ids)
        heads = embedded[:, None]
    else:
        heads = content.expand(1, HEADS, LENGTH, -1)
    with torch.no_grad():
        rotated = position.rotate(heads, ids)
        scores = rotated @ rotated.transpose(-1, -2) / rotated.shape[-1] ** 0.5
        bias = position.bias(heads, ids, ids)
        return NORMALISERS["softmax"](scores if bias is None else scores + bias)[0, 0]


def draw(kind: str, name: str, out: Path, theme: str) -> None:
    """Write the picture of one kind."""
    if kind == "score":
        weights, axes = score_weights(name), ("keys, sorted", "queries")
        rows = columns = [f"word {number}" for number in range(1, WORDS + 1)]
    elif kind == "normaliser":
        weights, axes = normaliser_weights(name), ("scores", "times")
        columns = [f"{score:g}" for score in ROW]
        rows = [f"{number / 4:g}" for number in range(1, len(weights) + 1)]
    else:
        weights, axes = position_weights(name), ("position of the key", "position of the query")
        rows = columns = [str(number) for number in range(LENGTH)]
    options = {"title": f"{kind} {name}", "axes": axes, "theme": theme}
    save(heatmap(weights.numpy(), columns, rows, **options), out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("score", "normaliser", "position"))
    parser.add_argument("name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--theme", default="light", choices=("light", "dark"))
    given = parser.parse_args()
    draw(given.kind, given.name, given.out, given.theme)
