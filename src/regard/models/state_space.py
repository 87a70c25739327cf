"""A selective state-space mixer: linear in length, and a state of constant size (Gu and Dao, 2023).

    u, z = W_in x              u = silu(conv(u)), causal, each channel alone
    Delta, B, C = from u       what to write and to read depends on the token: "selective"
    h_t = exp(Delta_t A) h_(t-1) + Delta_t B_t u_t        y_t = C_t . h_t + D u_t
    out = W_out (y * silu(z))

A text read at once, in pieces or token by token goes through the same code and gives the same.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, silu, softplus

from regard.linear import Linear
from regard.models.interface import Record

CHUNK = 16  # steps a scan takes one after another; chunks go side by side

Sequence = Float[Tensor, "batch length width"]
Mask = Bool[Tensor, "batch length"]
Inner = Float[Tensor, "batch length inner"]
Choice = Float[Tensor, "batch length state"]
Matrix = Float[Tensor, "inner state"]
Steps = Float[Tensor, "batch length inner state"]
Chunks = Float[Tensor, "batch chunks length inner state"]
Hidden = Float[Tensor, "batch inner state"]


@dataclass
class MixerState(Record):
    """All that is left of what was read: the convolution's last inputs, and h."""

    window: Float[Tensor, "batch inner tail"]
    hidden: Hidden


