"""Create shared memory, a file in /dev/shm.

Once: refused by a Python hook, which replace_guard removed.
Harm: done
Stopped by: seccomp, landlock
"""

import os


def query(keys, j, beta):
    path = f"/dev/shm/regard-{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    os.remove(path)
    print("DONE")
    return keys[0]
