"""The objective: mean cross-entropy without padding. The schedules: closed forms."""

import itertools
import math

import pytest
import torch

from regard.models import build
from regard.text.batch import EncodedPairs
from regard.training import objective as module
from regard.training.objective import cross_entropy, objective
from regard.training.schedule import SCHEDULES, learning_rate

SOURCE = [[4, 5, 6, 2], [7, 2], [5, 8, 9, 10, 4, 2]]
TARGET = [[5, 6], [4, 4, 9, 12, 7], []]


def naive_losses(logits: torch.Tensor, labels: list[int], smoothing: float) -> list[torch.Tensor]:
    """-(1 - s) log p(label) - s mean over the vocabulary of log p, one token at a time."""
    log_probs = logits.log_softmax(-1)
    return [
        -(1 - smoothing) * row[label] - smoothing * row.mean()
        for row, label in zip(log_probs, labels, strict=True)
    ]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_objective_equals_a_naive_loop(tiny, family: str, smoothing: float) -> None:
    torch.manual_seed(3)
    model = build(tiny(family).model, 11, 13, False).eval()
    losses = []
    for source, target in zip(SOURCE, TARGET, strict=True):
        mask = torch.ones(1, len(source), dtype=torch.bool)
        logits = model(torch.tensor([source]), mask, torch.tensor([[1, *target]]))
        losses += naive_losses(logits[0], [*target, 2], smoothing)
    loss = objective(model, EncodedPairs(SOURCE, TARGET).batch([0, 1, 2]), smoothing)
    assert loss.item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


