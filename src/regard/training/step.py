"""One training step: loss, gradients, clipping, AdamW, exponential moving average (EMA) of the weights.

A step never waits for the device. On a GPU a step of this size is hundreds of small kernels, and
launching them takes longer than running them. So the first batch of each shape runs eagerly, the second
is captured as a CUDA graph, and all further ones replay that graph. With gradient accumulation, the graph
of a shape adds to the gradients, and one more graph updates the weights. So it is with several processes:
between the two graphs, gradients are summed over the processes, as no graph holds what others send.
"""

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_

from regard.config import Training
from regard.cuda_graph import CapturedStep, HostSyncError, forbid_host_sync
from regard.errors import UserError
from regard.models import Model
from regard.models.precision import cast_parameters
from regard.text.batch import Batch, BatchSpec, DeviceDataset
from regard.torch_private import (
    AdamW,
    foreach_add_,
    foreach_copy_,
    foreach_mul_,
    foreach_sub,
)
from regard.training import sharding
from regard.training.distributed import ALONE, World
from regard.training.objective import objective

MIN_LOSS_SCALE = 2.0**-10


def build_optimizer(model: Model, settings: Training) -> AdamW:
    """AdamW with weight decay on matrices, not on biases and norms."""
    matrices = model.decay_parameters
    decayed = set(map(id, matrices))
    others = [p for p in trainable_parameters(model) if id(p) not in decayed]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}]
    groups.append({"params": others, "weight_decay": 0.0})
    # A learning rate on the device can change between two replays of a graph.
    lr = torch.tensor(settings.learning_rate, device=next(model.parameters()).device)
    betas = (0.9, settings.adam_beta2)
    return AdamW(groups, lr=lr, betas=betas, fused=True, capturable=lr.is_cuda)


def is_sharded(settings: Training, world: World) -> bool:
    """Whether each process has only a part of the model: a process that is alone has all."""
    return settings.sharding == "fsdp" and not world.is_alone


