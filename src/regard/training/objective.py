"""What training minimises."""

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from regard.models.interface import Model
from regard.text.batch import Batch


def objective(model: Model, batch: Batch, label_smoothing: float) -> Float[Tensor, ""]:
    """Mean cross-entropy over the real target tokens. Padding is dropped before the output map,
    which is the dearest part of a small model.
    """
    features = model.features(model.encode(batch.source, batch.source_mask), batch.target)
    logits = model.project(features[batch.target_mask])
    wanted = batch.wanted[batch.target_mask]
    return cross_entropy(logits, wanted, label_smoothing=label_smoothing)
