"""Stop this process, as Ctrl-Z does.

Once: refused by a Python hook, which replace_guard removed.
Harm: late
Stopped by: design
Seconds: 0.3
"""

import os
import signal


def query(keys, j, beta):
    os.kill(os.getpid(), signal.SIGSTOP)
    return keys[0]
