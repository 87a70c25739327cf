"""Read the memory of the process that started this one.

Once: refused by a Python hook, which replace_guard removed.
Harm: done
Stopped by: seccomp, landlock, system
"""

import ctypes
import os
import struct


def query(keys, j, beta):
    buffer = ctypes.create_string_buffer(8)
    ours = struct.pack("PN", ctypes.addressof(buffer), 8)
    theirs = struct.pack("PN", id(None), 8)  # after a fork, at the same address
    if ctypes.CDLL(None).process_vm_readv(os.getppid(), ours, 1, theirs, 1, 0) == 8:
        print("DONE")
    return keys[0]
