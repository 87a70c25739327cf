"""Open a thousand files.

Once: opened them.
Harm: done
Stopped by: limits
"""


def query(keys, j, beta):
    kept = [open("/dev/null") for _ in range(1000)]
    print("DONE", len(kept))
    return keys[0]