def trainable_parameters(model: Model) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class TrainStep:
    """Training steps of one model on one split. `model` holds the float32 (master) weights.

    In bfloat16 and float16, `compute_model` is a copy that computes loss and gradients; each step copies
    the gradients to `model`, updates it, and copies the weights back. In float16 the loss is scaled
    (Micikevicius et al., 2018): a step with infinite gradients changes no weight and halves the scale.
    `ema_model` holds the exponential moving average of the weights; without `ema_decay` it is `model`.
    """

    def __init__(
        self,
        model: Model,
        settings: Training,
        data: DeviceDataset,
        dtype: torch.dtype,
        cuda_graphs: bool,
        log: Callable[[str], None],
        world: World = ALONE,
    ) -> None:
        self.model, self.settings, self.data, self.world = model, settings, data, world
        self.device = data.source.values.device
        has_ema = settings.ema_decay is not None
        self.ema_model = copy_with_dtype(model, torch.float32) if has_ema else model
        self.whole_model: Model | None = None
        self.sharded_loss: sharding.Loss | None = None
        if is_sharded(settings, world):
            self._shard(dtype)
        self.optimizer = build_optimizer(model, settings)
        self.learning_rate: Tensor = self.optimizer.param_groups[0]["lr"]
        self.scaler = GradScaler(self.device.type, enabled=dtype == torch.float16)
        self.parameters = trainable_parameters(model)
        is_whole = self.sharded_loss is None
        needs_copy = is_whole and dtype != torch.float32
        self.compute_model = copy_with_dtype(model, dtype) if needs_copy else model
        self.compute_parameters = trainable_parameters(self.compute_model)
        self.ema_parameters = trainable_parameters(self.ema_model)
        if self.ema_model is not model:
            self.ema_model.requires_grad_(False)
        self.ema_weight = torch.zeros_like(self.learning_rate)
        self.loss_sum = torch.zeros_like(self.learning_rate)
        self.loss_steps = 0
        self.accumulated_loss = torch.zeros_like(self.learning_rate)
        self.accumulated_tokens = torch.zeros_like(self.learning_rate)
        self.cuda_graphs, self.log = cuda_graphs, log
        self.graph_pool = torch.cuda.graph_pool_handle() if cuda_graphs else None
        self.eager_steps: set[Hashable] = set()
        self.captured_steps: dict[Hashable, CapturedStep] = {}

    def __call__(self, batches: Sequence[BatchSpec], learning_rate: float, step: int) -> None:
        """One optimizer step on the mean loss of all target tokens, as step number `step` (from 0)."""
        self.learning_rate.fill_(learning_rate)
        if self.settings.ema_decay is not None:
            # A smaller decay at first: the average spans about a tenth of the steps so far.
            self.ema_weight.fill_(1 - min(self.settings.ema_decay, (1 + step) / (10 + step)))
        self.loss_steps += 1
        if self.settings.accumulation_steps == 1 and self.world.is_alone:
            [batch] = batches
            return self._run_batch(self._step, batch)
        for batch in batches:
            part = self.world.share_rows(batch, dummy=self.data.num_pairs)
            self._run_batch(self._accumulate, part)
        self._all_reduce()
        return self._run("update", self._update_from_sums)

    def _shard(self, dtype: torch.dtype) -> None:
        """Keep only this process's part of the model and its EMA; process 0 has a whole copy for others."""
        self.whole_model = copy.deepcopy(self.model) if self.world.is_main else None
        if self.ema_model is not self.model:
            sharding.shard(self.ema_model, self.settings, dtype, self.device)
        self.sharded_loss = sharding.shard(self.model, self.settings, dtype, self.device)

    @contextmanager
    def validated_model(self) -> Iterator[Model]:
        """The model that is validated and saved: the EMA of the weights, if there is one.

        All processes call this; of a sharded model, process 0 gets the whole, and the others nothing to use.
        """
        if self.sharded_loss is None:
            yield self.ema_model
            return
        whole = dict(self.whole_model.named_parameters()) if self.whole_model else {}
        with torch.no_grad():
            for name, part in self.ema_model.named_parameters():
                tensor = sharding.gather(part)
                if name in whole:
                    whole[name].copy_(tensor)
        if self.whole_model is None:
            yield self.ema_model
            return
        # On the device only while it is needed there: it may be as large as all that is sharded.
        yield self.whole_model.to(self.device)
        self.whole_model.to("cpu")

    def mean_loss(self) -> float:
        """Mean loss since `reset_loss`. Waits for the device."""
        if self.scaler.get_scale() < MIN_LOSS_SCALE:
            raise UserError(
                "the gradients are not finite in float16, however small the loss scale: use "
                "training.precision=float32 or a lower training.learning_rate (now "
                f"{self.settings.learning_rate:g})"
            )
        return float(self.loss_sum) / max(self.loss_steps, 1)

    def reset_loss(self) -> None:
        self.loss_sum.zero_()
        self.loss_steps = 0

    def sync_compute_model(self) -> None:
        """Copy the weights of `model` to `compute_model`, after a change from outside."""
        with torch.no_grad():
            if self.compute_model is not self.model:
                foreach_copy_(list(self.compute_model.parameters()), list(self.model.parameters()))

    def extra_state(self) -> dict[str, Tensor]:
        """What an exact resume needs besides weights and optimizer: the loss scale. Waits for the device."""
        return {name: torch.tensor(value) for name, value in self.scaler.state_dict().items()}

    def load_extra_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `extra_state` returned; a checkpoint of another precision has no loss scale."""
        if state:
            self.scaler.load_state_dict({name: value.item() for name, value in state.items()})

    def _run_batch(self, function: Callable[..., None], batch: BatchSpec) -> None:
        """Call the function with the batch, once its row numbers are on the device."""
        self.data.load(batch)
        lengths = (batch.source_length, batch.target_length)
        rows = torch.tensor(batch.rows).to(self.device, non_blocking=True)
        self._run((len(rows), *lengths), lambda rows: function(rows, *lengths), rows)

    def _run(self, name: Hashable, function: Callable[..., None], *inputs: Tensor) -> None:
        """Call the function, from the second call of this name on as a CUDA graph if possible."""
        if self.cuda_graphs:
            try:
                return self._run_as_graph(name, function, *inputs)
            except HostSyncError as error:
                self.cuda_graphs = False
                self.log(f"CUDA graphs are off: this model cannot be captured ({error})")
        return function(*inputs)

    def _run_as_graph(self, name: Hashable, function: Callable[..., None], *inputs: Tensor) -> None:
        """Run the first call of a name eagerly, capture the second, replay from then on."""
        if name not in self.eager_steps:
            with forbid_host_sync():
                function(*inputs)
            self.eager_steps.add(name)
            return
        if name not in self.captured_steps:
            self.captured_steps[name] = CapturedStep(function, inputs, self.graph_pool)
        self.captured_steps[name].replay(inputs)

    def _step(self, rows: Int[Tensor, " batch"], source_length: int, target_length: int) -> None:
        """Loss, gradients and updates of one batch, all on the device."""
        batch = self.data.batch(rows, source_length, target_length)
        loss, gradients = self._gradients(batch)
        with torch.no_grad():
            self.loss_sum += loss
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
            self._update()
            self.optimizer.zero_grad()

    def _accumulate(
        self, rows: Int[Tensor, " batch"], source_length: int, target_length: int
    ) -> None:
        """Add loss and gradients of one batch, weighted by its number of target tokens."""
        batch = self.data.batch(rows, source_length, target_length)
        tokens = batch.target_mask.sum().to(self.accumulated_tokens)
        if self.sharded_loss is not None:
            self._accumulate_sharded(self.sharded_loss, batch, tokens)
            return
        loss, gradients = self._gradients(batch)
        with torch.no_grad():
            self.accumulated_loss += tokens * loss
            self.accumulated_tokens += tokens
            add_gradients(self.parameters, gradients, tokens)

    def _accumulate_sharded(
        self, sharded_loss: sharding.Loss, batch: Batch, tokens: Float[Tensor, ""]
    ) -> None:
        """`_accumulate`, where the backward pass sums gradients over the processes."""
        self.model.train()
        loss = sharded_loss(batch, tokens)
        loss.backward()
        self.accumulated_loss += loss.detach()
        self.accumulated_tokens += tokens

    def _all_reduce(self) -> None:
        """Sum over the processes what each has accumulated from its part of the batches."""
        gradients = []
        if self.sharded_loss is None:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
        self.world.all_reduce([*gradients, self.accumulated_loss, self.accumulated_tokens])

    def _update_from_sums(self) -> None:
        """Update from what `_accumulate` has added up, and start again from zero."""
        with torch.no_grad():
            weight = 1 / self.accumulated_tokens
            self.loss_sum += weight * self.accumulated_loss
            foreach_mul_([p.grad for p in self.parameters if p.grad is not None], weight)
            self._update()
            self.optimizer.zero_grad(set_to_none=False)  # a graph adds to these very tensors
            self.accumulated_loss.zero_()
            self.accumulated_tokens.zero_()

    def _gradients(self, batch: Batch) -> tuple[Float[Tensor, ""], list[Tensor | None]]:
        """Loss, and gradients times the loss scale, in the dtype of `model`."""
        self.compute_model.train()
        scale = self.scaler.scale(torch.ones_like(self.learning_rate))
        options = (self.settings.label_smoothing, scale, self.settings.r_drop)
        loss = objective(self.compute_model, batch, *options)
        gradients = torch.autograd.grad(loss, self.compute_parameters, allow_unused=True)
        return loss.detach() / scale, cast_gradients(self.parameters, gradients)

    def _update(self) -> None:
        """Update weights and EMA from the gradients of `model`."""
        self.scaler.unscale_(self.optimizer)
        clip_grad_norm_(self.parameters, self.settings.grad_clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.compute_model is not self.model:
            foreach_copy_(self.compute_parameters, self.parameters)
        if self.ema_model is not self.model:
            update_ema(self.ema_parameters, self.parameters, self.ema_weight)


def copy_with_dtype(model: Model, dtype: torch.dtype) -> Model:
    """A copy of the model with parameters of this dtype."""
    return cast_parameters(copy.deepcopy(model), dtype)


def cast_gradients(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients in the dtype and with the strides of their parameters; None outside the loss.

    PyTorch's fused AdamW reads both as flat arrays. With other strides, it raises an error on a GPU and
    updates the wrong elements on a CPU.
    """
    cast = [
        g if g is None or is_like(g, p) else torch.empty_like(p)
        for p, g in zip(parameters, gradients, strict=True)
    ]
    pairs = [
        (to, g)
        for to, g in zip(cast, gradients, strict=True)
        if to is not None and g is not None and to is not g
    ]
    if pairs:
        foreach_copy_([to for to, _ in pairs], [gradient for _, gradient in pairs])
    return cast


def is_like(tensor: Tensor, other: Tensor) -> bool:
    return tensor.dtype == other.dtype and tensor.stride() == other.stride()


def add_gradients(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], weight: Float[Tensor, ""]
) -> None:
    """Add weight * gradient to `.grad`."""
    pairs = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    for parameter, gradient in pairs:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(gradient)
    # Not in place: two parameters may share a gradient tensor.
    foreach_add_([p.grad for p, _ in pairs if p.grad is not None], [weight * g for _, g in pairs])


def update_ema(averages: list[Tensor], values: list[Tensor], weight: Float[Tensor, ""]) -> None:
    """Exponential moving average: average <- average + weight (value - average)"""
    deltas = foreach_sub(values, averages)
    foreach_mul_(deltas, weight)
    foreach_add_(averages, deltas)
