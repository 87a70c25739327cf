"""Write a file with torch.save, which opens it in C++.

Once: wrote the file.
Harm: wrote
Stopped by: seccomp, landlock
"""

from pathlib import Path

import torch

NEW = Path(__file__).parent / "new"


def query(keys, j, beta):
    torch.save(keys, str(NEW))
    return keys[0]
