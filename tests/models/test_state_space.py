"""The state space against a loop over its equations, and the properties of a state of constant size."""

import math
from dataclasses import fields

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import silu, softplus

from regard.models.state_space import (
    CHUNK,
    SelectiveScan,
    StateSpace,
    StateSpaceState,
    compaction_index,
    scan,
)

BATCH, D_MODEL, STATE, KERNEL = 3, 7, 5, 4
TIGHT = {"atol": 1e-9, "rtol": 1e-9}
LENGTHS = [
    1,
    2,
    CHUNK - 1,
    CHUNK,
    CHUNK + 1,
    2 * CHUNK,
    5 * CHUNK + 3,
    CHUNK * CHUNK + 2 * CHUNK + 1,
]


def make(**changes) -> StateSpace:
    torch.manual_seed(1)
    space = StateSpace(
        **{"d_model": D_MODEL, "state_dim": STATE, "conv_kernel": KERNEL} | changes
    ).double()
    with torch.no_grad():  # away from their structured initial values
        for parameter in (space.A_log, space.D, space.dt_proj.bias):
            parameter += 0.3 * torch.randn_like(parameter)
        space.dt_proj.bias += 2.0
    return space


def tokens(length: int, batch: int = BATCH) -> torch.Tensor:
    random = torch.Generator().manual_seed(length)
    return torch.randn(batch, length, D_MODEL, generator=random, dtype=torch.float64)