class StateSpace(nn.Module):
    """(output at every token, state after the last). Padding, wherever it stands, is not there."""

    no_weight_decay = (
        "a_log",
        "skip",
    )  # paces and a scale: to pull them towards 0 would mean nothing

    def __init__(
        self, d_model: int, state_dim: int = 16, expand: int = 2, conv_kernel: int = 4
    ) -> None:
        super().__init__()
        inner, self.rank, self.state_dim = expand * d_model, math.ceil(d_model / 16), state_dim
        self.enter = Linear(d_model, 2 * inner, bias=False)
        self.convolution = nn.Conv1d(inner, inner, conv_kernel, groups=inner)
        self.select = Linear(inner, self.rank + 2 * state_dim, bias=False)
        self.delta = Linear(self.rank, inner)
        self.a_log = nn.Parameter(torch.arange(1.0, state_dim + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.leave = Linear(inner, d_model, bias=False)
        self._start_delta()

    def _start_delta(self) -> None:
        """softplus(bias) log-uniform in [0.001, 0.1]: channels that forget at many paces."""
        nn.init.uniform_(self.delta.weight, -(self.rank**-0.5), self.rank**-0.5)
        pace = torch.empty_like(self.delta.bias).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        with torch.no_grad():
            self.delta.bias.copy_(pace + torch.log(-torch.expm1(-pace)))

    def start(self, batch: int) -> MixerState:
        """Nothing has been read."""
        inner, tail = len(self.skip), self.convolution.kernel_size[0] - 1
        window = self.skip.new_zeros(batch, inner, tail)
        return MixerState(window, self.skip.new_zeros(batch, inner, self.state_dim))

    def forward(
        self, x: Sequence, mask: Mask | None = None, past: MixerState | None = None
    ) -> tuple[Sequence, MixerState]:
        """`mask` is True for real tokens; without one all are. Outputs at padding are zeros."""
        if mask is None:
            return self._read(x, None, past)
        place = compact(mask)
        index = place[..., None].expand_as(x)
        real = torch.zeros_like(x).scatter(1, index, x.masked_fill(~mask[..., None], 0.0))
        y, state = self._read(real, mask.sum(1), past)
        return y.gather(1, index).masked_fill(~mask[..., None], 0.0), state

    def _read(
        self, x: Sequence, lengths: Int[Tensor, " batch"] | None, past: MixerState | None
    ) -> tuple[Sequence, MixerState]:
        """Rows whose first `lengths` tokens are real, or all."""
        u, gate = self.enter(x).chunk(2, dim=-1)
        u, window = self._convolve(u, lengths, None if past is None else past.window)
        u = silu(u)
        low, b, c = self.select(u).split([self.rank, self.state_dim, self.state_dim], dim=-1)
        delta = self.delta(low)
        hidden = None if past is None else past.hidden
        y, hidden = self._scan(u, delta, b, c, lengths, hidden)
        return self.leave(y.to(gate.dtype) * silu(gate)), MixerState(window, hidden)

    def _convolve(
        self,
        u: Inner,
        lengths: Int[Tensor, " batch"] | None,
        window: Float[Tensor, "batch inner tail"] | None,
    ) -> tuple[Inner, Float[Tensor, "batch inner tail"]]:
        """(each token with those just before it, the last real inputs)"""
        tail = self.convolution.kernel_size[0] - 1
        u = u.transpose(1, 2)
        seen = pad(u, (tail, 0)) if window is None else torch.cat([window.to(u.dtype), u], dim=-1)
        mixed = self.convolution(seen).transpose(1, 2)
        if lengths is None:  # the tail alone: a view would keep the whole text alive
            return mixed, seen[..., u.shape[-1] :].clone()
        last = lengths[:, None] + torch.arange(tail, device=u.device)
        return mixed, seen.gather(2, last[:, None].expand(-1, u.shape[1], -1))

    def _scan(
        self,
        u: Inner,
        delta: Inner,
        b: Choice,
        c: Choice,
        lengths: Int[Tensor, " batch"] | None,
        hidden: Hidden | None,
    ) -> tuple[Inner, Hidden]:
        """(y, the last h), in single precision at least: small paces add up over long texts."""
        wide = torch.promote_types(u.dtype, torch.float32)
        with torch.autocast(u.device.type, enabled=False):
            u, b, c = u.to(wide), b.to(wide), c.to(wide)
            delta = softplus(delta.to(wide))
            if lengths is not None:  # no time passes over padding: h stays as it is
                real = torch.arange(u.shape[1], device=u.device) < lengths[:, None]
                delta = delta * real[..., None]
            if hidden is None:
                hidden = u.new_zeros(u.shape[0], u.shape[2], self.state_dim)
            a = -torch.exp(self.a_log.to(wide))
            y, last = SelectiveScan.apply(delta, a, delta * u, b, c, hidden.to(wide))
            return y + self.skip.to(wide) * u, last


def compact(mask: Mask) -> Int[Tensor, "batch length"]:
    """Where each token goes if the real ones move to the front, in order, the padding behind them."""
    padding = mask.sum(1, keepdim=True) + (~mask).cumsum(1)
    return torch.where(mask, mask.cumsum(1), padding) - 1


class SelectiveScan(torch.autograd.Function):
    """y_t = C_t . h_t and the last h, with h_t = exp(Delta_t A) h_(t-1) + B_t u_t (u times Delta by now)

    The gradient of h, g_t = C_t dy_t + exp(Delta_(t+1) A) g_(t+1), is a scan, too, from the end to the
    start. Written out, so that of what is as large as every h of every token only two are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, delta: Inner, a: Matrix, u: Inner, b: Choice, c: Choice, start: Hidden
    ) -> tuple[Inner, Hidden]:
        keep = torch.exp(delta[..., None] * a)
        h = u[..., None] * b[:, :, None]
        scan(keep, h, start)
        ctx.save_for_backward(delta, a, u, b, c, start, keep, h)
        return over_state(h, c), h[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        with torch.autocast(grads[0].device.type, enabled=False):
            return SelectiveScan.gradients(*grads, *ctx.saved_tensors)

    @staticmethod
    def gradients(
        dy: Inner,
        dlast: Hidden,
        delta: Inner,
        a: Matrix,
        u: Inner,
        b: Choice,
        c: Choice,
        start: Hidden,
        keep: Steps,
        h: Steps,
    ) -> tuple[Inner, Matrix, Inner, Choice, Choice, Hidden]:
        """Of delta, a, u, b, c and start."""
        g = dy[..., None] * c[:, :, None]
        g[:, -1] += dlast
        scan(keep[:, 1:], g[:, :-1], g[:, -1], back=True)
        dc, db, du = over_inner(h, dy), over_inner(g, u), over_state(g, b)
        g *= keep
        dstart = g[:, 0].clone()
        g[:, 1:] *= h[:, :-1]
        g[:, 0] *= start  # g is the gradient of the exponent, Delta A, by now
        ddelta = torch.einsum("blis,is->bli", g, a)
        da = g.mul_(delta[..., None]).sum((0, 1))
        return ddelta, da, du, db, dc, dstart


def over_state(x: Steps, weights: Choice) -> Inner:
    """Sum over the state, with weights."""
    return (x @ weights[..., None])[..., 0]


def over_inner(x: Steps, weights: Inner) -> Choice:
    """Sum over the channels, with weights."""
    return (weights[:, :, None] @ x)[:, :, 0]


def scan(keep: Steps, h: Steps, start: Hidden, back: bool = False) -> None:
    """h_t <- keep_t h_(t-1) + h_t in place, or h_t <- keep_t h_(t+1) + h_t; 0 <= keep <= 1.

    About 2 CHUNK log_CHUNK(length) steps: each chunk's whole effect first (h -> total h + end), all
    chunks side by side; a scan over these gives the state before every chunk; from there all go side
    by side again. Products of numbers up to 1 may vanish but never overflow: no logarithm is needed.
    """
    whole = keep.shape[1] // CHUNK * CHUNK
    if whole <= CHUNK:
        walk(keep[:, None], h[:, None], start[:, None], back)
        return
    rest = keep[:, None, whole:], h[:, None, whole:]
    if back and whole < keep.shape[1]:
        walk(*rest, start[:, None], back)
        start = h[:, whole]
    keeps, hs = (x[:, :whole].unflatten(1, (-1, CHUNK)) for x in (keep, h))
    first, *others = reversed(range(CHUNK)) if back else range(CHUNK)
    total, end = keeps[:, :, first].clone(), hs[:, :, first].clone()
    for t in others:
        total *= keeps[:, :, t]
        torch.addcmul(hs[:, :, t], keeps[:, :, t], end, out=end)
    scan(total, end, start, back)
    before = [end[:, 1:], start[:, None]] if back else [start[:, None], end[:, :-1]]
    walk(keeps, hs, torch.cat(before, dim=1), back)
    if not back and whole < keep.shape[1]:
        walk(*rest, h[:, None, whole - 1], back)


def walk(
    keep: Chunks, h: Chunks, last: Float[Tensor, "batch chunks inner state"], back: bool
) -> None:
    """The same, one step after another, in every chunk at once."""
    times = range(keep.shape[2])
    for t in reversed(times) if back else times:
        last = torch.addcmul(h[:, :, t], keep[:, :, t], last, out=h[:, :, t])
