"""Never return, and ignore all signals.

Once: stopped as well.
Harm: late
Stopped by: design
Seconds: 0.3
"""

import signal


def query(keys, j, beta):
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass
