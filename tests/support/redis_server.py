"""A Redis or Valkey server of a test's own, on a Unix socket."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from machines import Machine
from waiting import until

BINARIES = ("valkey-server", "redis-server")
NETWORK_PORT = 6379
"""Its port on a machine of its own, where nothing else listens."""


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
    """A server that keeps nothing on disk by itself, and compresses nothing: what is in a record can be seen."""

    def __init__(self, binary: str, folder: Path, machine: Machine | None = None, *, port: int = 0) -> None:
        """Start it; with a port, or on a machine of its own, it has an address too."""
        self._path = folder / f"redis{port or ''}.sock"
        self.url = f"unix://{self._path}"
        self.address = f"127.0.0.1:{port}"
        listen = ("--port", str(port), "--bind", "127.0.0.1")
        if machine is not None:
            self.address = f"redis://{machine.host}:{NETWORK_PORT}/0"
            listen = ("--port", str(NETWORK_PORT), "--bind", machine.host, "--protected-mode", "no")
        options = (
            *listen,
            "--unixsocket",
            str(self._path),
            "--save",
            "",
            "--appendonly",
            "no",
            "--rdbcompression",
            "no",
        )
        self._command = (*(machine.inside if machine is not None else ()), binary, *options, "--dir", str(folder))
        self.start()

    def start(self) -> None:
        """Start it, with no records."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until(self._answers, "the Redis server listens", 30)

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait(30)

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

    def records(self) -> bytes:
        """Return all keys and values, as they are kept."""
        with redis.Redis.from_url(self.url) as client:
            return b"".join(part for key in client.scan_iter() for part in (key, client.dump(key)))

    def plant(self, word: str) -> None:
        """Keep a word that a search must find."""
        with redis.Redis.from_url(self.url) as client:
            client.set("planted", word)

    def saved(self) -> bytes:
        """Have it write its file, as an operator may, and return that."""
        with redis.Redis.from_url(self.url) as client:
            client.save()
        return (self._path.parent / "dump.rdb").read_bytes()

    def memory(self) -> bytes:
        """Return what the process has in memory and may have been written to."""
        pid, pieces = self._process.pid, []
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                span, rights, *_ = line.split()
                if rights.startswith("rw") and "[v" not in line:
                    begin, end = (int(number, 16) for number in span.split("-"))
                    memory.seek(begin)
                    pieces.append(memory.read(end - begin))
        return b"".join(pieces)

    @contextmanager
    def monitored(self) -> Iterator[Callable[[], bytes]]:
        """Watch every command with MONITOR; give a function that returns them when the context has ended."""
        seen: list[bytes] = []
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._path))
            connection.sendall(b"MONITOR\r\n")

            def read() -> None:
                while data := connection.recv(1 << 20):
                    seen.append(data)

            reader = threading.Thread(target=read)
            reader.start()
            until(lambda: seen, "Redis is watched", 30)
            try:
                yield lambda: b"".join(seen)
            finally:
                connection.shutdown(socket.SHUT_RDWR)
                reader.join()

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
