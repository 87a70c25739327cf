"""Models behind one interface: `interface`; `recurrent`, `transformer`, `decoder_only`; `pretrained`,
loaded by `load_pretrained`; `build`.
"""

from regard.models.build import build, register
from regard.models.int8 import quantize_int8
from regard.models.interface import DecoderState, Memory, Model, Record
from regard.models.load_pretrained import PretrainedCheckpoint, load_pretrained
from regard.models.packed import pack_weights

__all__ = [
    "DecoderState",
    "Memory",
    "Model",
    "PretrainedCheckpoint",
    "Record",
    "build",
    "load_pretrained",
    "pack_weights",
    "quantize_int8",
    "register",
]
