"""Write a file with the C library.

Once: refused by a Python hook, which replace_guard removed.
Harm: wrote
Stopped by: seccomp, landlock
"""

import ctypes
import os
from pathlib import Path

NEW = Path(__file__).parent / "new"


def query(keys, j, beta):
    library = ctypes.CDLL(None)
    library.write(library.open(os.fsencode(NEW), os.O_CREAT | os.O_WRONLY, 0o600), b"new", 3)
    return keys[0]
