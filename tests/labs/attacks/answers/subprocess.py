"""Start another program.

Once: refused by a Python hook, which replace_guard removed.
Harm: done
Stopped by: seccomp, landlock, limits
"""

import subprocess


def query(keys, j, beta):
    subprocess.run(["/bin/echo", "DONE"])
    return keys[0]
