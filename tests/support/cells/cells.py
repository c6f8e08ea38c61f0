"""Several server processes behind a real HAProxy that runs the documented file, with a Redis server between them."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

from house import ENGINE_COMMAND
from machines import Machine
from waiting import until

FILE = Path(__file__).parents[3] / "docs" / "deploying" / "haproxy-cells.cfg"
PLACES = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
WHOLE = "history_tokens=500_000"
"""Clients compare whole histories, also after a long talk."""

START_S = 60.0
"""Time for a process to start on a busy machine."""


def haproxy_binary() -> str:
    """Return HAProxy's path; install Debian's package where that is allowed, or raise RuntimeError with a reason."""
    found = shutil.which("haproxy", path=PLACES)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get") is not None and os.environ.get("CI"):
        subprocess.run(("apt-get", "install", "-y", "-q", "haproxy"), capture_output=True, check=False)
        found = shutil.which("haproxy", path=PLACES)
    if found is None:
        raise RuntimeError("this machine has no haproxy: install the package haproxy")
    return found


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class Cell:
    """One `voxlane serve` around the scripted engine, at an address of this machine of its own."""

    def __init__(
        self,
        number: int,
        folder: Path,
        ports: tuple[int, int],
        store_url: str,
        room: str = "",
        voice: str = "",
        wait_s: float = 1.0,
        machine: Machine | None = None,
        proxies: tuple[str, ...] = ("127.0.0.1",),
    ) -> None:
        """Start cell `number`; `ports` are those for clients and for HAProxy's agent-check."""
        machine = machine or Machine(f"127.0.1.{number}")
        self.name, self.host = f"cell{number}", machine.host
        self.log = folder / f"{self.name}.log"
        self._ports = ports
        code = (
            "import asyncio, uvloop\n"
            "from voxlane.engine.api import EngineConfig\n"
            "from voxlane.server import log\n"
            "from voxlane.server.config import Config, RoomConfig, ServerConfig, StoreConfig, VoiceConfig\n"
            "from voxlane.server.commands.serve import serve\n"
            "log.set_up('debug')\n"
            f"server = ServerConfig({self.host!r}, {ports[0]}, drain_s=60.0, trusted_proxies={proxies!r},\n"
            f"    agent_check='{self.host}:{ports[1]}', at={self.name!r})\n"
            f"store = StoreConfig('redis', url={store_url!r}, wait_s={wait_s})\n"
            f"config = Config(server, EngineConfig('scripted', 'moonshine-tiny-en', 'hibari'), store=store,\n"
            f"    voice=VoiceConfig({WHOLE}, {voice}), room=RoomConfig({room or 'measured=False'}))\n"
            "with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:\n"
            f"    runner.run(serve(config, '', engine_command={ENGINE_COMMAND!r}))\n"
        )
        with self.log.open("a") as log:
            command = (*machine.inside, sys.executable, "-c", code)
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first.startswith("voxlane "), f"the server did not start: {self.log.read_text()}"

    @property
    def url(self) -> str:
        """Its own address, past the balancer."""
        return f"http://{self.host}:{self._ports[0]}"

    def agent(self) -> str:
        """Return what it tells HAProxy."""
        with socket.create_connection((self.host, self._ports[1]), 10) as connection:
            return connection.makefile().readline().strip()

    def get(self, path: str) -> str:
        """Return what it answers, past the balancer."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as reply:
            return str(reply.read().decode())

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; return its exit status."""
        self.process.communicate(timeout=120)
        return int(self.process.returncode)

    def end(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=120)


class Balancer:
    """A HAProxy with the documented file, but for addresses, ports and TLS."""

    def __init__(
        self,
        folder: Path,
        ports: tuple[int, int],
        name: str = "haproxy",
        machine: Machine | None = None,
        cells: tuple[str, str] = ("127.0.1.1", "127.0.1.2"),
    ) -> None:
        """Start it; `cells` are the addresses of cell1 and cell2."""
        machine = machine or Machine("127.0.0.1")
        self.log, self._socket = folder / f"{name}.log", folder / f"{name}.sock"
        self._host, self._port, self._cells = machine.host, free_port(), cells
        file = folder / f"{name}.cfg"
        file.write_text(self._adapted(ports))
        with self.log.open("wb") as log:
            command = (*machine.inside, haproxy_binary(), "-db", "-f", str(file))
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until(self._listens, "HAProxy listens", START_S)

    def _adapted(self, ports: tuple[int, int]) -> str:
        text = FILE.read_text()
        changes = {
            r"maxconn 50000": "maxconn 1000",  # a test may open few files
            r"bind :443 ssl .*": f"bind {self._host}:{self._port}",
            r"stats socket /run/haproxy/admin.sock": f"stats socket {self._socket}",
            r"server cell1 10\.0\.1\.1:8000": f"server cell1 {self._cells[0]}:{ports[0]}",
            r"server cell2 10\.0\.1\.2:8000": f"server cell2 {self._cells[1]}:{ports[0]}",
            r"server (cell\d) 0\.0\.0\.0:8000": rf"server \1 0.0.0.0:{ports[0]}",
            r"check port 9100": f"check port {ports[1]}",
            r"agent-port 9100": f"agent-port {ports[1]}",
        }
        for old, new in changes.items():
            text, count = re.subn(old, new, text)
            assert count, old
        return text

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with suppress(OSError), socket.create_connection((self._host, self._port), 1):
            return bool(self.order("show version"))  # its own socket listens a moment later
        return False

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://{self._host}:{self._port}"

    def order(self, command: str) -> str:
        """Give an order over the runtime API; return the answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self._socket))
            connection.sendall(f"{command}\n".encode())
            return connection.makefile().read().strip()

    def states(self) -> dict[str, str]:
        """Return the state of each cell, as UP, DRAIN, DOWN or MAINT, with its weight."""
        rows = [row.split(",") for row in self.order("show stat cells 4 -1").splitlines() if row.startswith("cells,")]
        return {row[1]: f"{row[17].split()[0]} {row[18]}" for row in rows}

    def add(self, cell: Cell, port: int) -> None:
        """Give a cell a place that the file leaves free."""
        self.order(f"set server cells/{cell.name} addr {cell.host} port {port}")
        self.order(f"set server cells/{cell.name} agent-addr {cell.host}")
        self.order(f"set server cells/{cell.name} state ready")

    def processor_s(self) -> float:
        """Return the seconds of a core that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait(60)

    def end(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.kill()


class CutLine:
    """A Unix socket that passes everything on to another one, until it is cut: then nothing comes through, or back."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self._target = target
        self._server: asyncio.Server | None = None
        self._passes = asyncio.Event()
        self._passes.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> CutLine:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Let nothing through from now on."""
        self._passes.clear()

    def mend(self) -> None:
        """Let everything through, with what has waited."""
        self._passes.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._passes.wait()
            other_reader, other_writer = await asyncio.open_unix_connection(self._target)
            try:
                await asyncio.gather(self._copy(reader, other_writer), self._copy(other_reader, writer))
            finally:
                other_writer.transport.abort()
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                await self._passes.wait()
                sink.write(data)
                await sink.drain()
        sink.close()
