"""Announce a large reply and send a byte of it now and then.

Once: stopped as well.
Harm: late
Stopped by: design
Seconds: 0.3
"""

import os
import struct
import time


def query(keys, j, beta):
    for number in range(3, 100):
        try:
            os.write(number, struct.pack("!Q", 1 << 20))
        except OSError:
            continue
        while True:
            os.write(number, b" ")
            time.sleep(0.01)
