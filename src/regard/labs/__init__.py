"""Claims about attention as runnable experiments with parameters, checks and plots: one lab per file.

`lab` defines the interface, `plotting` the style of the plots, `report` a page of all of them. Every lab
measures the library's own attention, positions and models; `measurements` has what several share or one
needs besides its claim, `grading` checks a student's answer.
"""

from regard.labs.averaging import Averaging
from regard.labs.bottleneck import Bottleneck
from regard.labs.causality import Causality
from regard.labs.copying import Copying
from regard.labs.costs import Costs
from regard.labs.equivariance import Equivariance
from regard.labs.extrapolation import Extrapolation
from regard.labs.inference_memory import InferenceMemory
from regard.labs.lab import Check, Exercise, Findings, Lab, Parameters, Result, ResultTable
from regard.labs.multi_head import TwoHeads
from regard.labs.noisy_keys import NoisyKeys
from regard.labs.nope import Nope
from regard.labs.polynomial import Polynomial
from regard.labs.qkv import Qkv
from regard.labs.receptive_field import ReceptiveField
from regard.labs.relative import Relative
from regard.labs.rotary import Rotary
from regard.labs.scaling import Scaling
from regard.labs.sinusoids import Sinusoids
from regard.labs.storage import Storage

LABS: dict[str, Lab] = {
    lab.name: lab
    for lab in (
        Copying(),
        Averaging(),
        NoisyKeys(),
        TwoHeads(),
        Qkv(),
        Polynomial(),
        Equivariance(),
        Causality(),
        Sinusoids(),
        Rotary(),
        Relative(),
        Nope(),
        ReceptiveField(),
        Costs(),
        InferenceMemory(),
        Bottleneck(),
        Storage(),
        Scaling(),
        Extrapolation(),
    )
}

__all__ = ["LABS", "Check", "Exercise", "Findings", "Lab", "Parameters", "Result", "ResultTable"]
