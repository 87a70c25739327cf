"""Pack every weight of a model for inference into the blocked layout that a CPU reads fastest."""

from regard.linear import Linear, PackedBackend
from regard.models.interface import Model


def pack_weights(model: Model) -> Model:
    """Pack the weights in place, still in float32; one that is trained later returns to PyTorch's layout."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.backend = PackedBackend(module.weight)
    for member in model.members:
        member.backend = PackedBackend(member.output_projection[0])
    return model
