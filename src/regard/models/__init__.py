"""Models behind one interface: `interface`; `recurrent`, `transformer`, `decoder_only`; `pretrained`,
which `adopt` takes from elsewhere; `build`.
"""

from regard.models.adopt import Adopted, adopt
from regard.models.build import build, register
from regard.models.int8 import int8
from regard.models.interface import DecoderState, Memory, Model, Record
from regard.models.packed import packed

__all__ = [
    "Adopted",
    "DecoderState",
    "Memory",
    "Model",
    "Record",
    "adopt",
    "build",
    "int8",
    "packed",
    "register",
]
