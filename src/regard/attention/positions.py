"""Where a token stands, said in at most one of three places, each doing nothing by default.

`embed` is called once by the model; `rotate` and `bias` by every self-attention. Positions are passed
in as numbers, never guessed from a length: a cache or a left pad cannot shift them.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import UserError

At = Int[Tensor, "batch length"]


class Position(nn.Module):
    """NoPE: says nothing. The other kinds override one of the three."""

    def __init__(self, width: int, head_width: int) -> None:
        super().__init__()

    def embed(
        self, x: Float[Tensor, "batch length width"], at: At
    ) -> Float[Tensor, "batch length width"]:
        """Added to the embedding, once."""
        return x

    def rotate(
        self, heads: Float[Tensor, "batch heads length depth"], at: At
    ) -> Float[Tensor, "batch heads length depth"]:
        """Turns queries and keys, in every self-attention."""
        return heads

    def bias(
        self,
        query: Float[Tensor, "batch heads query depth"],
        query_at: Int[Tensor, "batch query"],
        key_at: Int[Tensor, "batch key"],
    ) -> Float[Tensor, "#batch heads query key"] | None:
        """Added to the scores, in every self-attention."""
        return None


class Sinusoidal(Position):
    """PE_2i(t) = sin(t / base^(2i/D)), PE_2i+1(t) = cos(the same) (Vaswani et al., 2017)"""

    omega: Tensor

    def __init__(self, width: int, head_width: int, base: float) -> None:
        super().__init__(width, head_width)
        self.register_buffer("omega", frequencies(width, base), persistent=False)

    def embed(
        self, x: Float[Tensor, "batch length width"], at: At
    ) -> Float[Tensor, "batch length width"]:
        angle = at[..., None] * self.omega
        waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
        return x + waves[..., : x.shape[-1]].to(x.dtype)


class Rotary(Position):
    """(x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), pair i turned by t omega_i (Su et al., 2021)"""

    omega: Tensor

    def __init__(self, width: int, head_width: int, base: float) -> None:
        super().__init__(width, head_width)
        if head_width % 2:
            raise UserError(f"rotary turns pairs: a head must have an even width, not {head_width}")
        self.register_buffer("omega", frequencies(head_width, base), persistent=False)

    def rotate(
        self, heads: Float[Tensor, "batch heads length depth"], at: At
    ) -> Float[Tensor, "batch heads length depth"]:
        angle = at[:, None, :, None] * self.omega
        cos, sin = angle.cos().to(heads.dtype), angle.sin().to(heads.dtype)
        x1, x2 = heads[..., 0::2], heads[..., 1::2]
        return torch.stack([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1).flatten(-2)


def frequencies(width: int, base: float) -> Float[Tensor, " pairs"]:
    """omega_i = base^(-2i / width), i = 0, 1, ... one for each pair of dimensions."""
    return base ** -(torch.arange(0, width, 2) / width)


POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "rotary": Rotary,
}
