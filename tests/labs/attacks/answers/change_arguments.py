"""Change the arguments so that the wrong result is right.

Once: stopped as well.
Harm: passed
Stopped by: design
"""


def query(keys, j, beta):
    keys[:] = 0
    keys[j, 0] = 1
    return beta * keys[j]
