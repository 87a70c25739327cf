"""One step of training: loss, gradient, clipping, AdamW, weight average.

Nothing in a step waits for the device. On a GPU a step of this size is hundreds of small kernels, and
launching them takes longer than running them; so the first batch of each shape runs as it is, the
second is recorded as a CUDA graph, and every further one is that graph, replayed.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from regard import config as choices
from regard.errors import UserError
from regard.models import Model
from regard.text.batch import BatchSpec, DeviceDataset
from regard.torch_private import foreach_add_, foreach_copy_, foreach_mul_, foreach_sub
from regard.training.objective import objective

Shape = tuple[int, int, int]


def optimizer_for(model: Model, table: choices.Training) -> AdamW:
    """AdamW; weight decay pulls on matrices, not on biases and norms."""
    matrices = model.decay_parameters
    known = set(map(id, matrices))
    others = [p for p in learned(model) if id(p) not in known]
    groups = [{"params": matrices, "weight_decay": table.weight_decay}]
    groups.append({"params": others, "weight_decay": 0.0})
    # A rate that lies on the device can change between two replays of a graph.
    rate = torch.tensor(table.learning_rate, device=next(model.parameters()).device)
    return AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True, capturable=rate.is_cuda)


def learned(model: Model) -> list[Tensor]:
    """The parameters that training changes."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class Update:
    """Steps of one model on one split. `model` holds the weights in float32, whatever computes.

    In bfloat16 a copy of the model computes; each step its gradients go to `model`, which is updated
    and copied back. `averaged` is the model whose weights are the running mean, or `model` itself.
    """

    def __init__(
        self,
        model: Model,
        table: choices.Training,
        data: DeviceDataset,
        precision: torch.dtype,
        graphs: bool,
        say: Callable[[str], None],
    ) -> None:
        self.model, self.table, self.data = model, table, data
        self.optimizer = optimizer_for(model, table)
        self.rate: Tensor = self.optimizer.param_groups[0]["lr"]
        self.parameters = learned(model)
        self.worker = model if precision == torch.float32 else in_precision(model, precision)
        self.computing = learned(self.worker)
        self.averaged = model if table.ema_decay is None else copy.deepcopy(model)
        self.means = learned(self.averaged)
        if self.averaged is not model:
            self.averaged.requires_grad_(False)
        self.newness = torch.zeros_like(self.rate)
        self.loss = torch.zeros_like(self.rate)
        self.steps = 0
        self.graphs, self.say = graphs, say
        self.pool = torch.cuda.graph_pool_handle() if graphs else None
        self.met: set[Shape] = set()
        self.recordings: dict[Shape, Recording] = {}

    def __call__(self, cut: BatchSpec, rate: float, step: int) -> None:
        """Learn from one batch, as step number `step` (from 0)."""
        self.rate.fill_(rate)
        if self.table.ema_decay is not None:
            # Early weights are soon forgotten: the mean reaches over a tenth of the run so far.
            self.newness.fill_(1 - min(self.table.ema_decay, (1 + step) / (10 + step)))
        self.steps += 1
        shape = (len(cut.rows), cut.source_length, cut.target_length)
        rows = torch.tensor(cut.rows).to(self.rate.device, non_blocking=True)
        if self.graphs:
            try:
                return self._by_graph(shape, rows)
            except WaitingError as error:
                self.graphs = False
                self.say(f"going on without CUDA graphs, which cannot record this model: {error}")
        return self._learn(rows, cut.source_length, cut.target_length)

    def mean_loss(self) -> float:
        """Mean of the losses since `forget_loss`. This waits for the device."""
        return float(self.loss) / max(self.steps, 1)

    def forget_loss(self) -> None:
        self.loss.zero_()
        self.steps = 0

    def refresh(self) -> None:
        """Let what computes follow `model`, whose weights someone else has changed."""
        with torch.no_grad():
            if self.worker is not self.model:
                foreach_copy_(list(self.worker.parameters()), list(self.model.parameters()))

    def _by_graph(self, shape: Shape, rows: Int[Tensor, " batch"]) -> None:
        """The first batch of a shape as it is, the second recorded, and from then on the recording."""
        if shape not in self.met:
            with no_waiting():
                self._learn(rows, *shape[1:])
            self.met.add(shape)
            return
        if shape not in self.recordings:
            learn = partial(self._learn, source=shape[1], target=shape[2])
            self.recordings[shape] = Recording(rows, learn, self.pool)
        self.recordings[shape].replay(rows)

    def _learn(self, rows: Int[Tensor, " batch"], source: int, target: int) -> None:
        """Everything a step does, on the device alone."""
        batch = self.data.batch(rows, source, target)
        self.worker.train()
        loss = objective(self.worker, batch, self.table.label_smoothing)
        self.loss += loss.detach()
        found = torch.autograd.grad(loss, self.computing, allow_unused=True)
        with torch.no_grad():
            set_gradients(self.parameters, found)
            clip_grad_norm_(self.parameters, self.table.grad_clip)
            self.optimizer.step()
            for parameter in self.parameters:
                parameter.grad = None
            if self.worker is not self.model:
                foreach_copy_(self.computing, self.parameters)
            if self.averaged is not self.model:
                move_towards(self.means, self.parameters, self.newness)


