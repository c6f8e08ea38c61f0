"""Wheels and source archives, fetched by pip as the user has set it up. Nothing in them is ever run.

It leaves a finished archive in a folder of its own beside what it needs meanwhile; what is in the archive, and whether
that is right, is fetch.py's.

How a download goes on where it broke off: while pip downloads, the growing file has a second name here, so the bytes
outlive pip however it ends. Then this pull, or if the network stays away the next, asks pip where that file lies and
fetches the rest itself. Where that does not work out for whatever reason (no such file any more, a server that refuses,
a setting only pip understands, bytes that do not fit together) pip fetches the whole archive again.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Sequence
from pathlib import Path

from voxlane.engine.errors import FetchError
from voxlane.engine.weights.catalog import PyPISource, SdistSource
from voxlane.engine.weights.pip_settings import find_link, pip_command, route_to
from voxlane.engine.weights.resume import CannotResume, Cut, go_on

Progress = Callable[[float], None]

POLL_S = 0.2
"""How often the growing download is measured: pip's own bar cannot be read when its output is not a terminal."""
PART = ".part"
"""What the name of a half-downloaded archive ends in."""
FULL_BYTES = 1 << 16
"""A disk with less than this free is full: pip could not even say so."""

_UNREACHABLE = re.compile(
    r"connection ?(error|broken|refused|reset|aborted|timeout)|name resolution|max retries|proxyerror|sslerror"
    r"|unreachable|read timed out|problem confirming the ssl|incomplete-download|not enough bytes",
    re.IGNORECASE,
)
_INVALID = re.compile(r"wheel .* is invalid", re.IGNORECASE)
"""What pip says of a wheel that is damaged, and older ones of one that ends too soon."""


def download(
    source: PyPISource | SdistSource,
    downloads: Path,
    target: Path,
    size: int,
    progress: Progress,
    patience: Callable[[], Sequence[str]] = tuple,
) -> Path:
    """Return the archive of a source under `downloads`, where it stays, or raise FetchError.

    `target` and `size` are for messages only; `patience` returns options for pip, and is asked when pip is needed.
    """
    kept = downloads / re.sub(r"[^A-Za-z0-9.]", "_", source.requirement)
    pattern = "*.whl" if isinstance(source, PyPISource) else "*.tar.gz"
    if archives := list(kept.glob(pattern)):
        return archives[0]
    kept.mkdir(exist_ok=True)
    if (part := _largest_part(kept)) is not None and (archive := _go_on(source, part, progress)) is not None:
        return archive
    with tempfile.TemporaryDirectory(prefix="pip-", dir=downloads) as name:
        scratch = Path(name)
        try:
            _run_pip(source, scratch, kept, target, size, progress, patience())
        except FetchError as error:
            if (part := _largest_part(kept)) is None:
                raise
            if (archive := _go_on(source, part, progress)) is not None:
                return archive
            if part.exists():
                raise
            raise _damaged(source) from error
        archives = list((scratch / "archives").glob(pattern))
        if len(archives) != 1:
            raise FetchError(f"pip downloaded no {pattern[2:]} for {source.requirement}")
        archive = archives[0].replace(kept / archives[0].name)
    for part in kept.glob(f"*{PART}"):
        part.unlink()
    return archive


def _go_on(source: PyPISource | SdistSource, part: Path, progress: Progress) -> Path | None:
    """Fetch the rest of a half-downloaded archive; None if pip has to fetch it whole."""
    url = find_link(source.requirement, part.name.removesuffix(PART), binary=isinstance(source, PyPISource))
    if url is None:
        return None
    # A copy: a pip whose voxlane was killed may still be writing to the old one.
    own = part.with_name(f"{part.name}.copy")
    shutil.copyfile(part, own)
    own.replace(part)
    try:
        go_on(url, part, route_to(url), progress)
    except CannotResume:
        return None
    except Cut as error:
        raise _cut(source, part.stat().st_size) from error
    if not _sound(source, part):
        part.unlink()
        return None
    return part.replace(part.with_name(part.name.removesuffix(PART)))


