"""Keeps one cell running: starts its process, asks it for its room, starts it again when it ends, drains it.

It knows nothing of Ray: actor.py puts it into an actor.
"""

from __future__ import annotations

import errno
import http.client
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import MsgspecError, Struct, json

from voxlane.server.cluster.facts import CellState
from voxlane.server.cluster.plan import CellSpec, serve_command
from voxlane.server.config import KEEPER_FAILURES_VARIABLE
from voxlane.server.errors import ConfigError
from voxlane.server.log import line

logger = logging.getLogger(__name__)

LAUNCHER = (sys.executable, "-m", "voxlane.server.cluster.launch")

LOOK_SECONDS = 0.1
"""How often the keeper looks whether the process still runs, and whether one that starts is ready."""

ASK_SECONDS = 1.0
"""How often a cell that serves is asked for its room."""

ANSWER_SECONDS = 5.0
"""Time for the answer."""

SILENT_ANSWERS = 6
"""A cell that has served and then owes so many answers in a row hangs, and is killed. HAProxy does not notice it: its
check only connects, which the kernel answers."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 30.0
"""Before a process that has ended is started again; each end before it was ready doubles the pause."""

FREE_SECONDS = 2.0
"""Time for the processes of a cell that was killed to leave its ports."""

LOG_TAIL_BYTES = 4096
"""How much of the log is read for the reason of an end."""

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Hosts that mean all addresses of a machine, and where a cell there is asked."""

RAYS_OWN = ("RAY_", "OMP_NUM_THREADS")
"""Variables that are not a cell's: Ray's addresses and token, and a number of threads that Ray has set for its own
workers, which would slow the engine down."""


class ToldRoom(Struct, frozen=True):
    """What the keeper needs of `room` in /readyz."""

    state: str = ""
    conversations: int = 0
    percent: int = 0
    more: int = 0


class ToldReady(Struct, frozen=True):
    """What the keeper needs of /readyz."""

    room: ToldRoom
    at: str = ""


class CellKeeper:
    """One cell's process, watched by a thread. All methods return at once."""

    def __init__(self, spec: CellSpec, host: str, gpus: Sequence[str] = (), address: str = "") -> None:
        """Let the cell listen on `host`; others reach it at `address`, "": there, too."""
        self._spec, self._host, self._gpus, self._address = spec, host, tuple(gpus), address or host
        self._port, self._agent_port = 0, 0
        self._scheme = "http"
        self._state: CellState = "starting"
        self._room = ToldRoom()
        self._restarts, self._failures, self._pid, self._reason = 0, 0, 0, ""
        self._caught = 0  # errors of the keeper that nothing foresaw; the next process counts them
        self._silent = 0  # answers in a row that did not come in time
        self._draining = threading.Event()
        # The kernel kills the process when this thread ends: it lasts as long as the actor.
        self._thread = threading.Thread(target=self._keep, name=f"keeper of {spec.name}", daemon=True)

    def start(self) -> None:
        """Start the cell, and keep it running."""
        self._thread.start()

    def drain(self) -> None:
        """Let the cell hand its conversations over and end; it is not started again."""
        self._draining.set()

    def join(self) -> None:
        """Wait until a cell that drains has ended."""
        self._thread.join()

    def facts(self) -> dict[str, Any]:
        """Return what is known of the cell, as plain values: see CellFacts."""
        room = self._room
        return {
            "name": self._spec.name,
            "state": self._state,
            "host": self._address,
            "port": self._port,
            "agent_port": self._agent_port,
            "scheme": self._scheme,
            "calls": room.conversations,
            "percent": room.percent,
            "more": room.more,
            "restarts": self._restarts,
            "pid": self._pid,
            "reason": self._reason,
            "log": own_log(),
        }

    def _keep(self) -> None:
        while not self._draining.is_set():
            self._state = "starting"
            served, reason = self._run_once()
            self._pid, self._room = 0, ToldRoom()
            if self._draining.is_set():
                break
            self._state, self._restarts = "restarting", self._restarts + 1
            self._failures = 0 if served else self._failures + 1
            self._reason = reason
            self._draining.wait(pause_after(self._failures))
        self._state = "stopped"

    def _run_once(self) -> tuple[bool, str]:
        """Run the process to its end; return whether it has served, and why it has ended. Raise nothing."""
        try:
            started, self._silent = log_size(), 0
            self._choose_ports()
            served, status = self._run()
            if not self._draining.is_set():
                logger.error(line("cell ended", cell=self._spec.name, status=status))
            if self._silent >= SILENT_ANSWERS:
                return served, f"it hung: {SILENT_ANSWERS} questions in a row were not answered"
            return served, reason_of(status, log_since(started))
        except ConfigError as error:
            logger.error(line("cell not started", cell=self._spec.name))
            return False, str(error)
        except Exception as error:  # whatever it is, the cell is tried again
            logger.exception(line("keeper failed", cell=self._spec.name))
            self._caught += 1
            return False, f"its keeper failed: {getattr(error, 'strerror', None) or type(error).__name__}"

    def _choose_ports(self) -> None:
        """Choose the ports; raise ConfigError if another program has one. A cell that has served keeps its own."""
        if not self._port or self._failures:
            self._port = self._spec.port or free_port(self._host)
            self._agent_port = self._spec.agent_port or free_port(self._host)
        deadline = time.monotonic() + FREE_SECONDS
        for port in (self._port, self._agent_port):
            while is_taken(self._host, port):
                if time.monotonic() >= deadline or self._draining.wait(LOOK_SECONDS):
                    raise ConfigError(f"port {port} of {self._host} is in use by another program")

    def _run(self) -> tuple[bool, int]:
        """Run the process to its end; return whether it has served, and its exit status."""
        command = serve_command(self._spec, self._host, self._port, self._agent_port, self._gpus)
        environment = cell_environment(os.environ) | {KEEPER_FAILURES_VARIABLE: str(self._caught)}
        process = subprocess.Popen((*LAUNCHER, str(os.getpid()), *command), stdin=subprocess.DEVNULL, env=environment)
        try:
            return self._watch(process)
        finally:
            if process.poll() is None:  # the keeper has failed, and starts another
                process.kill()
                process.wait()

    def _watch(self, process: subprocess.Popen[bytes]) -> tuple[bool, int]:
        self._pid = process.pid
        served, told, next_s = False, False, 0.0
        while True:
            if self._draining.is_set() and not told:
                told, self._state = True, "draining"
                process.send_signal(signal.SIGTERM)
            try:
                return served, process.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            if not told and time.monotonic() >= next_s:
                self._look(served=served)
                served = served or self._state in ("ready", "full")
                if served and self._silent >= SILENT_ANSWERS:
                    logger.error(line("cell hangs", cell=self._spec.name))
                    process.kill()
                next_s = time.monotonic() + (ASK_SECONDS if served else 0.0)

    def _look(self, *, served: bool) -> None:
        """Ask the cell for its state."""
        answer = self._ask()
        if answer is None:
            self._state = "not ready" if served else "starting"
            return
        self._room = answer
        self._state = "full" if answer.state == "full" else "ready"
        self._reason = ""

    def _ask(self) -> ToldRoom | None:
        """Return the room of our own cell if it is ready, else None. Plain HTTP and TLS are tried in turn."""
        silent, self._silent = self._silent, 0
        try:
            ready = ask_ready(self._scheme, self._host, self._port)
        except ConnectionRefusedError:
            return None
        except TimeoutError:
            self._silent = silent + 1
            return None
        except MsgspecError:  # another program's answer
            return None
        except (OSError, http.client.HTTPException, ValueError):
            self._scheme = "https" if self._scheme == "http" else "http"
            return None
        return ready.room if ready is not None and ready.at == self._spec.name else None


