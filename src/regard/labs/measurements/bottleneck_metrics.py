"""Measurements for `bottleneck`: gradients at source positions, and a fit of the letters stored."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.models import Model
from regard.models.recurrent import RecurrentMemory
from regard.text.batch import Batch

Gradient = Float[Tensor, "batch source embedding"]


def source_gradient(model: Model, batch: Batch, output: int, detached: str = "") -> Gradient:
    """Gradient of one output's loss w.r.t. the source embeddings.

    The memory has two parts, "initial" (the decoder's start state) and "states" (which attention reads): no
    gradient flows through the `detached` one.
    """
    embedded: list[Tensor] = []
    embedding = next(part for part in model.modules() if isinstance(part, torch.nn.Embedding))
    hook = embedding.register_forward_hook(lambda *args: embedded.append(args[2]))
    memory = model.encode(batch.source, batch.source_mask)
    hook.remove()
    assert isinstance(memory, RecurrentMemory)
    if detached:
        memory = replace(memory, **{detached: getattr(memory, detached).detach()})
    logits = model.project(model.features(memory, batch.target))[:, output]
    loss = cross_entropy(logits, batch.labels[:, output], reduction="sum")
    return torch.autograd.grad(loss, embedded[0], materialize_grads=True)[0]


def gradient_norms(model: Model, batch: Batch, output: int) -> list[float]:
    """Mean norm, at each source position, of the gradient of one output's loss."""
    # float64: squares of 1e-30 underflow in float32
    return source_gradient(model, batch, output).double().norm(dim=-1).mean(0).tolist()


def path_difference(model: Model, batch: Batch, output: int) -> float:
    """|g - g_start - g_attention| / |g|: the paths through start state and attention are all there are.

    0 if all three are 0: where every ReLU of the start state is dead, and there is no attention.
    """
    whole, attention, start = (
        source_gradient(model, batch, output, detached).double()
        for detached in ("", "initial", "states")
    )
    difference = float((whole - start - attention).norm())
    return difference / float(whole.norm()) if difference else 0.0


def hidden_states_change(model: Model, batch: Batch) -> float:
    """Largest change of a logit when noise replaces the encoder states, and only the start state stays."""
    with torch.inference_mode():
        memory = model.encode(batch.source, batch.source_mask)
        noise = replace(memory, states=torch.randn_like(memory.states))
        logits = [model.project(model.features(part, batch.target)) for part in (memory, noise)]
    return float((logits[0] - logits[1]).abs().max())


@dataclass(frozen=True)
class GeometricDecay:
    """|g_j| ~ r^(n - j): the factor r of one step, and the share of the variance of ln |g| explained."""

    factor: float
    explained: float

    @classmethod
    def fit(cls, norms: Sequence[float]) -> "GeometricDecay | None":
        """Regression of ln |g_j| on the source position j, where |g_j| > 0; None for less than 3 of them."""
        positions = np.flatnonzero(norms)  # also those with NaN
        if len(positions) < 3:
            return None
        logs = np.log(np.array(norms)[positions])
        slope, intercept = np.polyfit(positions, logs, 1)
        residual = logs - slope * positions - intercept
        return cls(float(np.exp(-slope)), float(1 - residual.var() / logs.var()))


# --- letters stored -------------------------------------------------------------------------------


def expected_accuracy(capacity: float, length: float, guess: float) -> float:
    """(K + (n + 1 - K) c) / (n + 1): K of n letters and the end token are known, the others guessed"""
    known = min(capacity, length + 1)
    return (known + (length + 1 - known) * guess) / (length + 1)


@dataclass(frozen=True)
class CapacityFit:
    """The closed form fitted to accuracies: K, the accuracy c of a guess, K's error, RMS residual."""

    capacity: float
    guess: float
    error: float
    residual: float

    def predict(self, length: float) -> float:
        return expected_accuracy(self.capacity, length, self.guess)


def fit_capacity(
    lengths: Sequence[float], accuracies: Sequence[float], letters: int
) -> CapacityFit:
    """Least squares over K >= 0 and 0 <= c <= 1/a: no guess of a uniform letter is better than 1/a."""
    tokens, measured = np.array(lengths) + 1, np.array(accuracies)
    grid = np.arange(0, tokens.max(), 0.01)
    unknown = 1 - np.minimum(grid[:, None], tokens) / tokens  # [K, length]
    squares = (unknown**2).sum(1)
    slopes = (unknown * (measured - 1 + unknown)).sum(1) / np.where(squares > 0, squares, 1)
    guesses = slopes.clip(0, 1 / letters)
    errors = ((1 - unknown + unknown * guesses[:, None] - measured) ** 2).sum(1)
    best = errors.argmin()  # of a NaN, if there is one
    known_slopes = ((1 - guesses[best]) / tokens[tokens > grid[best]]) ** 2
    variance = errors[best] / max(len(tokens) - 1, 1) / max(known_slopes.sum(), 1e-9)
    residual = np.sqrt(errors[best] / len(tokens))
    return CapacityFit(*map(float, (grid[best], guesses[best], np.sqrt(variance), residual)))
