"""`voxlane serve --processes K`: a supervisor, K server processes, one engine for each GPU.

The supervisor serves no client. It runs the engines as commands/serve.py does, starts the server processes
(worker.py), gives each of them a link to every engine, and passes on what they tell each other. A server process that
ends is started again; its clients resume at another one. Everything ends with the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets as randomness
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from voxlane.codecs.extras import install_command
from voxlane.engine.api import Ready
from voxlane.server import limits
from voxlane.server.cell.control import ControlSocket
from voxlane.server.cell.counts import SharedCounts, make_counts
from voxlane.server.cell.folder import cell_folder
from voxlane.server.cell.messages import (
    Answered,
    AskAll,
    Begin,
    CellEnds,
    CellMessage,
    EngineLink,
    EngineNews,
    LetGo,
    LinkLost,
    Listening,
    Secrets,
    VoiceChange,
)
from voxlane.server.commands.progress import Progress
from voxlane.server.commands.serve import (
    announce,
    certificate_of,
    gpu_environment,
    listen,
    look_for_neighbours,
    ready_line,
)
from voxlane.server.commands.stopping import stop_signals
from voxlane.server.commands.worker import COUNTS_FILE, METRICS_FOLDER
from voxlane.server.config import Config, StoreConfig, read_keeper_failures
from voxlane.server.engine_client.engine_client import Observer, State
from voxlane.server.engine_client.engine_process import ENGINE_COMMAND, EngineProcess, RestartBudget
from voxlane.server.engine_client.kept_voices import KeptVoice
from voxlane.server.errors import ConfigError, EngineGivenUp
from voxlane.server.log import line
from voxlane.server.store.choice import make_store
from voxlane.server.store.seal import can_seal
from voxlane.server.watching.metrics import Metrics, SharedMetrics

logger = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-m", "voxlane.server.commands.worker")

GPU_FILE = Path("/dev/nvidiactl")
CPU_QUOTA_FILE = Path("/sys/fs/cgroup/cpu.max")
"""It is there if NVIDIA's driver is: the server does not import torch to ask."""

TOLD_SECONDS = 0.2
"""Time for news to reach the server processes before a signal does."""

LEAST_CORES = 8
"""With fewer cores one server process is enough: the engine needs the others."""

MOST_CHOSEN = 16
"""Most processes that are chosen without being asked for: 500 speaking microphones at 30 a process."""


