"""Write to pages of this process that cannot be written.

Once: refused by a Python hook, which replace_guard removed.
Harm: done
Stopped by: seccomp, landlock
"""


def query(keys, j, beta):
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(id(keys))
        memory.write(memory.read(0))
        print("DONE")
    return keys[0]
