"""Compare files of weights with their known hashes before they are loaded.

A hash is computed once for each state of a file: a note keeps inode, size and times of the file that had it. Every
change of a file's content changes one of them, so a second start reads no file twice. Files without a known hash are
not checked here; the readers of their formats check every number in their headers.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from voxlane.engine.errors import WeightsError
from voxlane.engine.weights.fetch import sha256_of

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file and the hash that its content must have."""

    path: Path
    sha256: str  # hexadecimal


def verify(files: Iterable[KnownFile], notes: Path, command: str, progress: Progress = lambda done: None) -> None:
    """Raise WeightsError for the first file whose content is another; it names the `command` that fetches it again.

    `notes` is the folder with the notes about files that were checked before. `progress` is called if one is read.
    """
    for known in files:
        with _readable(known.path):
            note = notes / _note_name(known.path.stat())
            if _noted(note) == _state(known):
                continue
            before = _state(known)
            if sha256_of(known.path, progress) != known.sha256:
                raise WeightsError(known.path, f"the file is damaged: its hash is not the known one; run `{command}`")
        with contextlib.suppress(OSError):  # a cache that cannot be written: the next start reads the file again
            _write(note, before)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WeightsError(path, f"cannot be read: {error.strerror or error}") from error


def _note_name(stat: os.stat_result) -> str:
    return f"{stat.st_dev}-{stat.st_ino}"


def _state(known: KnownFile) -> str:
    """Return what must be the same for the hash to be the same."""
    stat = known.path.stat()
    return f"{known.sha256} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}\n"


def _noted(note: Path) -> str:
    try:
        return note.read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def _write(note: Path, text: str) -> None:
    note.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=note.parent)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(text)
    os.replace(partial, note)
