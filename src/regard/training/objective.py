"""The training loss: mean cross-entropy with label smoothing (Szegedy et al., 2016), and R-Drop."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.models.interface import Model
from regard.text.batch import Batch
from regard.text.tokenizer import PAD

CHUNK_ROWS = {"cpu": 1024, "cuda": 16_384, "mps": 4096}
FLOAT16_SMALLEST = 2.0**-24


def objective(
    model: Model,
    batch: Batch,
    label_smoothing: float,
    loss_scale: Float[Tensor, ""] | float = 1.0,
    r_drop: float = 0.0,
) -> Float[Tensor, ""]:
    """loss_scale times the mean over the target tokens that are not padding of the cross-entropy H or,
    with R-Drop (Liang et al., 2021), of

        (H1 + H2) / 2 + r_drop (KL(p1 || p2) + KL(p2 || p1)) / 2

    where p1 and p2 are the predictions of two passes with different dropout. That is half of the paper's
    loss with alpha = 2 r_drop: its alpha = 5 for translation is r_drop = 2.5.
    """
    if r_drop:
        batch = batch.repeat(2)
    features = model.features(model.encode(batch.source, batch.source_mask), batch.target)
    labels = batch.labels
    if features.device.type == "cpu":
        # The output projection is the most expensive part of a small model, so it skips padding. On a
        # GPU the padding stays: to drop it, the host would have to wait for the number of rows left.
        features, labels = features[batch.target_mask], labels[batch.target_mask]
    projection = (features.flatten(0, -2), *model.output_projection)
    return cross_entropy(*projection, labels.flatten(), label_smoothing, loss_scale, r_drop)


def cross_entropy(
    features: Float[Tensor, "rows features"],
    weight: Float[Tensor, "vocab features"],
    bias: Float[Tensor, " vocab"] | None,
    labels: Int[Tensor, " rows"],
    smoothing: float,
    scale: Float[Tensor, ""] | float = 1.0,
    r_drop: float = 0.0,
) -> Float[Tensor, ""]:
    """Scale times the mean over the rows that are not padding of -sum_w y_w log softmax(W f + b)_w.

    y is 1 - smoothing at the label plus smoothing / vocab everywhere. With `r_drop`, the second half of
    the rows is another pass over the first half, and r_drop times the KL divergence from the same token's
    row in the other half is added to the loss of each row.

    Loss and gradient are computed together, some rows at a time: no tensor of size rows x vocab is stored
    for the backward pass. The scale is applied here, not to the result: by then small gradients have
    become 0 in float16.
    """
    return ProjectedCrossEntropy.apply(features, weight, bias, labels, smoothing, scale, r_drop)


class ProjectedCrossEntropy(torch.autograd.Function):
    """The forward pass also computes the gradients; that of the logits is softmax(W f + b) - y, with R-Drop
    plus r_drop times that of `mutual_divergence`.

    Only the softmax, the labels' part of y and the divergence touch a tensor of size rows x vocab; the
    smoothing, the same for every token, goes through W as one vector.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        loss_scale: Tensor | float,
        r_drop: float,
    ) -> Tensor:
        is_token = labels != PAD
        # Sums in float32 at least: lower precision is for matrix multiplications only.
        dtype = torch.promote_types(features.dtype, torch.float32)
        # At least 1: of several processes, one may have no row of a small batch.
        count = is_token.sum().clamp(min=1)
        row_weights = (is_token.to(dtype) / count * loss_scale)[:, None]
        mean_weight = weight.mean(0, dtype=dtype)
        mean_bias = 0.0 if bias is None else bias.mean(dtype=dtype)
        loss = torch.zeros((), dtype=dtype, device=features.device)
        features_grad = torch.empty_like(features)
        # Frozen parameters need no gradient, and the weight's is a third of the work.
        needed = ctx.needs_input_grad
        weight_grad = torch.zeros_like(weight) if needed[1] else None
        bias_grad = torch.zeros_like(bias) if bias is not None and needed[2] else None
        smallest = FLOAT16_SMALLEST if features.dtype == torch.float16 else torch.finfo(dtype).tiny
        # A chunk of R-Drop has both rows of each of its tokens, and twice as many tensors of this size.
        passes = 2 if r_drop else 1
        chunk_rows = max(CHUNK_ROWS[features.device.type] // passes**2, 1)
        by_pass = [x.unflatten(0, (passes, -1)) for x in (features, labels[:, None], row_weights)]
        grad_by_pass = features_grad.unflatten(0, (passes, -1))
        for start in range(0, len(labels) // passes, chunk_rows):
            rows = slice(start, start + chunk_rows)
            chunk, chunk_labels, scale = (x[:, rows].flatten(0, 1) for x in by_pass)
            logits = nn.functional.linear(chunk, weight, bias)
            probs = logits.softmax(-1)
            # A probability that underflows to 0 gives a large loss, not an infinite one.
            losses = -probs.gather(1, chunk_labels).to(dtype).clamp(min=smallest).log()
            if smoothing:
                log_sum_exp = logits.gather(1, chunk_labels) + losses
                mean_logits = (chunk.to(dtype) @ mean_weight + mean_bias)[:, None]
                losses = (1 - smoothing) * losses + smoothing * (log_sum_exp - mean_logits)
            if r_drop:
                divergences, divergences_grad = mutual_divergence(logits, probs, dtype)
                losses = losses + r_drop * divergences
                probs.add_(divergences_grad, alpha=r_drop)
            loss += (losses * scale).sum()
            label_part = probs.new_full(chunk_labels.shape, smoothing - 1)
            logits_grad = probs.scatter_add_(1, chunk_labels, label_part)
            smoothing_grad = smoothing * mean_weight.to(chunk)
            chunk_grad = (logits_grad @ weight - smoothing_grad) * scale.to(chunk)
            grad_by_pass[:, rows] = chunk_grad.unflatten(0, (passes, -1))
            if weight_grad is not None:
                weight_grad.addmm_(logits_grad.T, chunk * scale.to(chunk.dtype))
            if bias_grad is not None:
                bias_grad += scale.to(logits_grad)[:, 0] @ logits_grad
        uniform = smoothing / len(weight)
        if uniform and weight_grad is not None:
            weight_grad -= uniform * (row_weights.T @ features.to(dtype)).to(weight)
        if uniform and bias_grad is not None:
            bias_grad -= uniform * loss_scale
        ctx.save_for_backward(features_grad, weight_grad, bias_grad)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        features_grad, weight_grad, bias_grad = ctx.saved_tensors
        scale = grads[0].to(features_grad.dtype)
        scaled = (None if x is None else x * scale for x in (features_grad, weight_grad, bias_grad))
        return *scaled, None, None, None, None


def mutual_divergence(
    logits: Float[Tensor, "rows vocab"], probs: Float[Tensor, "rows vocab"], dtype: torch.dtype
) -> tuple[Float[Tensor, "rows 1"], Float[Tensor, "rows vocab"]]:
    """KL(p1 || p2) in the first half of the rows, KL(p2 || p1) in the second, and the gradient of their sum.

    p1 and p2 are the two halves of `probs`, the softmax of z1 and z2, the halves of `logits`. With
    d = log p1 - log p2, KL(p1 || p2) = sum p1 d, whose gradient is p1 (d - KL(p1 || p2)) in z1 and p2 - p1
    in z2. In `dtype`: the logarithms of nearly equal probabilities differ by little.
    """
    first, second = probs.chunk(2)
    log_probs = logits.log_softmax(-1, dtype=dtype)
    ratio, other = log_probs.chunk(2)  # memory that holds the gradients at the end
    ratio.sub_(other)
    kl_first = (first * ratio).sum(-1, keepdim=True)
    kl_second = -(second * ratio).sum(-1, keepdim=True)
    torch.sub(1 - kl_second, ratio, out=other)
    other.mul_(second).sub_(first)
    ratio.add_(1 - kl_first).mul_(first).sub_(second)
    return torch.cat([kl_first, kl_second]), log_probs
