"""Short notes that any process of a cell may take: passes of calls, client secrets, signatures that were seen.

They lie in one SQLite file in the cell's folder, which is gone with the cell, and in memory where there is room
(cell/folder.py). A note is put or taken in some tens of microseconds, a few times per call, so that the event loop does
it itself. `take` is atomic: of two processes that are shown the same pass, one gets it.

Notes hold telephone numbers and instructions, and the file lies on a disk where memory is small. So values are sealed,
and keys hashed, under a secret of the cell that no file has.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from voxlane.server.errors import StoreUnavailable
from voxlane.server.store.seal import KEY_BYTES, BrokenSeal, SessionKey
from voxlane.server.store.wal import use_wal

FILE = "notes.sqlite"
BUSY_MS = 250
"""How long a process waits for another one that writes."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS notes (kind TEXT NOT NULL, key BLOB NOT NULL, expires_s REAL NOT NULL,"
    " value BLOB NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS notes_by_end ON notes (expires_s)",
)


class SharedNotes:
    """The notes of a cell."""

    def __init__(self, folder: Path, secret: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        """Open the notes in the folder of a cell with this secret."""
        self._key = hashlib.blake2b(key=secret, person=b"notes", digest_size=KEY_BYTES).digest()
        self._seal = SessionKey("notes", self._key)
        self._clock = clock  # monotonic: the same for all processes of a machine
        self._database = sqlite3.connect(folder / FILE, isolation_level=None, timeout=BUSY_MS / 1e3)
        use_wal(self._database)
        self._database.execute("PRAGMA synchronous = OFF")  # the file does not outlive the cell
        for statement in _SCHEMA:
            self._database.execute(statement)

    def put(self, kind: str, key: bytes, value: bytes, seconds: float, most: int) -> None:
        """Keep a note; it replaces an older one. Of too many of a kind, those that expire first are dropped."""
        now = self._clock()
        place, sealed = self._place(key), self._seal.seal(self._part(kind, key), value)
        self._run("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?)", (kind, place, now + seconds, sealed))
        self._make_room(kind, now, most)

    def put_new(self, kind: str, key: bytes, seconds: float, most: int) -> bool:
        """Keep a note without a value if there is none with its key; return whether there was none."""
        now, place = self._clock(), self._place(key)
        self._run("DELETE FROM notes WHERE kind = ? AND key = ? AND expires_s <= ?", (kind, place, now))
        found = self._run("INSERT OR IGNORE INTO notes VALUES (?, ?, ?, x'')", (kind, place, now + seconds))
        self._make_room(kind, now, most)
        return found.rowcount == 1

    def get(self, kind: str, key: bytes) -> bytes | None:
        """Return a note; None if there is none or its time is over."""
        wanted = (kind, self._place(key), self._clock())
        row = self._run("SELECT value FROM notes WHERE kind = ? AND key = ? AND expires_s > ?", wanted).fetchone()
        return None if row is None else self._opened(kind, key, row[0])

    def take(self, kind: str, key: bytes) -> bytes | None:
        """Return a note and forget it; None if there is none or its time is over."""
        wanted = (kind, self._place(key))
        rows = self._run("DELETE FROM notes WHERE kind = ? AND key = ? RETURNING expires_s, value", wanted).fetchall()
        return self._opened(kind, key, rows[0][1]) if rows and rows[0][0] > self._clock() else None

    def count(self, kind: str) -> int:
        """Return how many notes of a kind are kept."""
        (found,) = self._run("SELECT count(*) FROM notes WHERE kind = ?", (kind,)).fetchone()
        return int(found)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _place(self, key: bytes) -> bytes:
        """Return the key under which a note lies in the file."""
        return hashlib.blake2b(key, key=self._key, digest_size=32).digest()

    @staticmethod
    def _part(kind: str, key: bytes) -> str:
        """Return what a note is sealed for: no other place of the file."""
        return f"{kind} {key.hex()}"

    def _opened(self, kind: str, key: bytes, sealed: bytes) -> bytes | None:
        """Return a note's value; None if the file was changed."""
        try:
            return self._seal.unseal(self._part(kind, key), sealed)
        except BrokenSeal:
            return None

    def _make_room(self, kind: str, now: float, most: int) -> None:
        self._run("DELETE FROM notes WHERE expires_s <= ?", (now,))
        over = self.count(kind) - most
        if over > 0:
            first = "SELECT key FROM notes WHERE kind = ? ORDER BY expires_s LIMIT ?"
            self._run(f"DELETE FROM notes WHERE kind = ? AND key IN ({first})", (kind, kind, over))

    def _run(self, statement: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise StoreUnavailable(detail=type(error).__name__) from error