class WaitingError(Exception):
    """The host was about to wait for the GPU."""


@contextmanager
def no_waiting() -> Iterator[None]:
    """`WaitingError` where the host would wait for the GPU: that could not be recorded.

    It must be known before, because a recording that breaks off spoils the GPU's random numbers.
    """
    with warnings.catch_warnings():  # PyTorch says once that this does not see every wait
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        raise WaitingError(str(error).strip().split("\n")[0]) from error
    finally:
        torch.cuda.set_sync_debug_mode("default")


def memory_is_full(error: RuntimeError) -> bool:
    """However PyTorch says it."""
    words = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
    return any(word in str(error) for word in words)


class Recording:
    """A CUDA graph of a step on row numbers that lie in one place.

    All graphs share one pool of memory: nothing that a step leaves behind lies in it.
    """

    def __init__(
        self, rows: Int[Tensor, " batch"], learn: Callable[[Tensor], None], pool: Any
    ) -> None:
        self.rows = rows.clone()
        self.graph = torch.cuda.CUDAGraph()
        # Not `with torch.cuda.graph`, which first empties PyTorch's cache of memory: half a second.
        self.graph.capture_begin(pool=pool)
        try:
            learn(self.rows)
            self.graph.capture_end()
        except RuntimeError as error:
            if memory_is_full(error):
                raise
            reason = str(error).strip().split("\n")[0]
            raise UserError(
                f"this model's training cannot be recorded as a CUDA graph ({reason}): train it with "
                "--set training.cuda_graphs=false"
            ) from error

    def replay(self, rows: Int[Tensor, " batch"]) -> None:
        self.rows.copy_(rows)
        self.graph.replay()


def in_precision(model: Model, precision: torch.dtype) -> Model:
    """A copy whose weights have this precision. What is no weight (frequencies, say) keeps its own."""
    made = copy.deepcopy(model)
    for parameter in made.parameters():
        parameter.data = parameter.data.to(precision)
    for module in made.modules():
        if isinstance(module, torch.nn.RNNBase):
            module.flatten_parameters()
    return made


def set_gradients(parameters: Sequence[Tensor], found: Sequence[Tensor | None]) -> None:
    """In the parameters' own precision; one that took no part in the loss has no gradient."""
    pairs = [(p, g) for p, g in zip(parameters, found, strict=True) if g is not None]
    for parameter, gradient in pairs:
        same = gradient.dtype == parameter.dtype
        parameter.grad = gradient if same else torch.empty_like(parameter)
    cast = [(p.grad, g) for p, g in pairs if p.grad is not None and p.grad is not g]
    if cast:
        foreach_copy_([to for to, _ in cast], [found for _, found in cast])


def move_towards(means: list[Tensor], values: list[Tensor], newness: Float[Tensor, ""]) -> None:
    """Mean <- mean + newness (value - mean)"""
    steps = foreach_sub(values, means)
    foreach_mul_(steps, newness)
    foreach_add_(means, steps)
