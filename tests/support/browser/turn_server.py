"""A TURN server of a test's own: coturn, Debian's package."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from cells import free_port
from waiting import until

PLACES = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
REALM, USER, PASSWORD = "voxlane.test", "voxlane", "relayed"


def turn_binary() -> str:
    """Return coturn's path, "" if it is not installed."""
    return shutil.which("turnserver", path=PLACES + os.pathsep + os.environ.get("PATH", "")) or ""


class TurnServer:
    """Relays for one user, over UDP."""

    def __init__(self, folder: Path, host: str) -> None:
        self.port = free_port(host)
        self.url = f"turn:{host}:{self.port}"
        self.log = folder / "turn.log"
        options = {
            "listening-ip": host,
            "relay-ip": host,
            "listening-port": str(self.port),
            "realm": REALM,
            "user": f"{USER}:{PASSWORD}",
            "log-file": "stdout",
            "pidfile": str(folder / "turn.pid"),
            "userdb": str(folder / "turn.db"),
        }
        flags = ("lt-cred-mech", "no-cli", "no-tls", "no-dtls", "no-tcp", "simple-log", "verbose")
        command = [turn_binary(), "-n", *(f"--{name}={value}" for name, value in options.items())]
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [*command, *(f"--{flag}" for flag in flags)], stdout=out, stderr=subprocess.STDOUT, cwd=folder
            )
        until(lambda: f"{host}:{self.port}" in self.log.read_text(), "coturn listens")

    def stop(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait(timeout=60)
