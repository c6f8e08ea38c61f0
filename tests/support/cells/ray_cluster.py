"""Cells of the scripted engine that a real Ray on this machine runs, driven by the command `voxlane cluster`."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cell_process import children, runs
from cells import free_port
from waiting import until

from voxlane.server.cluster.keeper import ask_ready

COMMAND_S = 180.0
"""Generous: a command fails by it only if it never ends."""

PROGRAM = (sys.executable, str(Path(__file__).parents[1] / "scripted_voxlane.py"))
CELL_FILE = """\
[server]
drain_s = 60.0
trusted_proxies = ["127.0.0.1"]
processes = {processes}
[engine]
model = "scripted"
asr_model = "moonshine-tiny-en"
tts_model = "hibari"
[room]
measured = false
[store]
kind = "redis"
url = "{store}"
wait_s = 1.0
"""


RestartableHead = Callable[[], None]


def free_ports(count: int) -> int:
    """Return the first of some ports in a row that were free a moment ago."""
    while True:
        first = free_port()
        with suppress(OSError, OverflowError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first


class RayCluster:
    """What one test runs: a folder and an environment of its own, and the processes of Ray that it has started."""

    def __init__(self, store_url: str, cells: int = 2, processes: int = 1) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vr", dir="/tmp"))  # Ray's sockets need short paths
        token = self.folder / "token"
        token.write_text("0123456789abcdef" * 4)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "XDG_STATE_HOME": str(self.folder),
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.token_environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        self.ports = free_ports(cells), free_ports(cells)
        (self.folder / "cell.toml").write_text(CELL_FILE.format(store=store_url, processes=processes))
        self.file = self.folder / "cluster.toml"
        self.file.write_text(
            f"cells = {cells}\nport = {self.ports[0]}\nagent_port = {self.ports[1]}\nhost = '127.0.0.1'\n"
            f"config = '{self.folder / 'cell.toml'}'\nprogram = {list(PROGRAM)!r}\n"
        )
        self._started: list[subprocess.Popen[bytes]] = []

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `voxlane cluster …`."""
        command = (sys.executable, "-m", "voxlane.server.cli", "cluster", *arguments)
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )

    def done(self, *arguments: str) -> str:
        """Run it and return what it prints; fail if it fails."""
        ended = self.command(*arguments)
        assert ended.returncode == 0, f"{arguments}: {ended.stderr}"
        return ended.stdout

    def up(self, *arguments: str) -> None:
        """Start the cells and wait for them."""
        self.done("up", "--file", str(self.file), "--timeout", "120", *arguments)

    def cells(self, *, patient: bool = False) -> dict[str, dict[str, Any]]:
        """Return what `status` knows of each cell; with `patient`, nothing while no head answers."""
        ended = self.command("status", "--json")
        assert patient or ended.returncode == 0, ended.stderr
        return {cell["name"]: cell for cell in json.loads(ended.stdout or "[]")}

    def ready_cells(self) -> dict[str, dict[str, Any]]:
        """Wait until `status` tells that all cells are ready; return what it knows of them."""
        last: dict[str, dict[str, Any]] = {}
        deadline = time.monotonic() + COMMAND_S
        while time.monotonic() < deadline:
            last = self.cells(patient=True)
            if {cell["state"] for cell in last.values()} == {"ready"}:
                return last
        raise AssertionError(f"not all are ready: {last}")

    def until_answers(self, name: str) -> None:
        """Wait until a cell that has ended answers again that it is ready."""
        number = int(name.removeprefix("cell"))
        until(lambda: self._answers(self.ports[0] + number - 1), f"{name} is ready again")

    def _answers(self, port: int) -> bool:
        with suppress(OSError, http.client.HTTPException, ValueError):
            return ask_ready("http", "127.0.0.1", port) is not None
        return False

    # ---- a Ray of several nodes

    def head(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a head; all that follows uses its token."""
        self.environment.update(self.token_environment)
        return self._ray("--head", "--include-dashboard", "false", *arguments, **environment)

    def node(self, address: str, cpus: int) -> subprocess.Popen[bytes]:
        """Start another node on this machine."""
        return self._ray("--address", address, "--num-cpus", str(cpus))

    def _ray(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"ray{len(self._started)}.log"
        command = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *arguments)
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env={**self.environment, **environment}, stdout=output, stderr=output, start_new_session=True
            )
        self._started.append(process)
        until(lambda: b"Ray runtime started" in log.read_bytes() or process.poll() is not None, "Ray starts")
        assert process.poll() is None, log.read_text()
        return process

    def kill_head(self, head: subprocess.Popen[bytes]) -> RestartableHead:
        """Kill a head and all that it runs; return what starts its state's keeper again, as systemd would.

        `ray start --head` would refuse to: it sees the other node on this machine, and takes it for a head.
        """
        pid = child_named(head.pid, "gcs_server")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        pairs = (pair.partition(b"=") for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if pair)
        environment = {name: value for name, _, value in pairs}
        seconds_until_gone(kill_all(head.pid))
        return lambda: self._started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )

    # ---- the end

    def local_pid(self) -> int:
        """Return the process of the Ray that `up` has started."""
        return int(json.loads((self.folder / "voxlane" / "ray" / "running.json").read_text())["pid"])

    def end(self) -> None:
        """End what still runs, with all its children."""
        self.command("down", "--now")
        for process in self._started:
            if process.poll() is None:
                kill_all(process.pid)
                process.wait(60)
        with suppress(OSError):  # `down` has failed
            kill_all(self.local_pid())
        shutil.rmtree(self.folder, ignore_errors=True)


def child_named(pid: int, part: str) -> int:
    """Return the child of a process whose program's path has this part."""
    for child in children(pid):
        with suppress(OSError):
            if part in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0].decode():
                return child
    raise AssertionError(f"{pid} has no child {part}")


def kill_all(pid: int) -> list[int]:
    """Kill a process and its children; return their numbers."""
    pids = [pid, *children(pid)]
    for one in pids:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    return pids


def seconds_until_gone(pids: list[int]) -> float:
    """Wait until processes have ended; return how long that took."""
    start = time.monotonic()
    until(lambda: not any(map(runs, pids)), "the processes have ended")
    return time.monotonic() - start