def naive(space: StateSpace, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(outputs, the last h) of one row, token by token, as in the paper."""
    inner = space.out_proj.in_features
    weight, bias = space.conv1d.weight[:, 0], space.conv1d.bias  # [inner kernel], [inner]
    a = -torch.exp(space.A_log)
    inputs = [x.new_zeros(inner)] * (weight.shape[1] - 1)
    h, outputs = x.new_zeros(inner, space.state_dim), []
    for token in x:
        u, z = (space.in_proj.weight @ token).split(inner)
        inputs.append(u)
        recent = torch.stack(inputs[-weight.shape[1] :], dim=1)
        u = silu((weight * recent).sum(1) + bias)
        dt, b, c = (space.x_proj.weight @ u).split([space.rank, space.state_dim, space.state_dim])
        delta = softplus(space.dt_proj.weight @ dt + space.dt_proj.bias)
        h = torch.exp(delta[:, None] * a) * h + delta[:, None] * b[None, :] * u[:, None]
        y = (h * c).sum(1) + space.D * u
        outputs.append(space.out_proj.weight @ (y * silu(z)))
    return torch.stack(outputs), h


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, **TIGHT)


def assert_same(actual: StateSpaceState, expected: StateSpaceState) -> None:
    for field in fields(StateSpaceState):
        assert_close(getattr(actual, field.name), getattr(expected, field.name))


@torch.no_grad()
@pytest.mark.parametrize("length", LENGTHS)
def test_the_output_equals_the_naive_loop(length):
    space, x = make(), tokens(length)
    y, state = space(x)
    for row in range(BATCH):
        expected, h = naive(space, x[row])
        assert_close(y[row], expected)
        assert_close(state.hidden[row], h)


@torch.no_grad()
@pytest.mark.parametrize(
    "changes", [{"conv_kernel": 1}, {"conv_kernel": 2}, {"expand": 3}, {"state_dim": 1}]
)
def test_other_sizes_equal_the_naive_loop(changes):
    space, x = make(**changes), tokens(37)
    y, state = space(x)
    assert_close(y[1], naive(space, x[1])[0])
    chunks = [space(x[:, :5])]
    chunks.append(space(x[:, 5:], None, chunks[0][1]))
    assert_close(torch.cat([y for y, _ in chunks], dim=1), y)
    assert_same(chunks[1][1], state)


@pytest.mark.parametrize("length", [1, 3, CHUNK + 1, 3 * CHUNK + 5])
def test_gradients_equal_those_of_the_naive_loop(length):
    space, x = make(), tokens(length, batch=2).requires_grad_()
    weight = torch.randn(2, length, D_MODEL, dtype=torch.float64)

    def gradients(y: torch.Tensor, h: torch.Tensor) -> list[torch.Tensor]:
        loss = (y * weight).sum() + h.square().sum()
        return list(torch.autograd.grad(loss, [x, *space.parameters()]))

    y, state = space(x)
    loops = [naive(space, row) for row in x]
    expected = gradients(torch.stack([y for y, _ in loops]), torch.stack([h for _, h in loops]))
    names = ["x", *(name for name, _ in space.named_parameters())]
    for name, actual, loop in zip(names, gradients(y, state.hidden), expected, strict=True):
        torch.testing.assert_close(actual, loop, **TIGHT, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("length", [1, 2, CHUNK + 3, 2 * CHUNK + 1])
def test_the_gradient_of_the_scan_equals_finite_differences(length):
    torch.manual_seed(1)
    shapes = [(2, length, 3), (3, 2), (2, length, 3), (2, length, 2), (2, length, 2), (2, 3, 2)]
    delta, a, *others = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    inputs = [t.requires_grad_() for t in (softplus(delta), -torch.exp(a), *others)]
    assert torch.autograd.gradcheck(SelectiveScan.apply, inputs)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_scan_equals_a_loop_in_both_directions(length, reverse):
    torch.manual_seed(1)
    decay = torch.rand(2, length, 3, 5, dtype=torch.float64)
    b, initial = torch.randn_like(decay), torch.randn(2, 3, 5, dtype=torch.float64)
    expected, last = torch.empty_like(b), initial
    for t in reversed(range(length)) if reverse else range(length):
        last = expected[:, t] = decay[:, t] * last + b[:, t]
    h = b.clone()
    scan(decay, h, initial, reverse)
    assert_close(h, expected)


@torch.no_grad()
@pytest.mark.parametrize("sizes", [[1] * 41, [40, 1], [1, 40], [17, 3, 1, 20], [2, 2, 37]])
def test_chunks_equal_one_call(sizes):
    space, x = make(), tokens(41)
    expected, end = space(x)
    outputs, state = [], None
    for chunk in x.split(sizes, dim=1):
        y, state = space(chunk, None, state)
        outputs.append(y)
    assert_close(torch.cat(outputs, dim=1), expected)
    assert_same(state, end)


def add_padding(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Each row's first tokens where its mask is True, arbitrary values elsewhere."""
    padded = torch.full((*mask.shape, D_MODEL), 1e3, dtype=x.dtype)
    for row, real in enumerate(mask):
        padded[row, real] = x[row, : int(real.sum())]
    return padded


def masks(where: str) -> torch.Tensor:
    index, lengths = torch.arange(43), torch.tensor([41, 2, 17])
    if where == "right":
        return index < lengths[:, None]
    if where == "left":
        return index >= 43 - lengths[:, None]
    random = torch.Generator().manual_seed(5)
    return torch.stack([torch.randperm(43, generator=random) < length for length in lengths])


@torch.no_grad()
@pytest.mark.parametrize("where", ["left", "right", "middle"])
def test_padding_has_no_effect_at_any_position(where):
    space, mask = make(), masks(where)
    x = tokens(41)
    _, previous = space(tokens(5))
    for before in (None, previous):
        y, state = space(add_padding(x, mask), mask, before)
        assert (y[~mask] == 0).all()
        for row, real in enumerate(mask):
            one = None if before is None else before.select(torch.tensor([row]))
            expected, end = space(x[row : row + 1, : int(real.sum())], None, one)
            assert_close(y[row, real], expected[0])
            assert_same(state.select(torch.tensor([row])), end)


@torch.no_grad()
def test_a_row_of_padding_keeps_its_state():
    space = make()
    _, before = space(tokens(5))
    mask = torch.tensor([[False] * 3, [True] * 3, [False] * 3])
    _, after = space(tokens(3), mask, before)
    for row in (0, 2):
        assert_same(*(state.select(torch.tensor([row])) for state in (after, before)))
    _, initial = space(tokens(3), mask)
    assert (initial.hidden[0] == 0).all()
    assert (initial.window[0] == 0).all()


@torch.no_grad()
def test_padded_chunks_equal_one_call():
    space, mask = make(), masks("middle")
    x = add_padding(tokens(41), mask)
    expected, end = space(x, mask)
    first, state = space(x[:, :19], mask[:, :19])
    second, state = space(x[:, 19:], mask[:, 19:], state)
    assert_close(torch.cat([first, second], dim=1), expected)
    assert_same(state, end)


def test_padding_gets_no_gradient_and_may_be_nan():
    space, mask = make(), masks("middle")
    x = tokens(43).masked_fill(~mask[..., None], float("nan")).requires_grad_()
    y, state = space(x, mask)
    (y.square().sum() + state.hidden.square().sum()).backward()
    assert x.grad.isfinite().all()
    assert (x.grad[~mask] == 0).all()
    assert (x.grad[mask].abs().sum(-1) > 0).all()
    for name, parameter in space.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@torch.no_grad()
@pytest.mark.parametrize("t", [0, 1, CHUNK, 40])
def test_the_output_is_causal(t):
    space, x = make(), tokens(41)
    before, changed = space(x)[0], x.clone()
    changed[:, t] += 1.0
    after = space(changed)[0]
    assert torch.equal(after[:, :t], before[:, :t])
    change = (after - before).abs().amax(-1)
    assert change[:, t:].min() > 0  # every later token depends on it


@torch.no_grad()
def test_the_state_has_constant_size_and_follows_select():
    space, x = make(), tokens(41)
    for length in (1, 2, 41):
        _, state = space(x[:, :length])
        assert state.window.shape == (BATCH, 2 * D_MODEL, KERNEL - 1)
        assert state.hidden.shape == (BATCH, 2 * D_MODEL, STATE)
        for tensor in (state.window, state.hidden):  # and keeps no longer tensor alive
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    _, state = space(x[:, :9])
    rows = torch.tensor([2, 0, 0, 1])
    branch = state.copy()
    expected, _ = space(x)
    y, _ = space(x[rows, 9:], None, state.select(rows))
    assert_close(y, expected[rows, 9:])
    assert_close(space(x[:, 9:], None, branch)[0], expected[:, 9:])


@pytest.mark.parametrize("shift", [-30.0, 5.0, 80.0])
def test_long_sequences_and_extreme_time_scales_stay_finite(shift):
    space = make().float()
    with torch.no_grad():
        space.dt_proj.bias += shift
    y, state = space(tokens(3000, batch=1).float())
    (y.sum() + state.hidden.sum()).backward()
    assert y.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in space.parameters())


