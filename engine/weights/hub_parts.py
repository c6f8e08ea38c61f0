"""Parts of large files: kept when a download ends too soon, and continued by the next pull.

huggingface_hub writes a file under a name of this one download and removes it when the download fails. A part is a
second name, a hard link, of the growing file. It is called by the hash that the whole must have, so a part never
continues as another file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path

WORKERS = 8
"""Files that are fetched at once: as many as huggingface_hub fetches."""

_ENDING = ".part"
_RANGE_NOT_SATISFIABLE = 416


@dataclass(frozen=True, slots=True)
class Part:
    """What an earlier pull may have left of a file."""

    folder: Path
    sha256: str  # of the whole
    size: int  # of the whole

    @property
    def path(self) -> Path:
        """Where the part lies."""
        return self.folder / f"{self.sha256}{_ENDING}"

    def keep(self, growing: Iterable[Path]) -> None:
        """Give a growing file this part's name as well, if it holds more than the part."""
        for path in growing:
            # The library may have just moved the file, and some file systems have no links: then no part is kept.
            with contextlib.suppress(OSError):
                if bytes_of(path) > bytes_of(self.path):
                    link = self.path.with_suffix(".link")
                    link.unlink(missing_ok=True)
                    os.link(path, link)
                    link.replace(self.path)

    def complete(self, url: str, headers: dict[str, str], target: Path) -> bool:
        """Fetch the rest from `url` and put the whole at `target`; return whether it has its hash.

        A part of which nothing can be made is removed. Without a part nothing happens.
        """
        if not self.path.exists():
            return False
        with open(self.path, "r+b") as file:
            sound = self._fetch_rest(file, url, headers) and self._has_its_hash(file)
        if sound:
            target.parent.mkdir(parents=True, exist_ok=True)
            self.path.replace(target)
        else:
            self.remove()
        return sound

    def remove(self) -> None:
        """Forget what was kept."""
        self.path.unlink(missing_ok=True)

    def _fetch_rest(self, file: BufferedRandom, url: str, headers: dict[str, str]) -> bool:
        """Fetch what is missing; return False if the server cannot continue this file."""
        from huggingface_hub import errors, file_download

        # A file that came in pieces may have holes. The part ends at the first one.
        here = min(os.lseek(file.fileno(), 0, os.SEEK_HOLE), self.size) if bytes_of(self.path) else 0
        file.truncate(here)
        file.seek(here)
        try:
            file_download.http_get(url, file, resume_size=here, headers=headers, expected_size=self.size)
        except errors.HfHubHTTPError as error:
            if error.response.status_code != _RANGE_NOT_SATISFIABLE:
                raise
            return False
        except OSError as error:
            if error.errno is not None:
                raise
            return False  # the library's error for another number of bytes
        return True

    def _has_its_hash(self, file: BufferedRandom) -> bool:
        file.flush()
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256


def remove_parts(folder: Path, *, but: Iterable[str] = ()) -> None:
    """Remove the parts in a folder except those of files with the hashes `but`."""
    kept = set(but)
    for path in folder.glob(f"*{_ENDING}"):
        if path.stem not in kept:
            path.unlink(missing_ok=True)


def bytes_of(path: Path) -> int:
    """Return the size of a file without its holes, 0 if there is none: pieces of a file are written in any order."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0  # the library has just moved it
    return min(status.st_size, status.st_blocks * 512)


def side_by_side(tasks: Sequence[Callable[[], object]]) -> None:
    """Run tasks in threads and wait for them; raise the first error. After an error no further task begins.

    The threads end with the process. The threads of huggingface_hub do not: after Ctrl-C the process would stay until
    they have fetched their files.
    """
    outcomes: list[Future[object]] = [Future() for _ in tasks]
    waiting: queue.SimpleQueue[tuple[Callable[[], object], Future[object]]] = queue.SimpleQueue()
    for pair in zip(tasks, outcomes, strict=True):
        waiting.put(pair)
    failed = threading.Event()

    def work() -> None:
        while not failed.is_set():
            try:
                task, outcome = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                outcome.set_result(task())
            except Exception as error:  # noqa: BLE001 - the caller raises it
                failed.set()
                outcome.set_exception(error)

    threads = [threading.Thread(target=work, name="hub-file", daemon=True) for _ in tasks[:WORKERS]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcome in outcomes:
        if outcome.done():
            outcome.result()
