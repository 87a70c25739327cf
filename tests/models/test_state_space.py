"""The state-space mixer against a loop over its equations, and the laws of a state of constant size."""

import math
from dataclasses import fields

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import silu, softplus

from regard.models.state_space import CHUNK, MixerState, SelectiveScan, StateSpace, compact, scan

BATCH, WIDTH, STATE, KERNEL = 3, 7, 5, 4
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
    mixer = StateSpace(
        **{"d_model": WIDTH, "state_dim": STATE, "conv_kernel": KERNEL} | changes
    ).double()
    with torch.no_grad():  # away from the structure they start with
        for parameter in (mixer.a_log, mixer.skip, mixer.delta.bias):
            parameter += 0.3 * torch.randn_like(parameter)
        mixer.delta.bias += 2.0
    return mixer


def tokens(length: int, batch: int = BATCH) -> torch.Tensor:
    random = torch.Generator().manual_seed(length)
    return torch.randn(batch, length, WIDTH, generator=random, dtype=torch.float64)


def naive(mixer: StateSpace, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One row, one token after another, straight from the paper: (outputs, the last h)."""
    inner = mixer.leave.in_features
    weight, bias = mixer.convolution.weight[:, 0], mixer.convolution.bias  # [inner kernel], [inner]
    a = -torch.exp(mixer.a_log)
    inputs = [x.new_zeros(inner)] * (weight.shape[1] - 1)
    h, outputs = x.new_zeros(inner, mixer.state_dim), []
    for token in x:
        u, z = (mixer.enter.weight @ token).split(inner)
        inputs.append(u)
        recent = torch.stack(inputs[-weight.shape[1] :], dim=1)
        u = silu((weight * recent).sum(1) + bias)
        low, b, c = (mixer.select.weight @ u).split([mixer.rank, mixer.state_dim, mixer.state_dim])
        delta = softplus(mixer.delta.weight @ low + mixer.delta.bias)
        h = torch.exp(delta[:, None] * a) * h + delta[:, None] * b[None, :] * u[:, None]
        y = (h * c).sum(1) + mixer.skip * u
        outputs.append(mixer.leave.weight @ (y * silu(z)))
    return torch.stack(outputs), h


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, **TIGHT)


def same(found: MixerState, wanted: MixerState) -> None:
    for field in fields(MixerState):
        close(getattr(found, field.name), getattr(wanted, field.name))


@torch.no_grad()
@pytest.mark.parametrize("length", LENGTHS)
def test_it_is_the_papers_loop(length):
    mixer, x = make(), tokens(length)
    found, state = mixer(x)
    for row in range(BATCH):
        wanted, h = naive(mixer, x[row])
        close(found[row], wanted)
        close(state.hidden[row], h)


@torch.no_grad()
@pytest.mark.parametrize(
    "changes", [{"conv_kernel": 1}, {"conv_kernel": 2}, {"expand": 3}, {"state_dim": 1}]
)
def test_other_sizes_are_the_papers_loop_too(changes):
    mixer, x = make(**changes), tokens(37)
    found, state = mixer(x)
    close(found[1], naive(mixer, x[1])[0])
    pieces = [mixer(x[:, :5])]
    pieces.append(mixer(x[:, 5:], None, pieces[0][1]))
    close(torch.cat([y for y, _ in pieces], dim=1), found)
    same(pieces[1][1], state)


@pytest.mark.parametrize("length", [1, 3, CHUNK + 1, 3 * CHUNK + 5])
def test_gradients_are_the_loops(length):
    mixer, x = make(), tokens(length, batch=2).requires_grad_()
    weight = torch.randn(2, length, WIDTH, dtype=torch.float64)

    def gradients(y: torch.Tensor, h: torch.Tensor) -> list[torch.Tensor]:
        loss = (y * weight).sum() + h.square().sum()
        return list(torch.autograd.grad(loss, [x, *mixer.parameters()]))

    y, state = mixer(x)
    loops = [naive(mixer, row) for row in x]
    wanted = gradients(torch.stack([y for y, _ in loops]), torch.stack([h for _, h in loops]))
    names = ["x", *(name for name, _ in mixer.named_parameters())]
    for name, found, other in zip(names, gradients(y, state.hidden), wanted, strict=True):
        torch.testing.assert_close(found, other, **TIGHT, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("length", [1, 2, CHUNK + 3, 2 * CHUNK + 1])
def test_the_scans_gradient_is_the_finite_difference(length):
    torch.manual_seed(1)
    shapes = [(2, length, 3), (3, 2), (2, length, 3), (2, length, 2), (2, length, 2), (2, 3, 2)]
    delta, a, *others = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    inputs = [t.requires_grad_() for t in (softplus(delta), -torch.exp(a), *others)]
    assert torch.autograd.gradcheck(SelectiveScan.apply, inputs)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_scan_is_a_loop_in_either_direction(length, back):
    torch.manual_seed(1)
    keep = torch.rand(2, length, 3, 5, dtype=torch.float64)
    b, start = torch.randn_like(keep), torch.randn(2, 3, 5, dtype=torch.float64)
    wanted, last = torch.empty_like(b), start
    for t in reversed(range(length)) if back else range(length):
        last = wanted[:, t] = keep[:, t] * last + b[:, t]
    found = b.clone()
    scan(keep, found, start, back)
    close(found, wanted)


@torch.no_grad()
@pytest.mark.parametrize("sizes", [[1] * 41, [40, 1], [1, 40], [17, 3, 1, 20], [2, 2, 37]])
def test_any_split_is_reading_at_once(sizes):
    mixer, x = make(), tokens(41)
    wanted, end = mixer(x)
    outputs, state = [], None
    for piece in x.split(sizes, dim=1):
        y, state = mixer(piece, None, state)
        outputs.append(y)
    close(torch.cat(outputs, dim=1), wanted)
    same(state, end)


def padded(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Each row's first tokens where its mask is True, garbage elsewhere."""
    wide = torch.full((*mask.shape, WIDTH), 1e3, dtype=x.dtype)
    for row, real in enumerate(mask):
        wide[row, real] = x[row, : int(real.sum())]
    return wide


def masks(where: str) -> torch.Tensor:
    place, lengths = torch.arange(43), torch.tensor([41, 2, 17])
    if where == "right":
        return place < lengths[:, None]
    if where == "left":
        return place >= 43 - lengths[:, None]
    random = torch.Generator().manual_seed(5)
    return torch.stack([torch.randperm(43, generator=random) < length for length in lengths])


@torch.no_grad()
@pytest.mark.parametrize("where", ["left", "right", "middle"])
def test_padding_is_not_there_wherever_it_stands(where):
    mixer, mask = make(), masks(where)
    x = tokens(41)
    _, past = mixer(tokens(5))
    for before in (None, past):
        found, state = mixer(padded(x, mask), mask, before)
        assert (found[~mask] == 0).all()
        for row, real in enumerate(mask):
            one = None if before is None else before.select(torch.tensor([row]))
            wanted, end = mixer(x[row : row + 1, : int(real.sum())], None, one)
            close(found[row, real], wanted[0])
            same(state.select(torch.tensor([row])), end)


@torch.no_grad()
def test_a_row_of_padding_alone_leaves_its_state_as_it_was():
    mixer = make()
    _, past = mixer(tokens(5))
    mask = torch.tensor([[False] * 3, [True] * 3, [False] * 3])
    _, after = mixer(tokens(3), mask, past)
    for row in (0, 2):
        same(*(state.select(torch.tensor([row])) for state in (after, past)))
    _, nothing = mixer(tokens(3), mask)
    assert (nothing.hidden[0] == 0).all()
    assert (nothing.window[0] == 0).all()


@torch.no_grad()
def test_splits_may_be_padded_too():
    mixer, mask = make(), masks("middle")
    x = padded(tokens(41), mask)
    wanted, end = mixer(x, mask)
    first, state = mixer(x[:, :19], mask[:, :19])
    second, state = mixer(x[:, 19:], mask[:, 19:], state)
    close(torch.cat([first, second], dim=1), wanted)
    same(state, end)


def test_no_gradient_reaches_the_padding_and_nothing_in_it_does_harm():
    mixer, mask = make(), masks("middle")
    x = tokens(43).masked_fill(~mask[..., None], float("nan")).requires_grad_()
    y, state = mixer(x, mask)
    (y.square().sum() + state.hidden.square().sum()).backward()
    assert x.grad.isfinite().all()
    assert (x.grad[~mask] == 0).all()
    assert (x.grad[mask].abs().sum(-1) > 0).all()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@torch.no_grad()
@pytest.mark.parametrize("t", [0, 1, CHUNK, 40])
def test_the_past_does_not_see_the_future(t):
    mixer, x = make(), tokens(41)
    before, changed = mixer(x)[0], x.clone()
    changed[:, t] += 1.0
    after = mixer(changed)[0]
    assert torch.equal(after[:, :t], before[:, :t])
    moved = (after - before).abs().amax(-1)
    assert moved[:, t:].min() > 0  # and everything later remembers


@torch.no_grad()
def test_the_state_has_one_size_and_follows_rows():
    mixer, x = make(), tokens(41)
    for length in (1, 2, 41):
        _, state = mixer(x[:, :length])
        assert state.window.shape == (BATCH, 2 * WIDTH, KERNEL - 1)
        assert state.hidden.shape == (BATCH, 2 * WIDTH, STATE)
        for tensor in (state.window, state.hidden):  # nor does it hold on to what was read
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    _, state = mixer(x[:, :9])
    rows = torch.tensor([2, 0, 0, 1])
    branch = state.copy()
    wanted, _ = mixer(x)
    y, _ = mixer(x[rows, 9:], None, state.select(rows))
    close(y, wanted[rows, 9:])
    close(mixer(x[:, 9:], None, branch)[0], wanted[:, 9:])


@pytest.mark.parametrize("shift", [-30.0, 5.0, 80.0])
def test_long_texts_and_extreme_paces_stay_finite(shift):
    mixer = make().float()
    with torch.no_grad():
        mixer.delta.bias += shift
    y, state = mixer(tokens(3000, batch=1).float())
    (y.sum() + state.hidden.sum()).backward()
    assert y.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@torch.no_grad()
def test_single_precision_is_near_double_over_a_long_text():
    mixer, x = make(), tokens(1000)
    wanted = mixer(x)[0]
    torch.testing.assert_close(mixer.float()(x.float())[0].double(), wanted, atol=1e-5, rtol=1e-3)


class Cast(nn.Module):
    """A map that answers in bfloat16, as under autocast; the product itself is single precision."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inside(x.float()).bfloat16()


def test_the_scan_is_in_single_precision_whatever_surrounds_it():
    mixer, x = make().float(), tokens(19).bfloat16()
    wanted, end = mixer(x.float())
    kernel = mixer.convolution.kernel_size
    for name in ("enter", "convolution", "select", "delta", "leave"):
        setattr(mixer, name, Cast(getattr(mixer, name)))
    mixer.convolution.kernel_size = kernel
    y, state = mixer(x)
    assert (y.dtype, state.window.dtype, state.hidden.dtype) == (
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
    )
    torch.testing.assert_close(y.float(), wanted, atol=0.02, rtol=0.05)
    torch.testing.assert_close(state.hidden, end.hidden, atol=0.02, rtol=0.05)
    again, after = mixer(x[:, :1], None, state)
    assert (again.dtype, after.hidden.dtype) == (torch.bfloat16, torch.float32)
    y.float().sum().backward()
    assert mixer.a_log.grad.dtype == torch.float32
    assert mixer.a_log.grad.isfinite().all()


def test_nothing_depends_on_a_number_that_only_the_device_knows():
    """Fake tensors have shapes and no values: to read one, or to index by a mask, is an error."""
    with FakeTensorMode():
        mixer, x = StateSpace(WIDTH), torch.randn(BATCH, 41, WIDTH)
        mask = torch.rand(BATCH, 41) < 0.5
        y, state = mixer(x, mask)
        y, state = mixer(x, mask, state)
        y.sum().backward()
    assert y.shape == x.shape
    assert state.hidden.shape == (BATCH, 2 * WIDTH, 16)


def test_it_starts_as_the_paper_says():
    torch.manual_seed(1)
    mixer = StateSpace(64)
    assert torch.equal(mixer.skip, torch.ones(128))
    wanted = -torch.arange(1.0, 17).expand(128, 16)
    torch.testing.assert_close(-torch.exp(mixer.a_log), wanted)
    pace = softplus(mixer.delta.bias.detach())
    assert 1e-3 * 0.999 <= pace.min() < 2e-3
    assert 0.05 < pace.max() <= 0.1 * 1.001
    middle = float(pace.log().median())
    assert middle == pytest.approx(math.log(1e-2), abs=0.5)
    assert mixer.rank == 4


def test_compact_says_where_each_token_goes():
    mask = torch.tensor([[False, True, True, False], [True] * 4, [False] * 4])
    assert compact(mask).tolist() == [[2, 0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
