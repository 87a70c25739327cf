"""Send a tensor whose shape does not fit its data.

Once: stopped as well.
Harm: late
Stopped by: design
"""

import json
import os
import struct


def query(keys, j, beta):
    for shape in ([2**40], [0, 2**62, 2**62], [2**20] * 16, [-1], [1] * 10**5):
        message = json.dumps({"answer": ["tensor", ["float64", shape, ""]]}).encode()
        for number in range(3, 100):
            try:
                os.write(number, struct.pack("!Q", len(message)) + message)
            except OSError:
                pass
    return keys[0]
