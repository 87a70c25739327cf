"""Start a thread; a bomb would go on.

Once: started it, as root; others have a limit.
Harm: done
Stopped by: seccomp, limits
"""

import threading


def query(keys, j, beta):
    thread = threading.Thread(target=print, args=("DONE",))
    thread.start()
    thread.join()
    return keys[0]
