"""Never end: at exit, in a finalizer, and when it is deleted.

Once: stopped as well.
Harm: late
Stopped by: design
Seconds: 0.3
"""

import atexit
import sys


def query(keys, j, beta):
    class Endless:
        def __del__(self):
            while True:
                pass

    atexit.register(Endless().__del__)
    sys.exit(0)
