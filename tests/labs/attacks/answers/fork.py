"""Fork; a bomb would go on.

Once: refused by a Python hook, which replace_guard removed.
Harm: done
Stopped by: seccomp, limits
"""

import os


def query(keys, j, beta):
    if os.fork() == 0:
        print("DONE", flush=True)
        os._exit(0)
    os.wait()
    return keys[0]
