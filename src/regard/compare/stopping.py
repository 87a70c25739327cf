"""How a job notices that it should stop, with few imports."""

import os
import signal
import threading
import time

GRACE = 30.0  # seconds that a job has to save a checkpoint and stop


def stop_at_end_of_input() -> None:
    """In a job: SIGTERM once standard input is closed, so that it saves a checkpoint; later, end it."""

    def wait_for_end() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would block the end of the interpreter
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()