def _sound(source: PyPISource | SdistSource, archive: Path) -> bool:
    """Tell whether old and new bytes are of one archive; what is in it is checked by its hash later."""
    if isinstance(source, SdistSource):
        with open(archive, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == source.sha256
    try:
        with zipfile.ZipFile(archive) as wheel:
            return wheel.testzip() is None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        return False


def _largest_part(kept: Path) -> Path | None:
    parts = [part for part in kept.glob(f"*{PART}") if part.stat().st_size]
    return max(parts, key=lambda part: part.stat().st_size, default=None)


def _run_pip(
    source: PyPISource | SdistSource,
    scratch: Path,
    kept: Path,
    target: Path,
    size: int,
    progress: Progress,
    options: Sequence[str],
) -> None:
    # Twice verbose: otherwise pip says "no matching distribution" when it could not reach its index at all. Without
    # pip's cache, which would hold the bytes of a model a second time for good.
    words = ("-vv", "--no-deps", "--no-cache-dir", "--progress-bar", "off", *options)
    command = pip_command("download", *words, "--dest", str(scratch / "archives"))
    # pip downloads into TMPDIR first: there it can be watched, and it is swept up with the rest. From 25.1 on it goes
    # on by itself after a short cut; older ones do not know the variable.
    environment = {"PIP_RESUME_RETRIES": "5"} | os.environ | {"TMPDIR": str(scratch / "tmp")}
    (scratch / "tmp").mkdir()
    if isinstance(source, PyPISource):
        command += ["--only-binary", ":all:", source.requirement]
    else:
        command += _write_sdist_request(source, scratch)
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(scratch / "backend"), os.environ.get("PYTHONPATH")))
        )
    grown = 0
    with open(scratch / "log", "w+b") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while True:
                try:
                    status = process.wait(POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    grown = max(grown, _keep_growing(scratch / "tmp", kept))
                    progress(min(1.0, grown / size))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if status != 0:
            log.seek(0)
            raise _pip_error(log.read().decode("utf-8", "replace"), source, scratch, target, grown)


def _keep_growing(temporary: Path, kept: Path) -> int:
    """Give the archive that pip is downloading a second name in `kept`, and return how long it is."""
    size = 0
    # os.walk, not glob: a folder that pip removes meanwhile is no error to it.
    found = [Path(folder) / name for folder, _, names in os.walk(temporary) for name in names]
    for growing in found:
        if growing.parent.parent != temporary or not growing.name.endswith((".whl", ".tar.gz")):
            continue
        part = kept / f"{growing.name}{PART}"
        # pip may move the file at any moment, and some file systems know no second names: then it is not kept.
        with contextlib.suppress(OSError):
            if not part.exists() or not part.samefile(growing):
                part.unlink(missing_ok=True)
                part.hardlink_to(growing)
            size = max(size, part.stat().st_size)
    return size


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


def _pip_error(
    log: str, source: PyPISource | SdistSource, scratch: Path, target: Path, grown: int
) -> FetchError | OSError:
    """Return one line that says what to do about a `pip download` that failed with `grown` bytes here."""
    # Where the disk is full, the log may be cut.
    if "No space left" in log or shutil.disk_usage(scratch).free < FULL_BYTES:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(scratch.parent))
    if "No module named pip" in log:
        return FetchError(f"{sys.executable} has no pip", f"run `{sys.executable} -m ensurepip` and try again")
    unreachable, invalid = _UNREACHABLE.search(log), _INVALID.search(log)
    if grown and (unreachable or invalid):
        return _cut(source, grown)
    if invalid:
        return _damaged(source)
    if unreachable:
        return FetchError(
            f"could not reach the package index for {source.requirement}",
            f"check your network or pip settings, or copy the file to {target}",
        )
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    return FetchError(f"pip could not download {source.requirement}: {errors[-1] if errors else log[-200:]}")


def _damaged(source: PyPISource | SdistSource) -> FetchError:
    return FetchError(f"the archive of {source.requirement} arrived damaged and was removed", "pull again")


def _cut(source: PyPISource | SdistSource, size: int) -> FetchError:
    reason = f"the connection was lost with {size / 1e6:.1f} MB of {source.requirement} here"
    return FetchError(reason, "pull again to go on from there")
