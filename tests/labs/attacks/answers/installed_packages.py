"""List the installed packages, and the kernel's version.

Once: the same.
Harm: done
Stopped by: nothing (Python imports from these folders)
"""

import os
import platform

import torch


def query(keys, j, beta):
    packages = os.listdir(os.path.dirname(os.path.dirname(torch.__file__)))
    if packages and platform.release():
        print("DONE")
    return keys[0]
