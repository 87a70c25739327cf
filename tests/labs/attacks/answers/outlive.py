"""Outlive the worker: no signal at its end, no alarm, a session of its own.

Once: refused by a Python hook, which replace_guard removed.
Harm: done
Stopped by: seccomp
"""

import ctypes
import signal


def query(keys, j, beta):
    signal.setitimer(signal.ITIMER_REAL, 0)
    if ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0:  # PR_SET_PDEATHSIG
        print("DONE")
    return keys[0]
