"""Do not read what the checker sends, nor reply.

Once: stopped as well.
Harm: late
Stopped by: design
Seconds: 0.3
"""

import time


def query(keys, j, beta):
    time.sleep(1000)
