"""The process of support/crowd/server.py, and what it reports."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from support.command_line import module_environment

Report = dict[str, float]


class Server:
    """The server's process."""

    def __init__(self, engine: str = "support.crowd.engine", *options: str) -> None:
        command = [sys.executable, "-m", "support.crowd.server", "--engine", engine, *options]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=module_environment()
        )
        assert self.process.stdout is not None
        self.address = ("127.0.0.1", int(self.process.stdout.readline()))

    def report(self) -> Report:
        """Return the lag since the last report in milliseconds, the memory, and all processor time so far."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("report\n")
        self.process.stdin.flush()
        found: Report = json.loads(self.process.stdout.readline())
        return {**found, "clients_s": time.process_time()}

    def stop(self) -> None:
        """End it."""
        self.process.communicate(timeout=60)
