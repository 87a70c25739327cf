"""Become another program; LD_PRELOAD and the like would go with it.

Once: refused by a Python hook, which replace_guard removed.
Harm: done
Stopped by: seccomp, landlock
"""

import os


def query(keys, j, beta):
    os.execve("/bin/echo", ["echo", "DONE"], {"LD_PRELOAD": "mine.so"})
