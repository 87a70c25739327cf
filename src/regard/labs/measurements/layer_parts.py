"""The parts of the library's Transformer layers, one by one: for lab polynomial."""

import math

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from regard.attention import NORMALISERS, SCORES, MultiHead
from regard.models.layers import FEED_FORWARDS

Tokens = Float[Tensor, "length d_model"]
Heads = Float[Tensor, "heads length head_dim"]
Pairs = Float[Tensor, "heads query key"]


class SelfAttention:
    """The library's multi-head self-attention, without positions and mask."""

    def __init__(self, d_model: int, heads: int) -> None:
        self.head_dim = d_model // heads
        score = SCORES["scaled-dot"](self.head_dim, self.head_dim)
        sizes = d_model, heads, self.head_dim, score
        self.layer = MultiHead(*sizes).double()
        # Without a normaliser, its weights are the scores themselves.
        self.unnormalised = MultiHead(*sizes, NORMALISERS["none"]).double()
        self.unnormalised.load_state_dict(self.layer.state_dict())

    def scores(self, x: Tokens) -> Pairs:
        """e(X), as it stands inside the softmax."""
        return self._run(self.unnormalised, x, x)[1]

    def weights(self, x: Tokens) -> Pairs:
        """softmax(e(X))"""
        return self._run(self.layer, x, x)[1]

    def output(self, x: Tokens, values_of: Tokens | None = None) -> Tokens:
        """A(X); with `values_of`, the weights are still those of X."""
        return self._run(self.layer, x, x if values_of is None else values_of)[0]

    @torch.no_grad()
    def values(self, x: Tokens) -> Heads:
        """V(X) of each head."""
        return self.layer.keys_values(x[None], torch.arange(len(x))[None])[1][0]

    @torch.no_grad()
    def project(self, contexts: Heads) -> Tokens:
        """W_O of the contexts of all heads, concatenated."""
        return contexts.transpose(0, 1).flatten(1) @ self.layer.output.weight.T

    @torch.no_grad()
    def quadratic_form(self, x: Tokens) -> Pairs:
        """X W_Q (X W_K)^T / sqrt(d) for each head, from the weights alone."""
        w_q = self.layer.query.weight.unflatten(0, (-1, self.head_dim))
        w_k = self.layer.key_value.weight.unflatten(0, (2, -1, self.head_dim))[0]
        scores = torch.einsum("ia,hda,hdb,jb->hij", x, w_q, w_k, x)
        return scores / math.sqrt(self.head_dim)

    @torch.no_grad()
    def _run(self, layer: MultiHead, x: Tokens, values_of: Tokens) -> tuple[Tokens, Pairs]:
        position_ids = torch.arange(len(x))[None]
        keys, _ = layer.keys_values(x[None], position_ids)
        _, values = layer.keys_values(values_of[None], position_ids)
        output, weights = layer(
            x[None], keys, values, None, position_ids, position_ids, need_weights=True
        )
        assert weights is not None
        return output[0], weights[0]


class FeedForwardTest:
    """A feed-forward network of the library with its tokens permuted, and with one token replaced."""

    def __init__(self, name: str, d_model: int, x: Tokens, generator: Generator) -> None:
        self.name = name
        self.network = FEED_FORWARDS[name](d_model, 2 * d_model, 0.0).double()
        output, permutation = self._run(x), torch.randperm(len(x), generator=generator)
        size = output.norm()
        self.gap = float((self._run(x[permutation]) - output[permutation]).norm() / size)
        token = int(torch.randint(len(x), (), generator=generator))
        replaced = x.clone()
        replaced[token] = torch.randn(d_model, dtype=torch.float64, generator=generator)
        changes = (self._run(replaced) - output).norm(dim=1)
        self.own_change = float(changes[token] / output[token].norm())
        others = torch.arange(len(x)) != token
        self.others_change = float(changes[others].max() / size)

    @torch.no_grad()
    def _run(self, x: Tokens) -> Tokens:
        return self.network(x[None])[0]
