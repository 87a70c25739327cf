"""Selective state space (Mamba; Gu and Dao, 2023): linear in length, with a state of constant size.

    u, z = W_in x              u = silu(conv(u)), causal and depthwise
    Delta, B, C = W_x u        input-dependent ("selective"); Delta = softplus(W_dt Delta + b)
    h_t = exp(Delta_t A) h_(t-1) + Delta_t B_t u_t        y_t = C_t . h_t + D u_t
    out = W_out (y * silu(z))

A sequence gives the same result through the same code in one call, in chunks, or token by token.
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
from regard.models.padding import compaction_index, gather, scatter

CHUNK = 16  # sequential steps of a scan; all chunks are scanned in parallel

Activations = Float[Tensor, "batch length d_model"]
Mask = Bool[Tensor, "batch length"]
Inner = Float[Tensor, "batch length inner"]
StateInput = Float[Tensor, "batch length state"]  # B or C
StateMatrix = Float[Tensor, "inner state"]  # A
Hidden = Float[Tensor, "batch inner state"]  # h at one token
HiddenSequence = Float[Tensor, "batch length inner state"]
HiddenChunks = Float[Tensor, "batch chunks length inner state"]


@dataclass
class StateSpaceState(Record):
    """The state after the tokens so far: the last inputs of the convolution, and h."""

    window: Float[Tensor, "batch inner tail"]
    hidden: Hidden


class StateSpace(nn.Module):
    """(output at every token, state after the last). Padding, at any position, has no effect."""

    no_weight_decay = ("A_log", "D")  # decay rates and a scale: 0 is no sensible prior for them

    def __init__(
        self, d_model: int, state_dim: int = 16, expand: int = 2, conv_kernel: int = 4
    ) -> None:
        super().__init__()
        inner, self.rank, self.state_dim = expand * d_model, math.ceil(d_model / 16), state_dim
        self.in_proj = Linear(d_model, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, conv_kernel, groups=inner)
        self.x_proj = Linear(inner, self.rank + 2 * state_dim, bias=False)
        self.dt_proj = Linear(self.rank, inner)
        self.A_log = nn.Parameter(torch.arange(1.0, state_dim + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = Linear(inner, d_model, bias=False)
        self._init_dt()

    def _init_dt(self) -> None:
        """softplus(bias) log-uniform in [0.001, 0.1]: channels with many different time scales."""
        nn.init.uniform_(self.dt_proj.weight, -(self.rank**-0.5), self.rank**-0.5)
        dt = torch.empty_like(self.dt_proj.bias).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        with torch.no_grad():
            self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # inverse softplus

    def init_state(self, batch: int) -> StateSpaceState:
        """The state before the first token: zeros."""
        inner, tail = len(self.D), self.conv1d.kernel_size[0] - 1
        window = self.D.new_zeros(batch, inner, tail)
        return StateSpaceState(window, self.D.new_zeros(batch, inner, self.state_dim))

    def forward(
        self, x: Activations, mask: Mask | None = None, state: StateSpaceState | None = None
    ) -> tuple[Activations, StateSpaceState]:
        """`mask` is True for real tokens; None: all are real. Outputs at padding are zeros."""
        if mask is None:
            return self._forward(x, None, state)
        index = compaction_index(mask)[..., None]
        real = scatter(x.masked_fill(~mask[..., None], 0.0), 1, index)
        y, state = self._forward(real, mask.sum(1), state)
        return gather(y, 1, index).masked_fill(~mask[..., None], 0.0), state

    def _forward(
        self, x: Activations, lengths: Int[Tensor, " batch"] | None, state: StateSpaceState | None
    ) -> tuple[Activations, StateSpaceState]:
        """For rows whose first `lengths` tokens are real; None: all tokens are."""
        u, z = self.in_proj(x).chunk(2, dim=-1)
        u, window = self._convolve(u, lengths, None if state is None else state.window)
        u = silu(u)
        dt, b, c = self.x_proj(u).split([self.rank, self.state_dim, self.state_dim], dim=-1)
        delta = self.dt_proj(dt)
        hidden = None if state is None else state.hidden
        y, hidden = self._scan(u, delta, b, c, lengths, hidden)
        return self.out_proj(y.to(z.dtype) * silu(z)), StateSpaceState(window, hidden)

    def _convolve(
        self,
        u: Inner,
        lengths: Int[Tensor, " batch"] | None,
        window: Float[Tensor, "batch inner tail"] | None,
    ) -> tuple[Inner, Float[Tensor, "batch inner tail"]]:
        """(causal convolution of u, its last real inputs)"""
        tail = self.conv1d.kernel_size[0] - 1
        u = u.transpose(1, 2)
        inputs = pad(u, (tail, 0)) if window is None else torch.cat([window.to(u.dtype), u], dim=-1)
        mixed = self.conv1d(inputs).transpose(1, 2)
        if lengths is None:  # a clone: a view would keep all inputs in memory
            return mixed, inputs[..., u.shape[-1] :].clone()
        last = lengths[:, None] + torch.arange(tail, device=u.device)
        return mixed, inputs.gather(2, last[:, None].expand(-1, u.shape[1], -1))

    def _scan(
        self,
        u: Inner,
        delta: Inner,
        b: StateInput,
        c: StateInput,
        lengths: Int[Tensor, " batch"] | None,
        hidden: Hidden | None,
    ) -> tuple[Inner, Hidden]:
        """(y, the last h), at least in float32: small values of Delta add up over long sequences."""
        dtype = torch.promote_types(u.dtype, torch.float32)
        with torch.autocast(u.device.type, enabled=False):
            u, b, c = u.to(dtype), b.to(dtype), c.to(dtype)
            delta = softplus(delta.to(dtype))
            if lengths is not None:  # Delta = 0 at padding: h does not change there
                real = torch.arange(u.shape[1], device=u.device) < lengths[:, None]
                delta = delta * real[..., None]
            if hidden is None:
                hidden = u.new_zeros(u.shape[0], u.shape[2], self.state_dim)
            a = -torch.exp(self.A_log.to(dtype))
            y, last = SelectiveScan.apply(delta, a, delta * u, b, c, hidden.to(dtype))
            return y + self.D.to(dtype) * u, last


class SelectiveScan(torch.autograd.Function):
    """y_t = C_t . h_t and the last h, with h_t = exp(Delta_t A) h_(t-1) + B_t u_t (u is Delta u here)

    The gradient of h, g_t = C_t dy_t + exp(Delta_(t+1) A) g_(t+1), is a reverse scan. It is written out
    so that the forward pass saves only two tensors of shape [batch length inner state].
    """

    @staticmethod
    def forward(
        ctx: Any,
        delta: Inner,
        a: StateMatrix,
        u: Inner,
        b: StateInput,
        c: StateInput,
        initial: Hidden,
    ) -> tuple[Inner, Hidden]:
        decay = torch.exp(delta[..., None] * a)
        h = u[..., None] * b[:, :, None]
        scan(decay, h, initial)
        ctx.save_for_backward(delta, a, u, b, c, initial, decay, h)
        return contract_state(h, c), h[:, -1].clone()

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
        a: StateMatrix,
        u: Inner,
        b: StateInput,
        c: StateInput,
        initial: Hidden,
        decay: HiddenSequence,
        h: HiddenSequence,
    ) -> tuple[Inner, StateMatrix, Inner, StateInput, StateInput, Hidden]:
        """Gradients of delta, a, u, b, c and initial."""
        g = dy[..., None] * c[:, :, None]
        g[:, -1] += dlast
        scan(decay[:, 1:], g[:, :-1], g[:, -1], reverse=True)
        dc, db, du = contract_inner(h, dy), contract_inner(g, u), contract_state(g, b)
        g *= decay
        dinitial = g[:, 0].clone()
        g[:, 1:] *= h[:, :-1]
        g[:, 0] *= initial  # from here on, g is the gradient of the exponent Delta A
        ddelta = torch.einsum("blis,is->bli", g, a)
        da = g.mul_(delta[..., None]).sum((0, 1))
        return ddelta, da, du, db, dc, dinitial


def contract_state(x: HiddenSequence, weights: StateInput) -> Inner:
    """Weighted sum over the state dimension."""
    return (x @ weights[..., None])[..., 0]


def contract_inner(x: HiddenSequence, weights: Inner) -> StateInput:
    """Weighted sum over the inner channels."""
    return (weights[:, :, None] @ x)[:, :, 0]


def scan(decay: HiddenSequence, h: HiddenSequence, initial: Hidden, reverse: bool = False) -> None:
    """h_t <- decay_t h_(t-1) + h_t in place, or in reverse h_t <- decay_t h_(t+1) + h_t; 0 <= decay <= 1.

    About 2 CHUNK log_CHUNK(length) sequential steps: first reduce every chunk, all in parallel, to the map
    h -> total h + end; a scan over these maps gives the state before every chunk; then scan all chunks in
    parallel from there. Products of numbers up to 1 may underflow but never overflow: no logarithms needed.
    """
    chunked = decay.shape[1] // CHUNK * CHUNK  # tokens in full chunks
    if chunked <= CHUNK:
        scan_chunks(decay[:, None], h[:, None], initial[:, None], reverse)
        return
    rest = decay[:, None, chunked:], h[:, None, chunked:]
    if reverse and chunked < decay.shape[1]:
        scan_chunks(*rest, initial[:, None], reverse)
        initial = h[:, chunked]
    decays, hs = (x[:, :chunked].unflatten(1, (-1, CHUNK)) for x in (decay, h))
    first, *others = reversed(range(CHUNK)) if reverse else range(CHUNK)
    total, end = decays[:, :, first].clone(), hs[:, :, first].clone()
    for t in others:
        total *= decays[:, :, t]
        torch.addcmul(hs[:, :, t], decays[:, :, t], end, out=end)
    scan(total, end, initial, reverse)
    before = [end[:, 1:], initial[:, None]] if reverse else [initial[:, None], end[:, :-1]]
    scan_chunks(decays, hs, torch.cat(before, dim=1), reverse)
    if not reverse and chunked < decay.shape[1]:
        scan_chunks(*rest, h[:, None, chunked - 1], reverse)


def scan_chunks(
    decay: HiddenChunks,
    h: HiddenChunks,
    last: Float[Tensor, "batch chunks inner state"],
    reverse: bool,
) -> None:
    """The same recurrence step by step, in all chunks in parallel; `last` is the state before each."""
    times = range(decay.shape[2])
    for t in reversed(times) if reverse else times:
        last = torch.addcmul(h[:, :, t], decay[:, :, t], last, out=h[:, :, t])
