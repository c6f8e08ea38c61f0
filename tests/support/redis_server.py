"""A Redis or Valkey server of a test's own, on a Unix socket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import redis
from waiting import until

BINARIES = ("valkey-server", "redis-server")


def redis_binary() -> str:
    """Return the server's path; install Debian's package where that is allowed, or raise RuntimeError with a reason."""
    found = next(filter(None, map(shutil.which, BINARIES)), None)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get") is not None and os.environ.get("CI"):
        for package in BINARIES:
            subprocess.run(("apt-get", "install", "-y", "-q", package), capture_output=True, check=False)
        found = next(filter(None, map(shutil.which, BINARIES)), None)
    if found is None:
        raise RuntimeError(f"this machine has neither of {' and '.join(BINARIES)}: install one of these packages")
    return found


class RedisServer:
    """A server that keeps nothing on disk."""

    def __init__(self, binary: str, folder: Path) -> None:
        path = folder / "redis.sock"
        self.url = f"unix://{path}"
        options = ("--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", str(folder))
        self._process = subprocess.Popen((binary, *options), stdout=subprocess.DEVNULL)
        until(path.exists, "the Redis server listens", 30)

    def clear(self) -> None:
        """Forget all records."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def forget_scripts(self) -> None:
        """Forget all scripts, as after a restart."""
        with redis.Redis.from_url(self.url) as client:
            client.script_flush()

    def connections(self) -> int:
        """Return the number of open connections."""
        with redis.Redis.from_url(self.url) as client:
            return len(client.client_list())

    def hang(self) -> None:
        """Answer nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Answer again."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait(30)
