"""Our dropout behaves like PyTorch's, with cheaper random numbers."""

import pytest
import torch

from regard.models.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(401, 503), (7, 11, 2609)])
def test_the_dropped_fraction_and_the_scale_of_the_rest(p: float, shape) -> None:
    torch.manual_seed(1)
    x = torch.ones(shape)
    y = Dropout(p)(x)
    values = y.unique()
    assert values[0] == 0
    assert values[1].item() == pytest.approx(1 / (1 - p), rel=1e-4)
    assert len(values) == 2
    error = (p * (1 - p) / x.numel()) ** 0.5  # standard error of the fraction of zeros
    assert abs((y == 0).double().mean().item() - p) < 5 * error + 1 / 2**16


def test_adjacent_elements_are_dropped_independently() -> None:
    """Four elements share one 64-bit draw, and must not be correlated."""
    torch.manual_seed(2)
    kept = (Dropout(0.3)(torch.ones(100_000, 4)) > 0).double()
    correlation = torch.corrcoef(kept.T)
    assert (correlation - torch.eye(4)).abs().max() < 0.02


def test_the_gradient_has_the_same_mask() -> None:
    torch.manual_seed(3)
    x = torch.randn(13, 17, requires_grad=True)
    y = Dropout(0.5)(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_the_seed_determines_the_mask() -> None:
    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return Dropout(0.5)(torch.ones(97))

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_evaluation_mode_is_the_identity(p: float) -> None:
    x = torch.randn(5, 3)
    assert torch.equal(Dropout(p).eval()(x), x)
    if p == 0.0:
        assert torch.equal(Dropout(p)(x), x)
