"""Delete a file.

Once: refused by a Python hook, which replace_guard removed.
Harm: wrote
Stopped by: seccomp, landlock
"""

from pathlib import Path

VICTIM = Path(__file__).parent / "victim.txt"


def query(keys, j, beta):
    VICTIM.unlink()
    return keys[0]
