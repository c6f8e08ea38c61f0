"""The private folder of a running cell: counts, metrics, conversations of its own store. It is gone with the cell."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from voxlane.server.errors import ConfigError

PREFIX = "voxlane-cell-"
_LOCK = "lock"


LEAST_FREE_BYTES = 256 << 20
"""Room that a folder in memory must have: containers often get 64 MB, which some thousand conversations would fill."""


def usual_base() -> Path:
    """Return a folder in memory, where there is one with room."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or not os.access(shared, os.W_OK):
        return Path(tempfile.gettempdir())
    free = os.statvfs(shared)
    return shared if free.f_bavail * free.f_frsize >= LEAST_FREE_BYTES else Path(tempfile.gettempdir())


@contextmanager
def cell_folder(base: Path | None = None) -> Iterator[Path]:
    """Make a folder that only this user can read, and delete it at the end.

    A supervisor that was killed leaves its folder; the next one deletes it.
    """
    base = base or usual_base()
    try:
        _delete_left_over(base)
        folder, descriptor = _locked_folder(base)
    except OSError as error:
        raise ConfigError(f"server.processes: no folder for the cell in {base}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked_folder(base: Path) -> tuple[Path, int]:
    """Make a folder and take its lock; return both.

    Another supervisor that starts at the same moment may delete the folder before its lock is held. Then a new one is
    made: two cells of one user are both in their rights.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))  # mode 0700
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # a supervisor that deletes the folder holds it for a moment
        if _is_at(descriptor, folder / _LOCK):
            return folder, descriptor
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is the one at a path, and was not deleted."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _delete_left_over(base: Path) -> None:
    """Delete the folders of this user's cells that were killed: their locks are free."""
    for folder in base.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            try:
                descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:  # it was killed before it made the lock, or makes it now: then it begins again
                folder.rmdir()
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
