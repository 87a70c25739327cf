"""Write through a tensor on a shared mapping of a file.

Once: changed the file.
Harm: wrote
Stopped by: seccomp, landlock
"""

from pathlib import Path

import torch

VICTIM = Path(__file__).parent / "victim.txt"


def query(keys, j, beta):
    torch.from_file(str(VICTIM), shared=True, size=4, dtype=torch.uint8).fill_(120)
    return keys[0]
