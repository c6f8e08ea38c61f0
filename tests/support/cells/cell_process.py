"""A cell around the scripted engine as processes of its own: a supervisor, server processes, engines."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from house import ENGINE_COMMAND

END_S = 60.0
"""Generous: a test fails by it only if a process never ends."""


class CellProcess:
    """One `voxlane serve --processes K`."""

    def __init__(self, log: Path, processes: int = 2, *, api_key: str = "", **parts: Mapping[str, Any]) -> None:
        """Start it and wait until it is ready; `parts` are sections of the configuration by their names."""
        engine = {
            "model": "scripted",
            "asr_model": "moonshine-tiny-en",
            "tts_model": "hibari",
            **parts.pop("engine", {}),
        }
        sections = {"server": {"port": 0, "drain_s": 5.0, **parts.pop("server", {})}, "engine": engine, **parts}
        code = (
            "import asyncio, sys, uvloop\n"
            "from voxlane.server import cli, log\n"
            "from voxlane.server.cell.messages import Secrets\n"
            "from voxlane.server.config import Config\n"
            "from voxlane.server.commands.supervisor import serve_cell\n"
            "from voxlane.server.errors import ConfigError, VoxlaneError\n"
            "from voxlane.server.validation import checked\n"
            "log.set_up('info')\n"
            f"config = checked(Config, {sections!r})\n"
            "with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:\n"
            "    try:\n"
            f"        runner.run(serve_cell(config, Secrets({api_key!r}), {processes},"
            f" engine_command={ENGINE_COMMAND!r}))\n"
            "    except ConfigError as error:\n"
            "        sys.exit(f'voxlane: {error.hint}')\n"
            "    except VoxlaneError as error:\n"
            "        sys.exit(f'voxlane: {error.code} {error.hint}')\n"
        )
        self.log = log
        with log.open("a") as errors:
            command = [sys.executable, "-c", code]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        if not first.startswith("voxlane "):
            self.wait()
        assert first.startswith("voxlane "), f"the cell did not start: {log.read_text()}"
        self.url = first.split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    @property
    def pid(self) -> int:
        """The supervisor's process number."""
        return self.process.pid

    def servers(self) -> list[int]:
        """Return the process numbers of the server processes that listen."""
        listening = sockets_on(self.port)
        workers = [pid for pid in children(self.pid) if "commands.worker" in command_of(pid)]
        return [pid for pid in workers if listening & sockets_of(pid)]

    def engines(self) -> list[int]:
        """Return the process numbers of the engines."""
        return [pid for pid in children(self.pid) if "scripted_engine" in command_of(pid)]

    def all(self) -> list[int]:
        """Return the process numbers of all processes."""
        return [self.pid, *children(self.pid)]

    def kill(self, pid: int) -> None:
        """Kill one process."""
        os.kill(pid, signal.SIGKILL)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop the cell as an operator would; return its exit status."""
        self.process.send_signal(how)
        return self.wait()

    def wait(self) -> int:
        """Wait for the supervisor's end; return its exit status."""
        self.process.communicate(timeout=END_S)
        return int(self.process.returncode)


def children(pid: int) -> list[int]:
    """Return the children of a process, and theirs."""
    try:
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [one for child in map(int, own) for one in (child, *children(child))]


def command_of(pid: int) -> str:
    """Return the command line of a process, "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def runs(pid: int) -> bool:
    """Return whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """Wait until processes have ended; return those that still run after `seconds`."""
    until = time.monotonic() + seconds
    while (left := [pid for pid in pids if runs(pid)]) and time.monotonic() < until:
        time.sleep(0.01)
    return left


def sockets_on(port: int) -> set[str]:
    """Return the inodes of the sockets that listen on a port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = (one.split() for one in lines)
    return {one[9] for one in fields if one[1].endswith(f":{port:04X}") and one[3] == "0A"}


def sockets_of(pid: int) -> set[str]:
    """Return the inodes of the sockets of a process."""
    found: set[str] = set()
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor)):
                found.add(match[1])
    except OSError:
        pass
    return found


def owner_of_client(port: int, pids: list[int]) -> int | None:
    """Return which of some processes has the other end of a client's connection from this local port."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[2].endswith(f":{port:04X}") and fields[9] != "0":
            for pid in pids:
                if fields[9] in sockets_of(pid):
                    return pid
    return None
