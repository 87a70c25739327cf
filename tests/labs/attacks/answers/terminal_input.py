"""Type a command into the user's terminal.

Once: refused by a Python hook, which replace_guard removed.
Harm: done
Stopped by: seccomp, landlock, system
"""

import fcntl
import os
import termios


def query(keys, j, beta):
    terminal = os.open("/dev/tty", os.O_RDWR)
    for character in b"echo hello\n":
        fcntl.ioctl(terminal, termios.TIOCSTI, bytes([character]))
    print("DONE")
    return keys[0]
