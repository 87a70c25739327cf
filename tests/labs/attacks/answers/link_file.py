"""Link to a file from elsewhere.

Once: refused by a Python hook, which replace_guard removed.
Harm: wrote
Stopped by: seccomp, landlock
"""

import os
from pathlib import Path

VICTIM = Path(__file__).parent / "victim.txt"
NEW = Path(__file__).parent / "new"


def query(keys, j, beta):
    os.symlink(VICTIM, NEW)
    return keys[0]
