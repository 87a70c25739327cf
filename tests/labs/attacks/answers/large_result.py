"""Return 16 MB.

Once: stopped as well.
Harm: late
Stopped by: design
"""

import torch


def query(keys, j, beta):
    return torch.zeros(2_000_000, dtype=torch.float64)
