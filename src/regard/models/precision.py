"""Parameters in another dtype."""

import torch

from regard.models.interface import Model


def cast_parameters(model: Model, dtype: torch.dtype) -> Model:
    """The model with parameters of this dtype, in place. Buffers (frequencies, say) keep theirs."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    for module in model.modules():
        if isinstance(module, torch.nn.RNNBase):
            flatten_parameters(module)
    return model


def flatten_parameters(rnn: torch.nn.RNNBase) -> None:
    """`rnn.flatten_parameters()`, also in bfloat16: cuDNN copies weights that are not in one chunk.

    PyTorch leaves bfloat16 out; the chunk has the same layout as in float16, which is as wide.
    """
    parameters = list(rnn.parameters())
    dtype = parameters[0].dtype
    flat_dtype = torch.float16 if dtype == torch.bfloat16 else dtype
    for parameter in parameters:
        parameter.data = parameter.data.view(flat_dtype)  # the same bits
    rnn.flatten_parameters()
    for parameter in parameters:
        parameter.data = parameter.data.view(dtype)
