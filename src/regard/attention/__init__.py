"""The mathematics of attention, independent of text and models.

    alpha_i = exp(e(q, k_i)) / sum_j exp(e(q, k_j))        a = sum_i alpha_i v_i

Read in this order: `masks`, `scores` (e), `normalise` (scores to weights), `attend` (the weighted sum),
`heads` and `latent` (the layers), `positions` (position encodings); then, for sequences too long for a matrix
of weights, `bias_rules`, `long` and `flex`.
"""

from collections.abc import Callable

from regard.attention.attend import attend, attend_fused
from regard.attention.heads import (
    MultiHead,
    MultiHeadBase,
    SingleHead,
    SingleQueryScaledDotProductAttention,
)
from regard.attention.latent import Latent
from regard.attention.long import is_long
from regard.attention.masks import Mask, MaskRule, causal_mask, padding_mask, window_mask
from regard.attention.normalise import NORMALISERS
from regard.attention.positions import POSITIONS, Position
from regard.attention.scores import SCORES, Score

HEADS: dict[str, Callable[..., MultiHeadBase]] = {"multi-head": MultiHead, "latent": Latent}

__all__ = [
    "HEADS",
    "NORMALISERS",
    "POSITIONS",
    "SCORES",
    "Latent",
    "Mask",
    "MaskRule",
    "MultiHead",
    "MultiHeadBase",
    "Position",
    "Score",
    "SingleHead",
    "SingleQueryScaledDotProductAttention",
    "attend",
    "attend_fused",
    "causal_mask",
    "is_long",
    "padding_mask",
    "window_mask",
]
