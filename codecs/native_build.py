"""Compile C++ files into a shared library with the machine's own compiler, once for each machine.

The library lies in the user's cache folder, under a name that changes with its sources, the flags, the compiler and the
processor. A machine without a compiler gets a BuildError; the caller then serves with its reference.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import platformdirs

FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-ffp-contract=off")

_TUNING = (("-march=native",), ("-mcpu=native",), ())  # the first that the compiler takes
_BUILD_SECONDS = 300.0


class BuildError(Exception):
    """The library cannot be built here; the text says what would help."""


def build(name: str, sources: Sequence[Path], headers: Sequence[Path], flags: Sequence[str] = FLAGS) -> Path:
    """Return the path of the library `name`, compiling it unless this machine has done so before."""
    compiler = _compiler()
    path = _cache() / "native" / fingerprint(compiler, (*sources, *headers), flags) / name
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{folder}" for folder in sorted({header.parent for header in headers})]
    failure = ""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        for tuning in _TUNING:
            command = [compiler, *flags, *tuning, *includes, *map(str, sources), "-o", str(built)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
            if done.returncode == 0:
                os.replace(built, path)  # atomic: two processes may build at once
                return path
            failure = failure or done.stderr
    reason = next((line for line in failure.splitlines() if "error" in line), "no message")
    raise BuildError(f"{compiler} failed ({reason}); a g++ or clang++ with C++17 is needed")


def fingerprint(compiler: str, files: Iterable[Path], flags: Sequence[str] = FLAGS) -> str:
    """Return a name for one exact library: sources, flags, compiler and processor."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    digest = hashlib.sha256(repr((tuple(flags), _TUNING, version, platform.machine(), _features())).encode())
    for source in sorted(files):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:24]


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise BuildError("no C++ compiler found; install g++ or clang++ (Debian, Ubuntu: apt install g++), or set CXX")


def _features() -> str:
    """Return the processor's features: different machines may share a cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    kinds = ("flags", "Features", "model name", "CPU part", "CPU implementer")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))


def _cache() -> Path:
    return Path(os.environ.get("VOXLANE_CACHE") or platformdirs.user_cache_dir("voxlane"))
