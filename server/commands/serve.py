"""`voxlane serve`: listen, run until told to stop, drain. Three visible calls.

app.py has the application that it serves.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import cast

import uvicorn
from threadpoolctl import threadpool_limits

from voxlane.engine.api import AUTO_MODEL, Ready
from voxlane.server import limits
from voxlane.server.api.app import make_app
from voxlane.server.api.service import Service, make_service
from voxlane.server.audio.voices import names, served_name
from voxlane.server.commands.neighbours import Neighbour, advice, find_neighbours
from voxlane.server.commands.progress import Progress
from voxlane.server.commands.stopping import stop_signals
from voxlane.server.config import VERSION, Config, PhoneKeys, ServerConfig, read_keeper_failures
from voxlane.server.engine_client.engine_process import ENGINE_COMMAND, EngineProcess
from voxlane.server.errors import ConfigError, Draining, EngineGivenUp
from voxlane.server.http.connections import OpenConnections
from voxlane.server.http.frames import CountedFrames
from voxlane.server.http.heads import HeadInTime
from voxlane.server.http.tls import Certificate, TlsListener
from voxlane.server.log import LogLine, line
from voxlane.server.watching.metrics import Metrics

logger = logging.getLogger(__name__)

SPARE_DESCRIPTORS = 128
"""Open files beside connections: the engine's socket, the log, those of the event loop."""


class HttpServer:
    """uvicorn, driven by us: it starts, it stops accepting, it closes."""

    def __init__(self, service: Service, listener: socket.socket) -> None:
        self._listener = listener
        self._connections = OpenConnections(service.seat.counts)
        self._most = service.config.limits.connections
        self.certificate = certificate_of(service.config.server)
        self.tls: TlsListener | None = None
        self._watching: asyncio.Task[None] | None = None
        self._config = uvicorn.Config(
            make_app(service, self.count_all, self._connections.of),
            http=cast(type[asyncio.Protocol], partial(HeadInTime, self._connections)),
            ws=CountedFrames,
            ws_max_size=limits.SOCKET_FRAME_BYTES,
            ws_per_message_deflate=False,  # a compressed bomb of 200 KiB takes the event loop seconds
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,  # the middleware writes it: uvicorn's needs its polling main loop
            timeout_keep_alive=limits.KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=limits.HTTP_CLOSE_SECONDS,
        )
        self._server = uvicorn.Server(self._config)

    def _crowded(self) -> bool:
        """Return whether there are too many connections for another TLS handshake.

        Some more than limits.connections are let in: they are told that the server is full.
        """
        beginning = len(self.tls.beginning) if self.tls is not None else 0
        return self.count_all() + beginning >= self._most + SPARE_DESCRIPTORS // 2

    def count_all(self) -> int:
        """Return how many connections there are, at all server processes."""
        return self._connections.all(len(self._server.server_state.connections))

    async def start(self) -> None:
        """Start the application and accept connections."""
        self._config.load()
        self._server.lifespan = self._config.lifespan_class(self._config)
        await self._server.startup(sockets=[] if self.certificate is not None else [self._listener])
        if self.certificate is not None:
            self.tls = TlsListener(self._listener, self.certificate, self._new_protocol, self._crowded)
            self.tls.start()
            self._watching = asyncio.create_task(_watch(self.certificate), name="certificate")

    def _new_protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection, as uvicorn makes it."""
        make = cast(Callable[..., asyncio.Protocol], self._config.http_protocol_class)
        server = self._server
        return make(config=self._config, server_state=server.server_state, app_state=server.lifespan.state)

    def stop_accepting(self) -> None:
        """Accept no more connections; open ones stay."""
        for server in self._server.servers:
            server.close()
        if self.tls is not None:
            self.tls.close()

    async def close(self) -> None:
        """Close open connections and stop the application."""
        if self._watching is not None:
            self._watching.cancel()
        if self.tls is not None:
            await self.tls.end()
        self._connections.end()
        await self._server.shutdown(sockets=[self._listener])


def certificate_of(server: ServerConfig) -> Certificate | None:
    """Return the certificate to serve with, None without TLS; raise ConfigError if it cannot be used."""
    return Certificate(Path(server.tls_cert), Path(server.tls_key)) if server.tls_cert else None


async def _watch(certificate: Certificate) -> None:
    """Read the certificate again when its files change."""
    while True:
        await asyncio.sleep(limits.WATCH_SECONDS)
        certificate.refresh()


async def serve(
    config: Config,
    api_key: str,
    chat_key: str = "",
    phone_keys: PhoneKeys | None = None,
    webhook_secret: str = "",
    *,
    store_password: str = "",
    engine_command: Sequence[str] = ENGINE_COMMAND,
) -> None:
    """Serve with one process until SIGTERM or SIGINT; raise when the port is taken, or the engine cannot start (again).

    supervisor.py serves with several.
    """
    listener = listen(config.server.host, config.server.port, shared=config.server.reuse_port)
    allow_descriptors(config.limits.connections)
    # The ears' matrices are small: on many cores numpy's own threads only spin, and took 13 of 14 cores.
    with threadpool_limits(1, user_api="blas"), Progress(sys.stderr) as progress:
        metrics = Metrics()
        metrics.processes.set(1)
        metrics.caught("keeper", read_keeper_failures(os.environ))
        link = EngineProcess(
            config.engine,
            command=engine_command,
            observers=(metrics, progress),
            standby=True,
            environment=gpu_environment(config.server.gpus[0]) if config.server.gpus else None,
        )
        service = make_service(config, link, metrics, api_key, chat_key, phone_keys, webhook_secret, store_password)
        http = HttpServer(service, listener)
        with stop_requests(service) as stop:
            await service.sessions.moving.start()  # here its error is shown in one line
            await http.start()
            try:
                await main_loop(service, listener, progress, stop)
            finally:
                await drain(service, http)


def gpu_environment(gpu: str) -> dict[str, str]:
    """Return what an engine's environment must have so that it sees this GPU alone."""
    return {"CUDA_VISIBLE_DEVICES": gpu}


