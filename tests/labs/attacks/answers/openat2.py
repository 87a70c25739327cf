"""Write a file with a system call that Python does not know.

Once: refused by a Python hook, which replace_guard removed.
Harm: wrote
Stopped by: seccomp, landlock
"""

import ctypes
import os
from pathlib import Path

NEW = Path(__file__).parent / "new"


def query(keys, j, beta):
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o600, 0)
    ctypes.CDLL(None).syscall(437, -100, os.fsencode(NEW), how, 24)
    return keys[0]
