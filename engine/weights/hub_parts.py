"""The files of one Hugging Face pull while they arrive: how much is on the disk, and what an ended pull left behind.

It knows the layout of the library's cache (`blobs/ETAG`, `blobs/ETAG.*.incomplete` on its way there), not the library.

The library's newer versions delete a half-downloaded file when they end. So a growing one gets a second name in a
folder of ours, and the next pull completes it there, if its hash is known: that of every large file is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from voxlane.engine.weights.resume import CannotResume, Route, go_on

Progress = Callable[[float], None]

POLL_S = 0.2
"""How often the growing files are measured: the bars of the library's versions count different things."""
_BLOCK_BYTES = 4096
"""Of the file systems that tell where a file has holes."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file that a pull takes."""

    size: int  # bytes
    etag: str  # the name of its content in the library's cache
    sha256: str | None
    url: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """The files of a pull, where the library puts them and where we keep what is unfinished."""

    files: tuple[HubFile, ...]
    blobs: Path
    parts: Path

    def complete(self, route: Route, progress: Progress) -> None:
        """Fetch the rest of what an earlier pull began and put it where the library looks first, or raise Cut."""
        for file in self.files:
            self._adopt(file)
            part, blob = self.parts / file.etag, self.blobs / file.etag
            if file.sha256 is None or blob.exists() or not part.exists():
                continue
            os.truncate(part, _length_without_holes(part))
            try:
                go_on(file.url, part, route, lambda done: progress(self._share()))
            except CannotResume:
                continue
            with open(part, "rb") as stream:
                whole = hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
            if whole:
                self.blobs.mkdir(parents=True, exist_ok=True)
                part.replace(blob)
            else:
                part.unlink()

    @contextmanager
    def watched(self, progress: Progress) -> Iterator[None]:
        """Report progress from a thread while the library works, and keep what it has not finished when it fails."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(POLL_S):
                for file in self.files:
                    self._keep(file)
                progress(self._share())

        thread = threading.Thread(target=watch, name="hub-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        shutil.rmtree(self.parts, ignore_errors=True)

    def _adopt(self, file: HubFile) -> None:
        """Take over what a killed process was downloading; the lock on the repository says that it is dead."""
        part = self.parts / file.etag
        for left in self.blobs.glob(f"{file.etag}.*.incomplete"):
            if _size(left) > _size(part):
                self.parts.mkdir(parents=True, exist_ok=True)
                # Renaming a file to another of its names would leave both.
                part.unlink(missing_ok=True)
                left.rename(part)
            else:
                left.unlink()

    def _keep(self, file: HubFile) -> None:
        part = self.parts / file.etag
        for growing in self.blobs.glob(f"{file.etag}.*.incomplete"):
            # The library may rename or delete it at any moment, and some file systems know no second names.
            with contextlib.suppress(OSError):
                self.parts.mkdir(parents=True, exist_ok=True)
                if not part.exists() or not part.samefile(growing):
                    part.unlink(missing_ok=True)
                    part.hardlink_to(growing)

    def _share(self) -> float:
        total = sum(file.size for file in self.files)
        return min(1.0, sum(map(self._bytes_here, self.files)) / total) if total else 0.0

    def _bytes_here(self, file: HubFile) -> int:
        if (self.blobs / file.etag).exists():
            return file.size
        return max(map(_size, [self.parts / file.etag, *self.blobs.glob(f"{file.etag}*.incomplete")]))


def _size(path: Path) -> int:
    """Return how many bytes of a file are there, not counting holes; 0 if it is gone."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0
    return min(status.st_size, status.st_blocks * 512)


def _length_without_holes(path: Path) -> int:
    """Return how far a file was written without a gap: a file that comes in pieces is written in any order."""
    size = path.stat().st_size
    if size == 0 or not hasattr(os, "SEEK_HOLE"):
        return size
    with open(path, "rb") as file:
        hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE)
    # The last block before a hole may be full in part only.
    return size if hole >= size else max(0, hole // _BLOCK_BYTES - 1) * _BLOCK_BYTES