async def main_loop(service: Service, listener: socket.socket, progress: Progress, stop: asyncio.Event) -> None:
    """Wait for the engine, say that all is ready, and wait for the end."""
    stopping = asyncio.create_task(stop.wait(), name="stop")
    starting = asyncio.create_task(service.engine.wait_ready(), name="engine ready")
    hopeless = asyncio.create_task(service.engine.given_up.wait(), name="engine given up")
    neighbours = asyncio.create_task(look_for_neighbours(service.config, listener), name="neighbours")
    try:
        await asyncio.wait({stopping, starting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            ready = starting.result()
            progress.close()
            # The objects made so far live as long as the process: a full collection need not visit them again.
            gc.collect()
            gc.freeze()
            await announce(service.config, ready, listener, neighbours, with_key=service.tenants.key_needed)
            logger.info(ready_line(ready, listener, pid=service.engine.pid))
            await asyncio.wait({stopping, hopeless}, return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                raise EngineGivenUp(service.engine.failure)
    finally:
        for task in (stopping, starting, hopeless, neighbours):
            task.cancel()
        await asyncio.gather(stopping, starting, hopeless, neighbours, return_exceptions=True)


async def announce(
    config: Config, ready: Ready, listener: socket.socket, neighbours: asyncio.Task[list[Neighbour]], *, with_key: bool
) -> None:
    """Tell a person that the server is ready and how to use it."""
    if config.log.format != "text":  # where the log is JSON, machines read what we print
        return
    print(banner(ready, listener, with_key=with_key, secure=bool(config.server.tls_cert)), flush=True)
    for neighbour in await neighbours:
        print(advice(neighbour), flush=True)


def ready_line(ready: Ready, listener: socket.socket, **more: object) -> LogLine:
    """Return the line of the log that says what is served."""
    return line(
        "ready",
        port=listener.getsockname()[1],
        model=served_name(ready.model),
        adapter=served_name(ready.adapter) or None,
        weights=ready.weights,
        pages=ready.pages,
        device=ready.device,
        **more,
    )


async def look_for_neighbours(config: Config, listener: socket.socket) -> list[Neighbour]:
    """Return other chat servers on this machine, if the configuration lets us choose the chat model."""
    if config.engine.model != AUTO_MODEL or config.chat.url:
        return []
    return await find_neighbours(listener.getsockname()[1])


async def drain(service: Service, http: HttpServer) -> None:
    """Admit nothing new, let what is running finish for drain_s, end the rest, and say how many.

    The port stays open, so that probes and clients are told, unless another server takes its clients: one that shares
    the port, or one behind the same balancer, which sends a client on only if it cannot connect.

    limits.py has the time of each step, and their sum: STOP_SECONDS.
    """
    service.request_limit.closed = True
    config, seat = service.config, service.seat
    cell_goes_on = seat.shared and not seat.counts.elsewhere("ending")
    if config.server.reuse_port or config.store.kind == "redis" or cell_goes_on:
        http.stop_accepting()
    running = service.request_limit.inside
    # Without an engine no answer can finish, and a supervisor waits for the exit code.
    seconds = 0.0 if service.engine.given_up.is_set() else service.config.server.drain_s
    await asyncio.gather(service.request_limit.wait_empty(seconds), service.sessions.drain.run(seconds))
    ended = service.request_limit.inside
    service.engine.abandon(Draining)
    logger.info(line("drained", running=running, finished=running - ended, ended=ended))
    seconds = limits.GOODBYE_SECONDS
    await asyncio.gather(service.request_limit.wait_empty(seconds), service.sessions.limits.wait_quiet(seconds))
    await http.close()


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a bound socket, or raise an error of one line.

    A `shared` port may belong to another process that also shares it. Such a socket does not listen yet: the kernel
    would give it connections before the engine is ready.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"server.host: {host}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted sockets inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limits.UNACKNOWLEDGED_MS)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        if not shared:
            # From now on the kernel accepts connections: a client that comes while we start waits instead of failing.
            listener.listen(2048)
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        reason = "the port is in use; choose another with --port" if taken else error.strerror
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}") from error
    return listener


def allow_descriptors(connections: int) -> None:
    """Raise this process's limit of open files to what the connections need, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + SPARE_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < needed:
        logger.warning(line("few file descriptors", allowed=most, needed=needed))


def stop_requests(service: Service) -> AbstractContextManager[asyncio.Event]:
    """Give an event that SIGTERM and SIGINT set; a second signal ends the drain at once."""

    def end_at_once() -> dict[str, object]:
        return {"ended": service.engine.abandon(Draining) + service.sessions.drain.end_all()}

    return stop_signals(end_at_once, service.sessions.stop_asked.set)


def why_this_model(ready: Ready) -> list[str]:
    """Return why `auto` chose this model and no better one, and how to change that; "" if the model was named."""
    told = [f"chosen because {ready.chosen}"] if ready.chosen else []
    if ready.missed:
        told.append(ready.missed)
    return [*told, "to change it: voxlane serve --model NAME (`voxlane models` lists names)"] if told else []


def why_this_listener(ready: Ready) -> list[str]:
    """Return why `auto` chose the model that listens; nothing if it was named."""
    told = [f"chosen because {ready.asr_chosen}"] if ready.asr_chosen else []
    return [*told, ready.asr_missed] if ready.asr_missed else told


def banner(ready: Ready, listener: socket.socket, *, with_key: bool, secure: bool = False) -> str:
    """Return the lines that tell a person how to use this server."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    url = f"{'https' if secure else 'http'}://{host}:{port}"
    key = ' \\\n    -H "Authorization: Bearer $VOXLANE_API_KEY"' if with_key else ""
    as_json = " -H 'Content-Type: application/json'"
    lines, tries = [f"voxlane {VERSION} at {url}"], []
    recording = "recording.wav"
    if ready.asr_model and (ready.voices or ready.speech.name):
        tries.append(f"    open {url} in a browser, and talk")
    if ready.model:
        adapted = f" and adapter {served_name(ready.adapter)}" if ready.adapter else ""
        lines.append(
            f"  chats with {served_name(ready.model)}{adapted}: {ready.architecture}, "
            f"{ready.parameters / 1e6:.0f}M parameters, {ready.weights} weights, "
            f"{ready.context_tokens} tokens of context, on {ready.device}"
        )
        lines += [f"    {told}" for told in why_this_model(ready)]
        message = '{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64}'
        tries.append(f"    curl {url}/v1/chat/completions{as_json}{key} \\\n    -d '{message}'")
    if ready.speech.name:
        also = "" if ready.tts_model else ", and speaks"
        lines.append(f"  answers speech with speech{also}: {served_name(ready.speech.name)}")
    if ready.tts_model:
        lines.append(f"  speaks with {served_name(ready.tts_model)}: {names(ready.voices, 4) or 'no voice yet'}")
    if ready.tts_model and not ready.voices:
        what = f"--from {recording} --transcript 'What is said in it.' --consent"
        tries.append(f"    voxlane voices add NAME {what} --url {url}")
    if ready.voices or (ready.speech.name and not ready.tts_model):
        recording = "hello.wav"
        message = '{"input": "Hello!", "response_format": "wav"}'
        tries.append(f"    curl {url}/v1/audio/speech{as_json}{key} \\\n    -d '{message}' -o {recording}")
    if ready.asr_model:
        lines.append(f"  listens with {served_name(ready.asr_model)}: {names(ready.asr_languages, 8)}")
        lines += [f"    {told}" for told in why_this_listener(ready)]
        tries.append(f"    curl {url}/v1/audio/transcriptions{key} -F file=@{recording}")
    return "\n".join([*lines, "  try it:", *tries, "  stop it: Ctrl-C"])
