"""Crash the interpreter.

Once: stopped as well.
Harm: killed
Stopped by: design
"""

import ctypes


def query(keys, j, beta):
    ctypes.string_at(0)