def ask_ready(scheme: str, host: str, port: int) -> ToldReady | None:
    """Return what /readyz tells, None if the server is not ready; raise MsgspecError if it is no server of ours."""
    host = WILDCARDS.get(host, host)
    connection: http.client.HTTPConnection
    if scheme == "https":  # our own child, at our own address: its certificate names another
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        body = answer.read()
        return json.decode(body, type=ToldReady) if answer.status == 200 else None
    finally:
        connection.close()


def cell_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a cell's process: ours without Ray's."""
    return {name: value for name, value in environment.items() if not name.startswith(RAYS_OWN)}


def pause_after(failures: int) -> float:
    """Return the pause after so many ends in a row before the cell was ready."""
    return float(min(FIRST_PAUSE_SECONDS * 2 ** min(failures, 20), LONGEST_PAUSE_SECONDS))


def free_port(host: str) -> int:
    """Return a port that is free now. If it is taken before the cell has it, the next start takes another."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_taken(host: str, port: int) -> bool:
    """Return whether a program listens at a port. What else may be wrong with it, the cell itself tells."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # sockets that a cell has just closed do not count
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
        return False


def reason_of(status: int, tail: str) -> str:
    """Return why a process has ended: its own last sentence, else its status."""
    told = [one.removeprefix("voxlane: ").strip() for one in tail.splitlines() if one.startswith("voxlane: ")]
    if told:
        return told[-1]
    return f"its process was ended by signal {-status}" if status < 0 else f"its process ended with status {status}"


def own_log() -> str:
    """Return the file that this process writes its errors to, "" if that is no file."""
    try:
        path = os.readlink("/proc/self/fd/2")
    except OSError:
        return ""
    return path if Path(path).is_file() else ""


def log_size() -> int:
    """Return how long the log is."""
    return os.path.getsize(path) if (path := own_log()) else 0


def log_since(size: int) -> str:
    """Return the end of what was logged since the log was so long."""
    if not (path := own_log()):
        return ""
    with open(path, "rb") as log:
        end = log.seek(0, os.SEEK_END)
        log.seek(max(size, end - LOG_TAIL_BYTES))
        return log.read().decode(errors="replace")
