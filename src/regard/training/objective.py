"""What training minimises."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.models.interface import Model
from regard.text.batch import Batch
from regard.text.tokenizer import PAD

ROWS_AT_ONCE = {"cpu": 1024, "cuda": 16_384}


def objective(model: Model, batch: Batch, label_smoothing: float) -> Float[Tensor, ""]:
    """Mean cross-entropy over the real target tokens."""
    features = model.features(model.encode(batch.source, batch.source_mask), batch.target)
    wanted = batch.labels
    if features.device.type == "cpu":
        # The output map is the dearest part of a small model: no padding goes through it. On a GPU
        # the padding stays, because dropping it would make the host wait to learn how much is left.
        features, wanted = features[batch.target_mask], wanted[batch.target_mask]
    return cross_entropy(
        features.flatten(0, -2), *model.output_projection, wanted.flatten(), label_smoothing
    )


def cross_entropy(
    features: Float[Tensor, "rows features"],
    weight: Float[Tensor, "vocab features"],
    bias: Float[Tensor, " vocab"] | None,
    wanted: Int[Tensor, " rows"],
    smoothing: float,
) -> Float[Tensor, ""]:
    """Mean over the rows that are no padding of -sum_w y_w log softmax(W f + b)_w.

    y is 1 - smoothing at the wanted word plus smoothing / vocab everywhere. Loss and gradient come
    from one pass over some rows at a time: nothing of the size rows x vocab is kept for later.
    """
    return ProjectedCrossEntropy.apply(features, weight, bias, wanted, smoothing)


class ProjectedCrossEntropy(torch.autograd.Function):
    """The gradient by the logits is at hand when the loss is: softmax(W f + b) - y.

    Only the softmax and the wanted words' part of y touch anything of the size rows x vocab; the
    smoothing, the same for every word, goes through W as one vector.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        wanted: Tensor,
        smoothing: float,
    ) -> Tensor:
        real = wanted != PAD
        # Sums in float32 at least: half precision is for products.
        exact = torch.promote_types(features.dtype, torch.float32)
        share = (real.to(exact) / real.sum())[:, None]
        mean_weight = weight.mean(0, dtype=exact)
        mean_bias = 0.0 if bias is None else bias.mean(dtype=exact)
        total = torch.zeros((), dtype=exact, device=features.device)
        by_features = torch.empty_like(features)
        # What is frozen needs no gradient, and the weight's is a third of the work.
        needed = ctx.needs_input_grad
        by_weight = torch.zeros_like(weight) if needed[1] else None
        by_bias = torch.zeros_like(bias) if bias is not None and needed[2] else None
        step = ROWS_AT_ONCE[features.device.type]
        for start in range(0, len(wanted), step):
            rows = slice(start, start + step)
            part, words, counts = features[rows], wanted[rows, None], share[rows]
            logits = nn.functional.linear(part, weight, bias)
            error = logits.softmax(-1)
            # A chance too small for its type would cost infinitely much; so it costs very much.
            nats = -error.gather(1, words).to(exact).clamp(min=torch.finfo(exact).tiny).log()
            if smoothing:
                whole = logits.gather(1, words) + nats  # log sum exp
                mean = (part.to(exact) @ mean_weight + mean_bias)[:, None]
                nats = (1 - smoothing) * nats + smoothing * (whole - mean)
            total += (nats * counts).sum()
            error.scatter_add_(1, words, error.new_full(words.shape, smoothing - 1))
            shared = part * counts.to(part.dtype)
            by_features[rows] = (error @ weight - smoothing * mean_weight.to(part)) * counts.to(
                part
            )
            if by_weight is not None:
                by_weight.addmm_(error.T, shared)
            if by_bias is not None:
                by_bias += counts.to(error)[:, 0] @ error
        even = smoothing / len(weight)
        if even and by_weight is not None:
            by_weight -= even * (share.T @ features.to(exact)).to(weight)
        if even and by_bias is not None:
            by_bias -= even
        ctx.save_for_backward(by_features, by_weight, by_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        by_features, by_weight, by_bias = ctx.saved_tensors
        scale = grads[0].to(by_features.dtype)
        found = (None if x is None else x * scale for x in (by_features, by_weight, by_bias))
        return *found, None, None
