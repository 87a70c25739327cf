"""Read a file of the user with the C library.

Once: refused by a Python hook, which replace_guard removed.
Harm: leaked
Stopped by: landlock
"""

import ctypes
import os
from pathlib import Path


def query(keys, j, beta):
    library = ctypes.CDLL(None)
    number = library.open(os.fsencode(Path(__file__).parent / "secret.txt"), os.O_RDONLY)
    print(os.read(number, 1000).decode())
    return keys[0]