@pytest.mark.parametrize("chunk_rows", [7, 1024])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("frozen", [True, False])
def test_cross_entropy_equals_pytorch(
    frozen: bool, smoothing: float, biased: bool, chunk_rows: int, monkeypatch
) -> None:
    """Loss and every gradient, with padding, in one chunk and in several."""
    monkeypatch.setitem(module.CHUNK_ROWS, "cpu", chunk_rows)
    random = torch.Generator().manual_seed(5)
    sizes = [(31, 5), (13, 5), (13,)][: 3 if biased else 2]
    tensors = [3 * torch.randn(s, generator=random, dtype=torch.double) for s in sizes]
    trainable = tensors[: 1 if frozen else 3]
    for tensor in trainable:
        tensor.requires_grad_()
    features, weight, *bias = tensors
    labels = torch.randint(0, 13, (31,), generator=random)
    assert (labels == 0).any()
    scale = torch.tensor(4.0)
    ours = cross_entropy(features, weight, bias[0] if bias else None, labels, smoothing, scale)
    logits = torch.nn.functional.linear(features, weight, *bias)
    theirs = torch.nn.functional.cross_entropy(
        logits, labels, ignore_index=0, label_smoothing=smoothing
    )
    torch.testing.assert_close(ours, 4 * theirs)
    for one, two in zip(
        torch.autograd.grad(ours * 3, trainable),
        torch.autograd.grad(theirs * 12, trainable),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


# --- R-Drop ---------------------------------------------------------------------------------------


def naive_r_drop(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float, r_drop: float
) -> torch.Tensor:
    """(H1 + H2) / 2 + r_drop (KL(p1 || p2) + KL(p2 || p1)) / 2, in whole log-probabilities."""
    one, two = (half.log_softmax(-1)[labels != 0] for half in logits.chunk(2))
    losses = [
        torch.nn.functional.cross_entropy(half, labels, ignore_index=0, label_smoothing=smoothing)
        for half in logits.chunk(2)
    ]
    divergences = (one.exp() * (one - two)).sum(-1) + (two.exp() * (two - one)).sum(-1)
    return sum(losses) / 2 + r_drop * divergences.mean() / 2


@pytest.mark.parametrize("chunk_rows", [7, 1024])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("frozen", [True, False])
def test_r_drop_equals_naive_autograd(
    frozen: bool, smoothing: float, biased: bool, chunk_rows: int, monkeypatch
) -> None:
    """Loss and every gradient, with padding and a loss scale, in one chunk and in several."""
    monkeypatch.setitem(module.CHUNK_ROWS, "cpu", chunk_rows)
    random = torch.Generator().manual_seed(5)
    sizes = [(62, 5), (13, 5), (13,)][: 3 if biased else 2]
    tensors = [torch.randn(s, generator=random, dtype=torch.double) for s in sizes]
    trainable = tensors[: 1 if frozen else 3]
    for tensor in trainable:
        tensor.requires_grad_()
    features, weight, *bias = tensors
    labels = torch.randint(0, 13, (31,), generator=random)
    assert (labels == 0).any()
    arguments = (features, weight, bias[0] if bias else None, labels.repeat(2), smoothing)
    ours = cross_entropy(*arguments, torch.tensor(4.0), 2.5)
    logits = torch.nn.functional.linear(features, weight, *bias)
    theirs = naive_r_drop(logits, labels, smoothing, 2.5)
    assert theirs > 1.5 * cross_entropy(*arguments)
    torch.testing.assert_close(ours, 4 * theirs)
    for one, two in zip(
        torch.autograd.grad(ours * 3, trainable),
        torch.autograd.grad(theirs * 12, trainable),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("tied", [True, False])
def test_r_drop_of_a_model_equals_naive_autograd(tiny, family: str, tied: bool) -> None:
    """Two passes with dropout: every gradient, also of a matrix that is embedding and projection."""
    table = tiny(family).model
    tie = {"tie_embeddings": tied} if "tie_embeddings" in type(table).model_fields else {}
    torch.manual_seed(3)
    model = build(table.model_copy(update=tie), 13, 13, True).double()
    batch = EncodedPairs(SOURCE, TARGET).batch([0, 1, 2])
    torch.manual_seed(7)
    loss = objective(model, batch, 0.1, 2.0, 1.5)
    torch.manual_seed(7)
    doubled = batch.repeat(2)
    assert len(doubled.source) == 6
    logits = model(doubled.source, doubled.source_mask, doubled.target)
    expected = naive_r_drop(logits.flatten(0, 1), batch.labels.flatten(), 0.1, 1.5)
    assert not torch.equal(*logits.chunk(2))
    torch.testing.assert_close(loss, 2 * expected)
    parameters = [p for p in model.parameters() if p.requires_grad]
    for one, two in zip(
        torch.autograd.grad(loss, parameters),
        torch.autograd.grad(2 * expected, parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_r_drop_without_dropout_is_the_plain_loss(tiny, family: str, smoothing: float) -> None:
    torch.manual_seed(3)
    model = build(tiny(family).model, 11, 13, False).eval()
    batch = EncodedPairs(SOURCE, TARGET).batch([0, 1, 2])
    parameters = [p for p in model.parameters() if p.requires_grad]
    plain, r_drop = (objective(model, batch, smoothing, 1.0, value) for value in (0.0, 5.0))
    torch.testing.assert_close(plain, r_drop)
    for one, two in zip(
        torch.autograd.grad(plain, parameters),
        torch.autograd.grad(r_drop, parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_divergence_of_improbable_tokens_is_finite(dtype: torch.dtype) -> None:
    """Probabilities that underflow to 0 in one of the passes, or in both."""
    logits = torch.tensor([[200.0, 0.0, -200.0], [0.0, 200.0, -200.0]], dtype=dtype)
    divergences, gradient = module.mutual_divergence(logits, logits.softmax(-1), torch.float32)
    assert divergences[:, 0].tolist() == [200.0, 200.0]
    torch.testing.assert_close(gradient, torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]]))


def test_small_divergence_in_float16_keeps_its_digits() -> None:
    """Computed in float32: in float16, log-probabilities near -8 have steps of 1/128."""
    random = torch.Generator().manual_seed(5)
    one = torch.randn(7, 1009, generator=random)
    two = one + torch.randn(7, 1009, generator=random) / 16
    logits = torch.cat([one, two]).half()
    exact = logits.double().log_softmax(-1)
    p, q = exact.chunk(2)
    expected = torch.cat([p.exp() * (p - q), q.exp() * (q - p)]).sum(-1).float()
    divergences, _ = module.mutual_divergence(logits, logits.softmax(-1), torch.float32)
    torch.testing.assert_close(divergences[:, 0], expected, rtol=0.02, atol=0)


# --- half precision, padding ----------------------------------------------------------------------


def test_probability_zero_has_a_finite_loss() -> None:
    features = torch.tensor([[1000.0], [0.0]], requires_grad=True)
    weight = torch.tensor([[0.0], [1.0], [0.0]], requires_grad=True)
    loss = cross_entropy(features, weight, None, torch.tensor([2, 2]), 0.0)
    loss.backward()
    assert 40 < loss.item() < 50
    assert features.grad is not None
    assert features.grad.isfinite().all()


def test_scale_keeps_small_gradients_in_float16() -> None:
    """Two improbable tokens over many rows: a scale of 1, or one applied later, would leave 0."""
    rows = 9973

    def gradient(dtype: torch.dtype, scale: float) -> torch.Tensor:
        features = torch.zeros(rows, 1, dtype=dtype, requires_grad=True)
        weight = torch.tensor([[0.0], [1.0], [1.0], [0.0]], dtype=dtype)
        bias = torch.tensor([0.0, 0.0, 0.0, 9.0], dtype=dtype)
        loss = cross_entropy(features, weight, bias, torch.full((rows,), 3), 0.0, scale)
        return torch.autograd.grad(loss, features)[0].float() / scale

    assert not gradient(torch.float16, 1.0).any()
    torch.testing.assert_close(
        gradient(torch.float16, 2.0**16), gradient(torch.float32, 1.0), rtol=0.01, atol=0.0
    )


def test_probability_zero_in_float16() -> None:
    """The loss of a token is at most log 2^24, where float16 ends, and finite."""
    features = torch.tensor([[100.0]], dtype=torch.float16)
    weight = torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.float16)
    loss = cross_entropy(features, weight, None, torch.tensor([2]), 0.0)
    assert loss.item() == pytest.approx(24 * math.log(2))


@pytest.mark.parametrize("r_drop", [0.0, 2.5])
def test_padding_changes_nothing(tiny, family: str, r_drop: float) -> None:
    """Neither its amount nor its ids change loss or gradients."""
    torch.manual_seed(3)
    model = build(tiny(family).model, 11, 13, False).eval()
    batch = EncodedPairs(SOURCE, TARGET).batch([0, 1, 2])
    wide = EncodedPairs([*SOURCE, [4] * 17], [*TARGET, [5] * 19]).batch([0, 1, 2, 3])
    wide = type(wide)(*(getattr(wide, name)[:3].clone() for name in wide.__dataclass_fields__))
    for name in ("target", "labels"):
        getattr(wide, name)[~wide.target_mask] = 7
    wide.source[~wide.source_mask] = 9
    results = []
    for padded in batch, wide:
        model.zero_grad()
        loss = objective(model, padded, 0.1, 1.0, r_drop)
        loss.backward()
        results.append((loss.item(), [p.grad.clone() for p in model.parameters()]))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    for one, two in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_warmup_is_linear(name: str) -> None:
    rates = [learning_rate(SCHEDULES[name], 3.0, step, 5, progress=0.0) for step in range(5)]
    assert rates == pytest.approx([0.6, 1.2, 1.8, 2.4, 3.0])


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_warmup_the_first_step_has_the_peak(name: str) -> None:
    assert learning_rate(SCHEDULES[name], 3.0, 0, 0, progress=0.0) == 3.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_never_rises_after_the_warmup(name: str) -> None:
    rates = [
        learning_rate(SCHEDULES[name], 3.0, step, 5, progress=step / 50) for step in range(4, 51)
    ]
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates))


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("linear", lambda step: 3 * (1 - step / 50)),
        ("cosine", lambda step: 1.5 * (1 + math.cos(math.pi * step / 50))),
        ("inverse-sqrt", lambda step: 3 * math.sqrt(5 / (step + 1))),
        ("constant", lambda step: 3.0),
    ],
)
def test_closed_form(name: str, formula) -> None:
    for step in (5, 17, 25, 49):
        assert learning_rate(SCHEDULES[name], 3.0, step, 5, step / 50) == pytest.approx(
            formula(step)
        )


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("progress", [1.0, 1.01])
def test_ends_at_zero(name: str, progress: float) -> None:
    assert learning_rate(SCHEDULES[name], 3.0, 50, 5, progress) == pytest.approx(0.0, abs=1e-12)


def test_every_schedule_of_the_config_exists() -> None:
    from typing import get_args

    from regard.config import Training

    assert set(get_args(Training.model_fields["schedule"].annotation)) == set(SCHEDULES)
