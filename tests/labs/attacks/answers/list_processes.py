"""List the processes of the system.

Once: listed them.
Harm: done
Stopped by: landlock
"""

import os


def query(keys, j, beta):
    if any(name.isdigit() for name in os.listdir("/proc")):
        print("DONE")
    return keys[0]
