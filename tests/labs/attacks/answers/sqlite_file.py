"""Write a database, which SQLite opens in C.

Once: wrote the file.
Harm: wrote
Stopped by: seccomp, landlock
"""

import sqlite3
from pathlib import Path

NEW = Path(__file__).parent / "new"


def query(keys, j, beta):
    database = sqlite3.connect(NEW)
    database.execute("create table a (b)")
    database.commit()
    return keys[0]
