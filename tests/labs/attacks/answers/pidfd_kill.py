"""Kill the process that started this one by a descriptor.

Once: killed the checker itself.
Harm: killed
Stopped by: seccomp, landlock
"""

import os
import signal


def query(keys, j, beta):
    signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGKILL)
    return keys[0]
