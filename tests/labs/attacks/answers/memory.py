"""Take 5 GB of memory.

Once: stopped as well.
Harm: done
Stopped by: limits
"""

import torch


def query(keys, j, beta):
    kept = [torch.empty(1 << 27, dtype=torch.float64) for _ in range(5)]
    print("DONE", len(kept))
    return keys[0]
