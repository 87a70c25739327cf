"""Read the environment of the checker, with its tokens.

Once: printed every variable of the checker.
Harm: leaked
Stopped by: landlock
"""

import os
import re


def query(keys, j, beta):
    process = os.getppid()
    for _ in range(3):
        with open(f"/proc/{process}/environ") as file:
            print(re.findall(r"\bPATH=([^\0]*)", file.read()))
        with open(f"/proc/{process}/status") as file:
            process = int(re.search(r"PPid:\s+(\d+)", file.read())[1])
    return keys[0]
