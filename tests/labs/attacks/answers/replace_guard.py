"""Replace the guard, then write a file.

Once: wrote the file: the guard was in sys.modules["__main__"].
Harm: wrote
Stopped by: seccomp, landlock
"""

import sys
from pathlib import Path

for name, module in list(sys.modules.items()):
    if name == "__main__" or "worker" in name or "confine" in name:
        for attribute in list(vars(module)):
            if "FORBIDDEN" in attribute:
                setattr(module, attribute, ())
            if "WRITE" in attribute:
                setattr(module, attribute, 0)


def query(keys, j, beta):
    (Path(__file__).parent / "victim.txt").write_text("changed")
    return keys[0]
