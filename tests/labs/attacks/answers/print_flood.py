"""Print 4 MiB; a flood would go on.

Once: stopped as well.
Harm: done
Stopped by: limits
"""


def query(keys, j, beta):
    for _ in range(64):
        print("x" * (1 << 16))
    raise RuntimeError("DONE")
