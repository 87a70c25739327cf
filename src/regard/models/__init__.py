"""Models behind one interface: `interface`; `recurrent`, `transformer`, `decoder_only`; `pretrained`,
loaded by `load_pretrained`; `build`; and several as one: `ensemble`.
"""

from regard.models.build import build, register
from regard.models.ensemble import Ensemble
from regard.models.int8 import Int8Backend, quantize_int8
from regard.models.interface import DecoderState, Memory, Model, Record
from regard.models.load_pretrained import Architecture, PretrainedCheckpoint, load_pretrained
from regard.models.packed import pack_weights
from regard.models.pretrained import Pretrained

__all__ = [
    "Architecture",
    "DecoderState",
    "Ensemble",
    "Int8Backend",
    "Memory",
    "Model",
    "Pretrained",
    "PretrainedCheckpoint",
    "Record",
    "build",
    "load_pretrained",
    "pack_weights",
    "quantize_int8",
    "register",
]
