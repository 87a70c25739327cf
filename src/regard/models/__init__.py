"""Models behind one interface: `interface`; `recurrent`, `transformer`, `decoder_only`; `build`."""

from regard.models.build import build, register
from regard.models.int8 import int8
from regard.models.interface import Memory, Model, Record, State
from regard.models.packed import packed

__all__ = ["Memory", "Model", "Record", "State", "build", "int8", "packed", "register"]
