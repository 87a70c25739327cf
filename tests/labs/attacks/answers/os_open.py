"""Create a file with the system call.

Once: refused by a Python hook, which replace_guard removed.
Harm: wrote
Stopped by: seccomp, landlock
"""

import os
from pathlib import Path

NEW = Path(__file__).parent / "new"


def query(keys, j, beta):
    os.write(os.open(NEW, os.O_CREAT | os.O_WRONLY), b"new")
    return keys[0]
