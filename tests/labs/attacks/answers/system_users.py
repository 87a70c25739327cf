"""Read the users of the system.

Once: read them.
Harm: done
Stopped by: landlock
"""


def query(keys, j, beta):
    with open("/etc/passwd") as file:
        if "root:" in file.read():
            print("DONE")
    return keys[0]
