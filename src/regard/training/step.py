"""One training step: loss, gradients, clipping, AdamW, exponential moving average (EMA) of the weights.

A step never waits for the device. On a GPU a step of this size is hundreds of small kernels, and
launching them takes longer than running them. So the first batch of each shape runs eagerly, the second
is captured as a CUDA graph, and all further ones replay that graph.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from regard.config import Training
from regard.models import Model
from regard.text.batch import BatchSpec, DeviceDataset
from regard.torch_private import foreach_add_, foreach_copy_, foreach_mul_, foreach_sub
from regard.training.cuda_graph import CapturedStep, HostSyncError, forbid_host_sync
from regard.training.objective import objective

Shape = tuple[int, int, int]  # (rows, source length, target length)


def build_optimizer(model: Model, settings: Training) -> AdamW:
    """AdamW with weight decay on matrices, not on biases and norms."""
    matrices = model.decay_parameters
    decayed = set(map(id, matrices))
    others = [p for p in trainable_parameters(model) if id(p) not in decayed]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}]
    groups.append({"params": others, "weight_decay": 0.0})
    # A learning rate on the device can change between two replays of a graph.
    lr = torch.tensor(settings.learning_rate, device=next(model.parameters()).device)
    return AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=True, capturable=lr.is_cuda)


def trainable_parameters(model: Model) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class TrainStep:
    """Training steps of one model on one split. `model` holds the float32 (master) weights.

    In bfloat16, `compute_model` is a copy that computes loss and gradients; each step copies the
    gradients to `model`, updates it, and copies the weights back. `ema_model` holds the exponential
    moving average of the weights; without `ema_decay` it is `model`.
    """

    def __init__(
        self,
        model: Model,
        settings: Training,
        data: DeviceDataset,
        dtype: torch.dtype,
        cuda_graphs: bool,
        log: Callable[[str], None],
    ) -> None:
        self.model, self.settings, self.data = model, settings, data
        self.optimizer = build_optimizer(model, settings)
        self.learning_rate: Tensor = self.optimizer.param_groups[0]["lr"]
        self.parameters = trainable_parameters(model)
        self.compute_model = model if dtype == torch.float32 else copy_with_dtype(model, dtype)
        self.compute_parameters = trainable_parameters(self.compute_model)
        self.ema_model = model if settings.ema_decay is None else copy.deepcopy(model)
        self.ema_parameters = trainable_parameters(self.ema_model)
        if self.ema_model is not model:
            self.ema_model.requires_grad_(False)
        self.ema_weight = torch.zeros_like(self.learning_rate)
        self.loss_sum = torch.zeros_like(self.learning_rate)
        self.loss_steps = 0
        self.cuda_graphs, self.log = cuda_graphs, log
        self.graph_pool = torch.cuda.graph_pool_handle() if cuda_graphs else None
        self.eager_shapes: set[Shape] = set()
        self.captured_steps: dict[Shape, CapturedStep] = {}

    def __call__(self, batch: BatchSpec, learning_rate: float, step: int) -> None:
        """Train on one batch, as step number `step` (from 0)."""
        self.learning_rate.fill_(learning_rate)
        if self.settings.ema_decay is not None:
            # A smaller decay at first: the average spans about a tenth of the steps so far.
            self.ema_weight.fill_(1 - min(self.settings.ema_decay, (1 + step) / (10 + step)))
        self.loss_steps += 1
        shape = (len(batch.rows), batch.source_length, batch.target_length)
        rows = torch.tensor(batch.rows).to(self.learning_rate.device, non_blocking=True)
        if self.cuda_graphs:
            try:
                return self._step_with_graph(shape, rows)
            except HostSyncError as error:
                self.cuda_graphs = False
                self.log(f"CUDA graphs are off: this model cannot be captured ({error})")
        return self._step(rows, batch.source_length, batch.target_length)

    def mean_loss(self) -> float:
        """Mean loss since `reset_loss`. Waits for the device."""
        return float(self.loss_sum) / max(self.loss_steps, 1)

    def reset_loss(self) -> None:
        self.loss_sum.zero_()
        self.loss_steps = 0

    def sync_compute_model(self) -> None:
        """Copy the weights of `model` to `compute_model`, after a change from outside."""
        with torch.no_grad():
            if self.compute_model is not self.model:
                foreach_copy_(list(self.compute_model.parameters()), list(self.model.parameters()))

    def _step_with_graph(self, shape: Shape, rows: Int[Tensor, " batch"]) -> None:
        """Run the first batch of a shape eagerly, capture the second, replay from then on."""
        if shape not in self.eager_shapes:
            with forbid_host_sync():
                self._step(rows, *shape[1:])
            self.eager_shapes.add(shape)
            return
        if shape not in self.captured_steps:
            step = partial(self._step, source_length=shape[1], target_length=shape[2])
            self.captured_steps[shape] = CapturedStep(rows, step, self.graph_pool)
        self.captured_steps[shape].replay(rows)

    def _step(self, rows: Int[Tensor, " batch"], source_length: int, target_length: int) -> None:
        """Loss, gradients and updates, all on the device."""
        batch = self.data.batch(rows, source_length, target_length)
        self.compute_model.train()
        loss = objective(self.compute_model, batch, self.settings.label_smoothing)
        self.loss_sum += loss.detach()
        gradients = torch.autograd.grad(loss, self.compute_parameters, allow_unused=True)
        with torch.no_grad():
            assign_gradients(self.parameters, gradients)
            clip_grad_norm_(self.parameters, self.settings.grad_clip)
            self.optimizer.step()
            for parameter in self.parameters:
                parameter.grad = None
            if self.compute_model is not self.model:
                foreach_copy_(self.compute_parameters, self.parameters)
            if self.ema_model is not self.model:
                update_ema(self.ema_parameters, self.parameters, self.ema_weight)


def copy_with_dtype(model: Model, dtype: torch.dtype) -> Model:
    """A copy of the model with parameters of this dtype. Buffers (frequencies, say) keep theirs."""
    copied = copy.deepcopy(model)
    for parameter in copied.parameters():
        parameter.data = parameter.data.to(dtype)
    for module in copied.modules():
        if isinstance(module, torch.nn.RNNBase):
            module.flatten_parameters()
    return copied


def assign_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Set `.grad` in the dtype of each parameter; a parameter outside the loss gets none."""
    pairs = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    for parameter, gradient in pairs:
        same = gradient.dtype == parameter.dtype
        parameter.grad = gradient if same else torch.empty_like(parameter)
    cast = [(p.grad, g) for p, g in pairs if p.grad is not None and p.grad is not g]
    if cast:
        foreach_copy_([to for to, _ in cast], [gradient for _, gradient in cast])


def update_ema(averages: list[Tensor], values: list[Tensor], weight: Float[Tensor, ""]) -> None:
    """Exponential moving average: average <- average + weight (value - average)"""
    deltas = foreach_sub(values, averages)
    foreach_mul_(deltas, weight)
    foreach_add_(averages, deltas)
