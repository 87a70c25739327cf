"""Models behind one interface: `interface`, then `recurrent` and `transformer`, made by `build`."""

from regard.models.build import build, register
from regard.models.interface import Memory, Model, Record

__all__ = ["Memory", "Model", "Record", "build", "register"]