@torch.no_grad()
def test_float32_is_close_to_float64_over_a_long_sequence():
    space, x = make(), tokens(1000)
    expected = space(x)[0]
    torch.testing.assert_close(space.float()(x.float())[0].double(), expected, atol=1e-5, rtol=1e-3)


class Cast(nn.Module):
    """A layer with bfloat16 output, as under autocast; it computes in float32."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x.float()).bfloat16()


def test_the_scan_runs_in_float32_inside_a_bfloat16_model():
    space, x = make().float(), tokens(19).bfloat16()
    expected, end = space(x.float())
    kernel = space.conv1d.kernel_size
    for name in ("in_proj", "conv1d", "x_proj", "dt_proj", "out_proj"):
        setattr(space, name, Cast(getattr(space, name)))
    space.conv1d.kernel_size = kernel
    y, state = space(x)
    assert (y.dtype, state.window.dtype, state.hidden.dtype) == (
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
    )
    torch.testing.assert_close(y.float(), expected, atol=0.02, rtol=0.05)
    torch.testing.assert_close(state.hidden, end.hidden, atol=0.02, rtol=0.05)
    again, after = space(x[:, :1], None, state)
    assert (again.dtype, after.hidden.dtype) == (torch.bfloat16, torch.float32)
    y.float().sum().backward()
    assert space.A_log.grad.dtype == torch.float32
    assert space.A_log.grad.isfinite().all()


def test_nothing_waits_for_a_value_from_the_device():
    """Fake tensors have shapes but no values: reading a value or indexing by a mask is an error."""
    with FakeTensorMode():
        space, x = StateSpace(D_MODEL), torch.randn(BATCH, 41, D_MODEL)
        mask = torch.rand(BATCH, 41) < 0.5
        y, state = space(x, mask)
        y, state = space(x, mask, state)
        y.sum().backward()
    assert y.shape == x.shape
    assert state.hidden.shape == (BATCH, 2 * D_MODEL, 16)


def test_the_initialisation_follows_the_paper():
    torch.manual_seed(1)
    space = StateSpace(64)
    assert torch.equal(space.D, torch.ones(128))
    expected = -torch.arange(1.0, 17).expand(128, 16)
    torch.testing.assert_close(-torch.exp(space.A_log), expected)
    dt = softplus(space.dt_proj.bias.detach())
    assert 1e-3 * 0.999 <= dt.min() < 2e-3
    assert 0.05 < dt.max() <= 0.1 * 1.001
    median = float(dt.log().median())
    assert median == pytest.approx(math.log(1e-2), abs=0.5)
    assert space.rank == 4


def test_compact_gives_the_new_index_of_each_token():
    mask = torch.tensor([[False, True, True, False], [True] * 4, [False] * 4])
    assert compaction_index(mask).tolist() == [[2, 0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
