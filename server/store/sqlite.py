"""Records in an SQLite file: for one machine, several processes at a time, and the process after this one.

One thread writes. It takes everything that waits as one transaction, so that many conversations share one commit and
the event loop never waits for the disk. The file is in WAL mode with `synchronous = NORMAL`: a commit is in the
system's hands when it returns, so it survives a killed server; only a power failure may take back the last commits,
and never breaks the file. `FULL` would wait for the disk before each word that a client is told.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from voxlane.server.errors import ConfigError, StoreUnavailable, VoxlaneError
from voxlane.server.store.values import PARTS, ClaimedSession, SessionClaim, SessionWrite, WriteOutcome, token_hashes
from voxlane.server.store.wal import use_wal

SCHEMA_VERSION = 1
"""The version of the tables, in `user_version`. A file of a newer version is refused; an older one is brought here."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    name TEXT PRIMARY KEY,
    fence INTEGER NOT NULL,
    owner TEXT NOT NULL,
    expires_ms INTEGER NOT NULL,
    tokens BLOB NOT NULL,
    config BLOB,
    history BLOB,
    recent BLOB
);
CREATE INDEX IF NOT EXISTS sessions_expire ON sessions (expires_ms);
"""

MOST_AT_ONCE = 512
"""Operations of one transaction."""

OPEN_SECONDS = 5.0
"""How long a process waits at its start for another one that holds the file."""

CLEAN_EVERY_MS = 60_000
"""How often expired records are deleted."""

_Answer = TypeVar("_Answer")
_Work = Callable[[sqlite3.Connection], Any]
_Told = tuple[asyncio.Future[Any], Any, Exception | None]  # what waits, its answer, or its error


class SqliteStore:
    """Records in one file, which only its owner may read."""

    outlives_process = True

    def __init__(self, path: Path, wait_s: float) -> None:
        self._path = path
        self._wait_s = wait_s
        self._queue: queue.SimpleQueue[tuple[_Work, asyncio.Future[Any], bool] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cleaned_ms = 0

    async def open(self) -> None:
        """Open the file, make its tables, and start the thread that writes."""
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._serve, args=(opened,), name="store", daemon=True)
        self._thread.start()
        await opened

    async def write(self, write: SessionWrite) -> WriteOutcome:
        """Change a record, if its owner and fence are those of the write."""
        return await self._run(lambda database: self._write(database, write))

    async def claim(self, claim: SessionClaim) -> ClaimedSession | None:
        """Give a record to another owner; return None if there is none with this token."""
        return await self._run(lambda database: self._claim(database, claim), awaited=True)

    async def aclose(self) -> None:
        """Write what waits, and close the file."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            await asyncio.get_running_loop().run_in_executor(None, thread.join, OPEN_SECONDS)

    async def _run(self, work: Callable[[sqlite3.Connection], _Answer], *, awaited: bool = False) -> _Answer:
        """Have the thread do something; what is `awaited` is left out if the caller has given up by then."""
        if self._thread is None:
            raise StoreUnavailable
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._queue.put((work, answer, awaited))
        try:
            async with asyncio.timeout(self._wait_s):
                return await answer
        except TimeoutError as error:
            raise StoreUnavailable(detail="timeout") from error

    # ---- in the thread

    def _serve(self, opened: asyncio.Future[None]) -> None:
        try:
            database = open_database(self._path, self._wait_s)
        except VoxlaneError as error:
            self._tell([(opened, None, error)])
            return
        self._tell([(opened, None, None)])
        try:
            while self._serve_waiting(database):
                pass
        finally:
            database.close()

    def _serve_waiting(self, database: sqlite3.Connection) -> bool:
        """Do everything that waits in one transaction; return whether more may come."""
        waiting = [self._queue.get()]
        with suppress(queue.Empty):
            while len(waiting) < MOST_AT_ONCE:
                waiting.append(self._queue.get_nowait())
        known = [one for one in waiting if one is not None]
        work = [(do, future) for do, future, awaited in known if not (awaited and future.done())]
        try:
            database.execute("BEGIN IMMEDIATE")
            answers: list[_Told] = [(future, do(database), None) for do, future in work]
            database.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            failed = StoreUnavailable(detail=type(error).__name__)
            self._tell([(future, None, failed) for _, future in work])
        else:
            self._tell(answers)
        return None not in waiting

    def _tell(self, answers: list[_Told]) -> None:
        """Give the event loop the answers, all in one call."""

        def tell() -> None:
            for future, answer, error in answers:
                if future.done():  # nothing waits for it any more
                    continue
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(answer)

        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: nothing waits
            self._loop.call_soon_threadsafe(tell)

    def _write(self, database: sqlite3.Connection, write: SessionWrite) -> WriteOutcome:
        self._clean(database, write.now_ms)
        if write.ends:
            changes = "owner = '', tokens = x'', config = NULL, history = NULL, recent = NULL"
            values: list[object] = []
        else:
            changes = "tokens = coalesce(?, tokens), " + ", ".join(f"{part} = coalesce(?, {part})" for part in PARTS)
            values = [write.tokens, *(write.parts.get(part) for part in PARTS)]
        owned = (write.name, write.fence, write.owner, write.now_ms)
        changed = database.execute(
            f"UPDATE sessions SET expires_ms = ?, {changes}"
            " WHERE name = ? AND fence = ? AND owner = ? AND expires_ms > ?",
            (write.expires_ms, *values, *owned),
        )
        if changed.rowcount:
            return "written"
        live = "SELECT fence FROM sessions WHERE name = ? AND expires_ms > ?"
        held = database.execute(live, (write.name, write.now_ms)).fetchone()
        behind = held is not None and held[0] < write.fence
        if held is not None and not behind:
            return "other_owner"
        if not (write.creates or (behind and write.ends)):
            return "missing"
        database.execute(
            "INSERT OR REPLACE INTO sessions (name, fence, owner, expires_ms, tokens, config, history, recent)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                write.name,
                write.fence,
                "" if write.ends else write.owner,
                write.expires_ms,
                b"" if write.ends else write.tokens or b"",
                *(None if write.ends else write.parts.get(part) for part in PARTS),
            ),
        )
        return "written"

    def _claim(self, database: sqlite3.Connection, claim: SessionClaim) -> ClaimedSession | None:
        row = database.execute(
            "SELECT fence, tokens, config, history, recent FROM sessions WHERE name = ? AND expires_ms > ?",
            (claim.name, claim.now_ms),
        ).fetchone()
        if row is None or claim.token_hash not in token_hashes(row[1]):
            return None
        if claim.fence not in (0, row[0]):
            return None
        fence = row[0] if claim.looks else max(row[0] + 1, claim.now_ms)
        if not claim.looks:
            database.execute(
                "UPDATE sessions SET fence = ?, owner = ?, expires_ms = ? WHERE name = ?",
                (fence, claim.owner, claim.expires_ms, claim.name),
            )
        parts = {part: content for part, content in zip(PARTS, row[2:], strict=True) if content is not None}
        return ClaimedSession(fence, row[1], parts)

    def _clean(self, database: sqlite3.Connection, now_ms: int) -> None:
        if abs(now_ms - self._cleaned_ms) >= CLEAN_EVERY_MS:
            self._cleaned_ms = now_ms
            database.execute("DELETE FROM sessions WHERE expires_ms <= ?", (now_ms,))


def open_database(path: Path, wait_s: float) -> sqlite3.Connection:
    """Return a connection to the file with the tables of this version; raise ConfigError if it cannot be used."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)  # SQLite gives its other two files the same mode
    except OSError as error:
        raise ConfigError(f"store.path: {path}: {error.strerror}") from error
    database = sqlite3.connect(path, isolation_level=None, timeout=OPEN_SECONDS)
    try:
        use_wal(database)
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("BEGIN IMMEDIATE")  # two processes may start at the same time
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise ConfigError(f"store.path: {path} was written by a newer voxlane (version {version} of its tables)")
        for statement in filter(str.strip, _SCHEMA.split(";")):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        database.execute("COMMIT")
        database.execute(f"PRAGMA busy_timeout = {int(wait_s * 800)}")  # below the time that callers wait
    except sqlite3.Error as error:
        database.close()
        raise ConfigError(f"store.path: {path} is not a file of conversations: {error}") from error
    except ConfigError:
        database.close()
        raise
    return database
