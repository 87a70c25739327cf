"""Return a list nested deeper than a parser's stack.

Once: stopped as well.
Harm: late
Stopped by: design
"""


def query(keys, j, beta):
    value = []
    for _ in range(50_000):
        value = [value]
    return value
