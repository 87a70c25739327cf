"""List a folder of the user, where keys and tokens may be.

Once: listed it.
Harm: done
Stopped by: landlock
"""

import os


def query(keys, j, beta):
    if os.listdir(os.path.dirname(__file__)):
        print("DONE")
    return keys[0]
