"""Print, raise and name what would move the cursor of a terminal.

Once: stopped as well.
Harm: terminal
Stopped by: design
"""


def query(keys, j, beta):
    print("\x1b[2J\x1b]0;title\x07")
    raise type("\x1b[2J", (Exception,), {})("\x1b[31m\x9b2J")
