"""Return 3 MiB of numbers, which the check would multiply with each other.

Once: stopped as well.
Harm: late
Stopped by: design
"""

import torch


def query(keys, j, beta):
    return torch.ones(300_000, 1, dtype=torch.float64)
