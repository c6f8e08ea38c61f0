"""Sets up SQLite files that several processes open at the same moment."""

from __future__ import annotations

import sqlite3
import time

_TRIES, _PAUSE_S = 100, 0.02


def use_wal(database: sqlite3.Connection) -> None:
    """Have a database write its changes to a log of its own.

    SQLite does not wait for its lock here, whatever the timeout: a process that is the second in the same moment is
    told that the file is locked.
    """
    for number in range(_TRIES):
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or number == _TRIES - 1:
                raise
            time.sleep(_PAUSE_S)
        else:
            return
