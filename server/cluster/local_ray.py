"""A Ray of this machine alone, for those who have none: started in the background, found again, stopped.

Ray listens on all addresses, and whoever reaches it can run code. So this one asks for a token, which lies in a file
that only this user can read, and sends no usage reports.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from platformdirs import user_state_path

from voxlane.server.errors import ConfigError

START_SECONDS, STOP_SECONDS = 120.0, 60.0
LOOK_SECONDS = 0.1
STARTED = "Ray runtime started"


@dataclass(frozen=True, slots=True)
class LocalRay:
    """A Ray that `voxlane cluster up` has started."""

    pid: int
    started: str  # the process's start, in the kernel's ticks: a number may be used again
    address: str

    @property
    def runs(self) -> bool:
        """Whether it still runs."""
        return bool(self.started) and start_of(self.pid) == self.started


def folder() -> Path:
    """Return where the token, the record and the log lie."""
    return user_state_path("voxlane") / "ray"


def start_of(pid: int) -> str:
    """Return when a process began, in the kernel's ticks; "" if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def find() -> LocalRay | None:
    """Return the Ray that was started here, if it runs."""
    try:
        found = LocalRay(**json.loads((folder() / "running.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.runs else None


def environment() -> dict[str, str]:
    """Return the variables with which Ray asks for the token, and its clients show it."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder() / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def start(*, cpus: float, gpus: int) -> LocalRay:
    """Start a Ray in the background that offers at least so much; it outlasts this command."""
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    _write_private(place / "token", secrets.token_hex(32))
    port = _free_port()
    log = place / "ray.log"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    # A cell is placed by what the operator says that it needs, not by how many cores there happen to be.
    offers = ["--num-cpus", str(max(int(-(-cpus // 1)), os.cpu_count() or 1))]
    offers += ["--num-gpus", str(gpus)] if gpus else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *offers, "--port", str(port), "--include-dashboard", "false"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **environment()},
        )
    try:
        _wait_started(process, log)
        ray = LocalRay(process.pid, start_of(process.pid), f"127.0.0.1:{port}")
        _write_private(place / "running.json", json.dumps(asdict(ray)))
    except BaseException:  # Ctrl-C, too: without its record no command would find it
        _end(process)
        raise
    process.returncode = 0  # it is meant to outlast this command, which Popen would complain about
    return ray


def _wait_started(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while STARTED not in log.read_text(encoding="utf-8", errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise ConfigError(f"Ray could not be started on this machine: see {log}")
        time.sleep(LOOK_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a Ray that has not started, with all its processes."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
        process.wait()


def stop(ray: LocalRay) -> None:
    """Stop a Ray that was started here, with all its processes; those of another Ray stay."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(ray.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while ray.runs and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(ray.pid, os.WNOHANG)  # where this very process has started it
    if ray.runs:
        raise ConfigError(f"Ray does not stop: its process is {ray.pid}")
    (folder() / "running.json").unlink(missing_ok=True)


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
