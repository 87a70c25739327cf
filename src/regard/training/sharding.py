"""Fully sharded data parallel training (Zhao et al., 2023) with PyTorch's `fully_shard`.

Each of n processes keeps 1/n of every parameter, of its gradient and of its optimizer state. A layer's
parameters are gathered when it computes, and its gradients are summed over the processes and split again.
"""

import warnings
from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.config import Training
from regard.errors import UserError
from regard.models import Model
from regard.models.layers import Block
from regard.text.batch import Batch
from regard.training.objective import objective


class Loss(nn.Module):
    """The training loss of a batch, times a scale: one forward pass, which `fully_shard` surrounds."""

    def __init__(self, model: Model, settings: Training) -> None:
        super().__init__()
        self.model, self.settings = model, settings

    def forward(self, batch: Batch, scale: Float[Tensor, ""]) -> Float[Tensor, ""]:
        settings = self.settings
        return objective(self.model, batch, settings.label_smoothing, scale, settings.r_drop)


def shard(model: Model, settings: Training, dtype: torch.dtype, device: torch.device) -> Loss:
    """The loss of the model, whose parameters are replaced by those of this process.

    They stay float32, and are gathered in `dtype`; gradients are summed in float32.
    """
    # Here: it takes two seconds, and only sharded runs need it.
    from torch.distributed import get_world_size
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if dtype == torch.float16:
        raise UserError(
            'training.sharding = "fsdp" has no loss scaling, which float16 needs: set '
            'training.precision = "bfloat16" or "float32"'
        )
    # A block changes no output of its parts in place.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    keep_weights_apart(model)
    loss = Loss(model, settings)
    mesh = init_device_mesh(device.type, (get_world_size(),))
    # Not the inputs: the scale of the loss stays float32.
    policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    for module in [*sharded_parts(model), loss]:
        fully_shard(module, mesh=mesh, mp_policy=policy)
        module.set_gradient_divide_factor(1.0)  # type: ignore[operator]  (added to its class)
        # NCCL alone could multiply while it sums, and here there is nothing to multiply with.
        module.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    return loss


def keep_weights_apart(model: Model) -> None:
    """Leave the weights of recurrent cells where `fully_shard` gathers them.

    For cuDNN, PyTorch moves them into one array on the first call. The cell would then compute with what was
    gathered that once.
    """
    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters = lambda: None  # type: ignore[method-assign]


def sharded_parts(model: Model) -> Iterator[nn.Module]:
    """The parts that are gathered one after the other, when they are called; the rest at once.

    Not cross-attention, whose keys and values are computed before its block is called, nor the mixers of a
    decoder-only model: what they cache for the source has a gradient, of which their call knows nothing.
    """
    for module in model.modules():
        if isinstance(module, Block):
            yield module.feed_forward
            if not model.is_decoder_only:
                yield module.mixer


def gather(tensor: Tensor) -> Tensor:
    """The whole tensor of which each process has a part; called by all of them. Others are whole."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def gather_all(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """The whole tensors, in a process that keeps them: on the host, as they may not fit the device.

    All processes call this; those that do not keep them get what is not sharded.
    """
    whole = {}
    for name, tensor in tensors.items():
        gathered = gather(tensor)  # one at a time
        if keep or not is_sharded(tensor):
            whole[name] = gathered.cpu() if is_sharded(tensor) else tensor
    return whole


def copy_part(tensor: Tensor, whole: Tensor) -> None:
    """Copy the whole, or the part of it that `tensor` is, into `tensor`."""
    if is_sharded(tensor):
        from torch.distributed.tensor import distribute_tensor

        # Every process has the whole: nothing is sent.
        place = (tensor.device_mesh, tensor.placements)  # type: ignore[attr-defined]
        whole = distribute_tensor(whole.to(tensor.device), *place, src_data_rank=None)
    tensor.copy_(whole)


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")
