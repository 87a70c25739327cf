"""Write through NumPy's mapping of a file.

Once: refused by a Python hook, which replace_guard removed.
Harm: wrote
Stopped by: seccomp, landlock
"""

from pathlib import Path

import numpy as np

VICTIM = Path(__file__).parent / "victim.txt"


def query(keys, j, beta):
    np.memmap(VICTIM, dtype="u1", mode="r+", shape=4)[:] = 120
    return keys[0]
