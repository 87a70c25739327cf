"""Change the time of a file: Landlock has no right for that.

Once: refused by a Python hook, which replace_guard removed.
Harm: wrote
Stopped by: seccomp
"""

import os
from pathlib import Path

VICTIM = Path(__file__).parent / "victim.txt"


def query(keys, j, beta):
    os.utime(VICTIM, (1, 1))
    return keys[0]
