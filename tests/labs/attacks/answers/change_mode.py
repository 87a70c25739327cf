"""Make a file executable by everybody: Landlock has no right for that.

Once: refused by a Python hook, which replace_guard removed.
Harm: wrote
Stopped by: seccomp
"""

import os
from pathlib import Path

VICTIM = Path(__file__).parent / "victim.txt"


def query(keys, j, beta):
    os.chmod(VICTIM, 0o777)
    return keys[0]