def _quota() -> int:
    """Return how many cores a container may use."""
    try:
        most, period = CPU_QUOTA_FILE.read_text(encoding="ascii").split()
        return max(1, int(most) // int(period))
    except (OSError, ValueError):  # no container, or "max"
        return sys.maxsize


def cell_size(config: Config) -> int:
    """Return how many server processes to run: as configured, else by cores and device."""
    if config.server.processes:
        return config.server.processes
    cores = min(len(os.sched_getaffinity(0)), _quota())
    has_gpu = bool(config.server.gpus) or GPU_FILE.exists()
    if config.engine.device == "cpu" or not has_gpu or cores < LEAST_CORES or not can_seal():
        return 1
    return min(cores // 2, MOST_CHOSEN)


class ServerProcess:
    """One server process, and what the supervisor knows of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lives = 0  # how often it was started
        self.restarts = RestartBudget()
        self.process: asyncio.subprocess.Process | None = None
        self.control: ControlSocket | None = None
        self.listening = False

    @property
    def label(self) -> str:
        """What its requests' ids begin with: no other process, before or after, has the same."""
        return f"{self.number}.{self.lives}"

    def send(self, message: CellMessage, link: socket.socket | None = None) -> None:
        """Tell it something, if it runs."""
        if self.control is not None:
            self.control.send(message, link)
        elif link is not None:
            link.close()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class Question:
    """Something that one process tells all others, until the last of them has answered."""

    def __init__(self, asker: ServerProcess, number: int, waits_for: set[int]) -> None:
        self.asker, self.number = asker, number
        self.life = asker.lives
        self.waits_for = waits_for

    def answered(self, process: int) -> bool:
        """Note an answer; return whether it was the last one, and the asker was told."""
        self.waits_for.discard(process)
        if not self.waits_for and self.life == self.asker.lives:
            self.asker.send(Answered(self.number))
        return not self.waits_for


class Supervisor:
    """The processes of one cell."""

    def __init__(
        self,
        config: Config,
        secrets: Secrets,
        folder: Path,
        port: int,
        processes: int,
        engine_command: Sequence[str] = ENGINE_COMMAND,
        worker_command: Sequence[str] = WORKER_COMMAND,
        progress: Progress | None = None,
    ) -> None:
        make_counts(folder / COUNTS_FILE, processes)
        self._config, self._secrets, self._folder, self._port = config, secrets, folder, port
        self._own_store = config.store.kind == "memory"  # then conversations are kept in the cell's folder
        self._worker_command = tuple(worker_command)
        self._counts = SharedCounts(folder / COUNTS_FILE, processes, 0, secrets.cell)
        self.servers = [ServerProcess(number) for number in range(processes)]
        gpus: tuple[str | None, ...] = config.server.gpus or (None,)
        self._metrics = [
            Metrics(SharedMetrics(folder / METRICS_FOLDER, f"engine{one}"), has_room=False) for one in range(len(gpus))
        ]
        self._metrics[0].caught("keeper", read_keeper_failures(os.environ))
        self.engines = [
            EngineProcess(
                replace(config.engine, gpu_engines=max(config.engine.gpu_engines, gpus.count(gpu))),
                command=engine_command,
                observers=(self._metrics[number], _EngineWatch(self, number), *([progress] if progress else [])),
                standby=True,
                environment=None if gpu is None else gpu_environment(gpu),
            )
            for number, gpu in enumerate(gpus)
        ]
        self._questions: dict[int, Question] = {}
        self._asked = 0
        self._stopping = False
        self._changed = asyncio.Event()
        self._keeping: list[asyncio.Task[None]] = []
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # a process could not begin

    # ---- life

    def start(self) -> None:
        """Start the engines and the server processes."""
        for engine in self.engines:
            engine.start()
        for server in self.servers:
            self._keeping.append(asyncio.create_task(self._keep(server), name=f"server process {server.number}"))

    async def wait_ready(self) -> Ready:
        """Wait until all engines are ready and all server processes accept connections; return what an engine says."""
        for engine in self.engines:
            await engine.wait_ready()
        await self._wait_listening()
        ready = self.engines[0].described
        assert ready is not None
        return ready

    async def wait_given_up(self) -> None:
        """Wait until no engine can be started any more."""
        for engine in self.engines:
            await engine.given_up.wait()

    async def _wait_listening(self) -> None:
        while not all(server.listening for server in self.servers):
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> None:
        """Let the server processes drain, and end the engines."""
        self.stop_servers()
        seconds = self._config.server.drain_s + limits.STOP_SECONDS
        if self._keeping:
            _, late = await asyncio.wait(self._keeping, timeout=seconds)
            for server in self.servers if late else ():
                server.signal(signal.SIGKILL)
            await asyncio.gather(*self._keeping, return_exceptions=True)
        await asyncio.gather(*(engine.stop() for engine in self.engines))
        self._counts.close()
        if not self.broken.done():
            self.broken.cancel()

    def end_at_once(self) -> dict[str, object]:
        """Ask the server processes a second time; return what the log should tell of it."""
        self.stop_servers()
        return {"processes": len(self.servers)}

    def stop_servers(self) -> None:
        """Ask the server processes to drain; the second time, to end at once."""
        if not self._stopping and self._own_store:
            for server in self.servers:
                server.send(CellEnds())
        self._stopping = True
        self._counts.put("ending", 1)
        for server in self.servers:
            server.signal(signal.SIGTERM)

    async def _keep(self, server: ServerProcess) -> None:
        """Run a server process, and another one in its place when it has ended."""
        while not self._stopping:
            status = await self._run_once(server)
            began = server.listening
            self._forget(server)
            if self._is_stopping():
                return
            if not began and server.lives == 1:
                if not self.broken.done():
                    self.broken.set_exception(
                        ConfigError(f"server process {server.number} ended while it started, exit status {status}")
                    )
                return
            now = asyncio.get_running_loop().time()
            delay = server.restarts.next_delay(now)
            delay = limits.RESTART_DELAY_MOST_SECONDS if delay is None else delay
            level = logging.ERROR if status else logging.INFO  # 0: an operator has asked it to drain
            logger.log(level, line("server process ended", process=server.number, status=status, restart_in_s=delay))
            self._metrics[0].process_restarts.inc()
            await asyncio.sleep(delay)

    def _is_stopping(self) -> bool:
        return self._stopping

    async def _run_once(self, server: ServerProcess) -> int:
        """Run a server process to its end; return its exit status, -1 if none could be started."""
        try:
            return await self._run(server)
        except OSError as error:  # descriptors, memory or processes are used up: that may pass
            logger.error(line("no server process", process=server.number, reason=error.strerror))
            return -1

    async def _run(self, server: ServerProcess) -> int:
        """Run a server process to its end; return its exit status."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            # A new process session: Ctrl-C in the terminal reaches only the supervisor, which then asks it to drain.
            server.process = process = await asyncio.create_subprocess_exec(
                *self._worker_command,
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            theirs.close()
            server.lives += 1
            server.control = ControlSocket(
                ours, lambda message, link: self._receive(server, message, link), lambda: None
            )
            watching = asyncio.create_task(self._watch(server), name=f"watch server process {server.number}")
            try:
                server.send(self._begin(server))
                for number in range(len(self.engines)):
                    self._tell_engine(server, number)
                if self._stopping:
                    server.signal(signal.SIGTERM)
                return await process.wait()
            finally:
                watching.cancel()
                server.control.close()
                server.control = None
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    async def _watch(self, server: ServerProcess) -> None:
        """Kill a server process whose event loop stands still. Looks are counted, not seconds on a clock."""
        still, last = 0, 0.0
        while still < limits.PROCESS_HUNG_SECONDS:
            await asyncio.sleep(1.0)
            beats = self._counts.of(server.number, "beats")
            still = still + 1 if server.listening and beats == last else 0
            last = beats
        logger.error(line("server process hangs", process=server.number))
        server.signal(signal.SIGKILL)

    def _begin(self, server: ServerProcess) -> Begin:
        config = self._config
        if self._own_store:
            store = StoreConfig("sqlite", str(self._folder / "conversations.sqlite"), wait_s=config.store.wait_s)
            config = replace(config, store=store)
        return Begin(
            server.number,
            len(self.servers),
            server.label,
            config,
            self._port,
            len(self.engines),
            str(self._folder),
            self._secrets,
        )

    def _forget(self, server: ServerProcess) -> None:
        """Forget what a process that has ended had open, and answer for it."""
        server.listening = False
        server.process = None
        self._counts.clear(server.number)
        SharedMetrics(self._folder / METRICS_FOLDER, f"server{server.number}").forget_gauges()
        for number in list(self._questions):
            self._note_answer(number, server.number)

    # ---- engines

    def engine_changed(self, number: int) -> None:
        """Tell all server processes of an engine's new state."""
        for server in self.servers:
            self._tell_engine(server, number)

    async def tell_given_up(self) -> None:
        """Tell the server processes that no engine comes back: their drain need not wait for answers."""
        for number in range(len(self.engines)):
            self.engine_changed(number)
        await asyncio.sleep(TOLD_SECONDS)

    def _tell_engine(self, server: ServerProcess, number: int) -> None:
        if server.control is None:
            return
        engine = self.engines[number]
        ready, given_up = engine.described, engine.given_up.is_set()
        server.send(EngineNews(number, engine.state, engine.failure, float(engine.back_in_s), given_up, ready))
        if engine.state == "ready":
            self._link(server, number)

    def _link(self, server: ServerProcess, number: int) -> None:
        """Give a server process a link to an engine that is ready."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:  # it asks again
            logger.error(line("no link", process=server.number, engine=number, error=error.strerror))
            return
        self.engines[number].attach(theirs)
        server.send(EngineLink(number), ours)

    # ---- messages

    def _receive(self, server: ServerProcess, message: CellMessage, link: socket.socket | None) -> None:
        if link is not None:
            link.close()
        match message:
            case Listening():
                server.listening = True
                self._changed.set()
                for voice in self.engines[0].voices.all():
                    server.send(AskAll(0, VoiceChange(voice.name, voice.profile, voice.made_s)))
            case LinkLost(engine) if engine < len(self.engines) and self.engines[engine].state == "ready":
                self._link(server, engine)
            case AskAll(number, what):
                self._ask_all(server, number, what)
            case Answered(number):
                self._note_answer(number, server.number)
            case _:
                pass

    def _ask_all(self, asker: ServerProcess, number: int, what: VoiceChange | LetGo) -> None:
        """Pass on what a process tells all others; it is answered when they know."""
        if isinstance(what, VoiceChange):
            self._change_voice(what)
        # A process that starts has no conversations yet, and is told of all voices when it listens.
        others = [server for server in self.servers if server is not asker and server.listening]
        self._asked += 1
        self._questions[self._asked] = Question(asker, number, {server.number for server in others})
        for server in others:
            server.send(AskAll(self._asked, what))
        self._note_answer(self._asked, asker.number)

    def _note_answer(self, number: int, process: int) -> None:
        question = self._questions.get(number)
        if question is not None and question.answered(process):
            del self._questions[number]

    def _change_voice(self, change: VoiceChange) -> None:
        for engine in self.engines:
            if not change.profile:
                engine.send(engine.voices.forget(change.name))
            elif engine.voices.room_for(change.name):
                engine.send(engine.voices.keep(KeptVoice(change.name, change.profile, change.made_s)))


class _EngineWatch(Observer):
    """Tells the supervisor of one engine's state."""

    def __init__(self, supervisor: Supervisor, number: int) -> None:
        self._supervisor = supervisor
        self._number = number

    def state_changed(self, state: State) -> None:
        self._supervisor.engine_changed(self._number)


async def serve_cell(
    config: Config,
    secrets: Secrets,
    processes: int,
    *,
    engine_command: Sequence[str] = ENGINE_COMMAND,
    worker_command: Sequence[str] = WORKER_COMMAND,
) -> None:
    """Serve with several processes until SIGTERM or SIGINT; raise when that cannot begin, or go on."""
    check_cell(config, secrets)
    secrets = structs.replace(secrets, cell=randomness.token_bytes(32))
    with reserve(config) as port, cell_folder() as folder, Progress(sys.stderr) as progress:
        number = port.getsockname()[1]
        commands = (engine_command, worker_command)
        supervisor = Supervisor(config, secrets, folder, number, processes, *commands, progress=progress)
        with stop_signals(supervisor.end_at_once) as stop:
            supervisor.start()
            try:
                await watch_over(supervisor, config, port, progress, stop, with_key=bool(secrets.api_key))
            finally:
                await supervisor.stop()


def check_cell(config: Config, secrets: Secrets) -> None:
    """Raise ConfigError for what every server process would refuse."""
    if not can_seal():
        raise ConfigError(f"server.processes: more than one needs more packages: {install_command('store')}")
    make_store(config.store, secrets.store_password)
    certificate_of(config.server)


@contextlib.contextmanager
def reserve(config: Config) -> Iterator[socket.socket]:
    """Give a socket that holds the port for the server processes, which share it; it does not listen itself."""
    host, port = config.server.host, config.server.port
    with contextlib.ExitStack() as held:
        if port and not config.server.reuse_port:
            held.enter_context(_port_claim(host, port))
            listen(host, port).close()  # raises if another server listens there, even one that would share the port
        yield held.enter_context(listen(host, port, shared=True))


def _port_claim(host: str, port: int) -> socket.socket:
    """Return a socket that only one cell of this network can have for an address; raise ConfigError if another has it.

    Until its processes listen, the kernel lets a second cell bind the port. A name in Linux's abstract namespace lives
    exactly as long as its process, in the same network namespace as the port.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0voxlane-cell {host} {port}")
    except OSError as error:
        claim.close()
        reason = "the port is in use by a cell that starts; choose another with --port"
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}") from error
    return claim


async def watch_over(
    supervisor: Supervisor,
    config: Config,
    port: socket.socket,
    progress: Progress,
    stop: asyncio.Event,
    *,
    with_key: bool,
) -> None:
    """Wait until all is ready, say so, and wait for the end."""
    engines = supervisor.engines
    stopping = asyncio.create_task(stop.wait(), name="stop")
    starting = asyncio.create_task(supervisor.wait_ready(), name="cell ready")
    hopeless = asyncio.create_task(supervisor.wait_given_up(), name="engines given up")
    neighbours = asyncio.create_task(look_for_neighbours(config, port), name="neighbours")
    tasks = (stopping, starting, hopeless, neighbours)
    waits: set[asyncio.Future[Any]] = {stopping, starting, supervisor.broken}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if supervisor.broken.done():
            supervisor.broken.result()
        if not starting.done():
            return
        ready = starting.result()
        progress.close()
        await announce(config, ready, port, neighbours, with_key=with_key or bool(config.keys.file))
        logger.info(ready_line(ready, port, processes=len(supervisor.servers), engines=len(engines)))
        waits = {stopping, hopeless}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await supervisor.tell_given_up()
            raise EngineGivenUp(engines[0].failure)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
