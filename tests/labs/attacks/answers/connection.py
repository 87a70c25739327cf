"""Open a TCP connection.

Once: refused by a Python hook, which replace_guard removed.
Harm: done
Stopped by: seccomp, landlock
"""

import socket


def query(keys, j, beta):
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname())
    print("DONE")
    return keys[0]
