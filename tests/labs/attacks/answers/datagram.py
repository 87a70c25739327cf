"""Send data by UDP, as a DNS query would: Landlock has no right for that.

Once: refused by a Python hook, which replace_guard removed.
Harm: done
Stopped by: seccomp
"""

import socket


def query(keys, j, beta):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"secret", ("127.0.0.1", 9))
    print("DONE")
    return keys[0]
