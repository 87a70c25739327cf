"""Compute for the whole time limit.

Once: the same.
Harm: done
Stopped by: nothing (the limits are there to be used: --limit, 2 GiB)
"""

import time


def query(keys, j, beta):
    started = time.process_time()
    while time.process_time() < started + 0.1:
        pass
    print("DONE")
    return keys[0]
