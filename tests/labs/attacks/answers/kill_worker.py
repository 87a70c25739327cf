"""Kill the process that started this one.

Once: refused by a Python hook, which replace_guard removed.
Harm: killed
Stopped by: seccomp, landlock
"""

import os
import signal


def query(keys, j, beta):
    os.kill(os.getppid(), signal.SIGKILL)
    return keys[0]
