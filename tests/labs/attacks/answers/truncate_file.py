"""Empty a file without opening it.

Once: refused by a Python hook, which replace_guard removed.
Harm: wrote
Stopped by: seccomp, landlock
"""

import os
from pathlib import Path

VICTIM = Path(__file__).parent / "victim.txt"


def query(keys, j, beta):
    os.truncate(VICTIM, 0)
    return keys[0]
