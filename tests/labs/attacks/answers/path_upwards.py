"""Read a file of the user through a folder that is allowed.

Once: printed the file.
Harm: leaked
Stopped by: landlock
"""

import os
from pathlib import Path


def query(keys, j, beta):
    folder = os.path.dirname(os.__file__)
    secret = Path(__file__).parent.resolve() / "secret.txt"
    up = "/".join([".."] * (len(Path(folder).resolve().parts) - 1))
    print(Path(f"{folder}/{up}{secret}").read_text())
    return keys[0]
