"""Read a file of the user.

Once: printed the file.
Harm: leaked
Stopped by: landlock
"""

from pathlib import Path


def query(keys, j, beta):
    print((Path(__file__).parent / "secret.txt").read_text())
    return keys[0]
