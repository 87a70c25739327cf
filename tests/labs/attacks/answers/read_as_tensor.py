"""Read a file of the user as a tensor.

Once: printed the file.
Harm: leaked
Stopped by: landlock
"""

from pathlib import Path

import torch


def query(keys, j, beta):
    path = Path(__file__).parent / "secret.txt"
    data = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    print(bytes(data.tolist()).decode())
    return keys[0]
