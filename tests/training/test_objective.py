"""The objective is a mean cross-entropy over real tokens; the schedules have closed forms."""

import itertools
import math

import pytest
import torch

from regard.models import build
from regard.text.batch import Encoded
from regard.training.objective import objective
from regard.training.schedule import SCHEDULES, rate

SOURCE = [[4, 5, 6, 2], [7, 2], [5, 8, 9, 10, 4, 2]]
TARGET = [[5, 6], [4, 4, 9, 12, 7], []]


def naive(logits: torch.Tensor, wanted: list[int], smoothing: float) -> list[torch.Tensor]:
    """-(1 - s) log p(wanted) - s mean over the vocabulary of log p, a token at a time."""
    chances = logits.log_softmax(-1)
    return [
        -(1 - smoothing) * row[word] - smoothing * row.mean()
        for row, word in zip(chances, wanted, strict=True)
    ]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_objective(tiny, family: str, smoothing: float) -> None:
    torch.manual_seed(3)
    model = build(tiny(family).model, 11, 13, False).eval()
    costs = []
    for source, target in zip(SOURCE, TARGET, strict=True):
        mask = torch.ones(1, len(source), dtype=torch.bool)
        logits = model(torch.tensor([source]), mask, torch.tensor([[1, *target]]))
        costs += naive(logits[0], [*target, 2], smoothing)
    loss = objective(model, Encoded(SOURCE, TARGET).batch([0, 1, 2]), smoothing)
    assert loss.item() == pytest.approx(torch.stack(costs).mean().item(), rel=1e-5)


def test_padding_changes_nothing(tiny, family: str) -> None:
    """Neither how much there is nor which ids stand in it: loss and gradients are the same."""
    torch.manual_seed(3)
    model = build(tiny(family).model, 11, 13, False).eval()
    batch = Encoded(SOURCE, TARGET).batch([0, 1, 2])
    wide = Encoded([*SOURCE, [4] * 17], [*TARGET, [5] * 19]).batch([0, 1, 2, 3])
    wide = type(wide)(*(getattr(wide, name)[:3].clone() for name in wide.__dataclass_fields__))
    for name in ("target", "wanted"):
        getattr(wide, name)[~wide.target_mask] = 7
    wide.source[~wide.source_mask] = 9
    found = []
    for each in batch, wide:
        model.zero_grad()
        loss = objective(model, each, 0.1)
        loss.backward()
        found.append((loss.item(), [p.grad.clone() for p in model.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for one, two in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_warm_up_rises_evenly_to_the_peak(name: str) -> None:
    rates = [rate(SCHEDULES[name], 3.0, step, 5, progress=0.0) for step in range(5)]
    assert rates == pytest.approx([0.6, 1.2, 1.8, 2.4, 3.0])


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_warm_up_starts_at_the_peak(name: str) -> None:
    assert rate(SCHEDULES[name], 3.0, 0, 0, progress=0.0) == 3.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_never_rises_after_the_warm_up(name: str) -> None:
    rates = [rate(SCHEDULES[name], 3.0, step, 5, progress=step / 50) for step in range(4, 51)]
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
        assert rate(SCHEDULES[name], 3.0, step, 5, step / 50) == pytest.approx(formula(step))


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("progress", [1.0, 1.01])
def test_ends_at_zero(name: str, progress: float) -> None:
    assert rate(SCHEDULES[name], 3.0, 50, 5, progress) == pytest.approx(0.0, abs=1e-12)


def test_every_schedule_in_the_config_is_there() -> None:
    from typing import get_args

    from regard.config import Training

    assert set(get_args(Training.model_fields["schedule"].annotation)) == set(SCHEDULES)
