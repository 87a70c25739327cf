"""Ask whether a file exists, and for its size and time.

Once: the same.
Harm: done
Stopped by: nothing (neither Landlock nor seccomp can refuse it by path)
"""

import os
from pathlib import Path


def query(keys, j, beta):
    if os.stat(Path(__file__).parent / "secret.txt").st_size:
        print("DONE")
    return keys[0]
