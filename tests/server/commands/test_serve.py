"""`voxlane serve` as a process of its own: start, signals, drain, errors. And drain from inside."""

from __future__ import annotations

import asyncio
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import httpx
import pytest
import uvloop
from flying_loop import FlyingLoop
from peer import SUBPROTOCOL, eventually
from waiting import until
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from voxlane.engine.api import EngineConfig, Loading, Ready
from voxlane.server import cli, limits, log
from voxlane.server.api.service import make_service
from voxlane.server.cli import ENGINE_GIVEN_UP
from voxlane.server.commands.progress import Progress
from voxlane.server.commands.serve import HttpServer, banner, drain, listen, serve
from voxlane.server.config import Config, ServerConfig, read_keeper_failures
from voxlane.server.engine_client import child
from voxlane.server.engine_client.engine_process import EngineProcess
from voxlane.server.errors import ConfigError, Draining, Overloaded
from voxlane.server.http.request_limit import RequestLimit
from voxlane.server.watching.metrics import Metrics


class Served:
    """A server process around the scripted engine."""

    def __init__(self, command: Sequence[str], drain_s: float) -> None:
        code = (
            "import asyncio, uvloop\n"
            "from voxlane.engine.api import EngineConfig\n"
            "from voxlane.server import log\n"
            "from voxlane.server.config import Config, ServerConfig\n"
            "from voxlane.server.commands.serve import serve\n"
            "log.set_up('info')\n"
            f"config = Config(ServerConfig(port=0, drain_s={drain_s}), EngineConfig('scripted'))\n"
            "with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:\n"
            f"    runner.run(serve(config, '', engine_command={tuple(command)!r}))\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.banner = [self.process.stdout.readline() for _ in range(7)]
        self.url = self.banner[0].split()[-1]


def ask(client: httpx.Client, url: str, said: str) -> Iterator[str]:
    """Open a stream and wait for its first word."""
    body = {"messages": [{"role": "user", "content": said}], "stream": True}
    request = client.build_request("POST", f"{url}/v1/chat/completions", json=body)
    lines = client.send(request, stream=True).iter_lines()
    while '"one "' not in next(lines):
        pass
    return lines


def serving_for(drain_s: float) -> Callable[[], None]:
    """Return what serves in this thread, until a signal comes."""

    async def serve_a_while() -> None:
        async with asyncio.timeout(120):
            await serve(Config(ServerConfig(port=0, drain_s=drain_s), EngineConfig("scripted")), "")

    def run() -> None:
        log.set_up("info")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_a_while())

    return run


@pytest.fixture
def served(engine_command: Sequence[str]) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(drain_s: float = 15.0) -> Served:
        started.append(Served(engine_command, drain_s))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def test_running_requests_finish_before_the_end(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXLANE_KEEPER_FAILURES", "3")
    server = served(drain_s=120)
    assert f"open {server.url} in a browser" in "".join(server.banner)
    assert "curl" in "".join(server.banner)
    with httpx.Client(timeout=60) as client, httpx.Client(timeout=60) as other:
        held = ask(client, server.url, "hold")
        engine = int(next(line for line in held if "pid" in line).partition("pid ")[2].partition('"')[0])
        assert other.get(f"{server.url}/healthz").json()["status"] == "ready"  # leaves an open connection
        figures = other.get(f"{server.url}/metrics").text
        assert 'voxlane_caught_errors_total{part="keeper"} 3.0\n' in figures
        server.process.send_signal(signal.SIGTERM)
        until(lambda: other.get(f"{server.url}/healthz").json()["status"] == "draining", "it drains")
        body = {"messages": [{"role": "user", "content": "hello"}]}
        refused = other.post(f"{server.url}/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        for probe, status in (("livez", 200), ("readyz", 503), ("healthz", 503)):  # on connections of their own
            assert httpx.get(f"{server.url}/{probe}").status_code == status
        voice = server.url.replace("http", "ws", 1) + "/v1/voice"
        with pytest.raises(InvalidStatus, match="503"), connect(voice, subprotocols=[Subprotocol(SUBPROTOCOL)]):
            pass
        os.kill(engine, signal.SIGUSR1)  # the scripted engine's sign to go on
        told = [line for line in held if line]
    _, log = server.process.communicate(timeout=60)
    assert told[-1] == "data: [DONE]"
    assert "two" in "".join(told)
    assert server.process.returncode == 0
    assert "stopping signal=SIGTERM" in log
    assert "drained running=1 finished=1 ended=0" in log


def test_failures_of_a_keeper_are_a_number_or_none() -> None:
    for told, counted in (("3", 3), ("", 0), ("-1", 0)):
        assert read_keeper_failures({"VOXLANE_KEEPER_FAILURES": told}) == counted


@pytest.mark.parametrize(
    ("drain_s", "signals", "logged"),
    [
        (0.2, [signal.SIGTERM], "drained running=1 finished=0 ended=1"),
        (60, [signal.SIGINT, signal.SIGINT], "stopping at once signal=SIGINT ended=1"),
    ],
)
def test_what_outlasts_the_drain_or_a_second_signal_is_ended_and_told(
    beside: Any, capsys: pytest.CaptureFixture[str], drain_s: float, signals: list[signal.Signals], logged: str
) -> None:
    def end(told: TextIO) -> list[str]:
        url = told.readline().split()[-1]
        with httpx.Client(timeout=60) as client, httpx.Client(timeout=60) as other:
            lines = ask(client, url, "wait")
            other.get(f"{url}/healthz")  # leaves an open connection
            for number in signals[:-1]:
                os.kill(os.getpid(), number)
                until(lambda: other.get(f"{url}/healthz").json()["status"] == "draining", "it drains")
            os.kill(os.getpid(), signals[-1])
            return [line for line in lines if line.startswith("data: ")]

    _, told = beside(serving_for(drain_s), end)
    assert json.loads(told[-1][6:])["error"]["code"] == "draining"
    assert logged in capsys.readouterr().err


def test_the_engine_goes_with_a_server_that_is_killed(served: Any) -> None:
    server = served()
    children = f"/proc/{server.process.pid}/task/{server.process.pid}/children"
    if not os.path.exists(children):
        pytest.skip("needs /proc to find the child")
    with open(children) as file:
        (engine,) = map(int, file.read().split())
    watched = os.pidfd_open(engine)
    try:
        server.process.kill()
        server.process.wait()
        asyncio.run(_readable(watched))  # a process descriptor becomes readable when the process ends
        assert select.select([watched], [], [], 0)[0] == [watched]
    finally:
        os.close(watched)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    async with asyncio.timeout(60):
        await ended.wait()
    loop.remove_reader(descriptor)


def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigError, match="the port is in use; choose another with --port"):
            listen("127.0.0.1", other.getsockname()[1])


def test_a_host_that_does_not_exist_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"server\.host"):
        listen("host.invalid", 0)


async def test_the_gate_counts_and_closes() -> None:
    gate = RequestLimit(1)
    with gate.admit():
        assert not await gate.wait_empty(0)
        with pytest.raises(Overloaded), gate.admit():
            pass
    assert await gate.wait_empty(0)
    gate.closed = True
    with pytest.raises(Draining), gate.admit():
        pass


def test_who_never_ends_is_not_waited_for_longer_than_is_promised(
    serving: Any, monkeypatch: pytest.MonkeyPatch, engine_command: Sequence[str]
) -> None:
    loop, signals = FlyingLoop(), child._signal_group
    killed: list[float] = []

    def signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        killed.extend([loop.land()] if number == signal.SIGKILL else [])
        signals(process, number)

    async def stop_among_the_stuck() -> float:
        # Without a limit of steps: else the stopped engine is replaced.
        async with serving(hang_s=0.0, command=engine_command) as server:
            state, voice = server.http._server.server_state, server.service.sessions
            _, writer = await asyncio.open_connection("127.0.0.1", server.listener.getsockname()[1])
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
            await eventually(lambda: state.tasks)
            os.kill(server.service.engine.pid, signal.SIGSTOP)
            with server.service.request_limit.admit(), voice.limits.socket("192.0.2.1"):
                began_s = loop.fly()
                async with asyncio.timeout(3600):
                    await drain(server.service, server.http)
            writer.close()
            return began_s

    monkeypatch.setattr(child, "_signal_group", signal_group)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        began_s = runner.run(stop_among_the_stuck())
    rounding_s = 1e-3
    least_s = limits.STOP_SECONDS - limits.EXIT_SECONDS - rounding_s
    assert least_s <= killed[0] - began_s <= limits.STOP_SECONDS == 15
    assert limits.DRAIN_SECONDS > limits.STOP_SECONDS / 2, "most of the time is for running replies"
    assert limits.VOICE_CLOSE_SECONDS <= limits.GOODBYE_SECONDS


async def test_an_answer_is_ended_while_a_conversation_still_says_goodbye(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOODBYE_SECONDS", "VOICE_CLOSE_SECONDS"):
        monkeypatch.setattr(limits, name, 3600.0)  # no deadline ends anything here: a client leaves
    body = {"messages": [{"role": "user", "content": "wait"}], "stream": True}
    async with serving(server=ServerConfig(drain_s=0)) as server, asyncio.timeout(60):
        async with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            while '"one "' not in await anext(lines):
                pass
            with server.service.sessions.limits.socket("192.0.2.1"):
                ending = asyncio.create_task(drain(server.service, server.http))
                told = [line async for line in lines if line]
        await ending
    assert json.loads(told[-1][6:])["error"]["code"] == "draining"


def test_progress_draws_on_terminals_only() -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, draws in ((Screen(), True), (io.StringIO(), False)):
        with Progress(stream) as progress:
            progress.loading(Loading("reading", 0.5))
        assert ("reading" in stream.getvalue()) == draws
        assert stream.getvalue().endswith("\r\x1b[K") == draws


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_banners_address_can_be_used(host: str, shown: str) -> None:
    if host == "::1":
        try:
            socket.create_server((host, 0), family=socket.AF_INET6).close()
        except OSError as error:
            pytest.skip(f"this machine has no {host}: {error}")
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        text = banner(Ready("m", "a", 1, 1, "w", "p", 1, 1, 1, "cpu"), listener, with_key=True)
    assert f"http://{shown}:{port}/v1/chat/completions" in text
    assert "$VOXLANE_API_KEY" in text


def test_the_banner_tells_of_the_models() -> None:
    chat = ("m", "a", 1, 1, "w", "p", 1, 1, 1, "cpu")
    adapted = Ready("some/model.gguf", *chat[1:], adapter="of/mine/peter")
    voiceless = Ready(*chat, "ears", ("en",), "base", 24_000, (), clones=True)
    with listen("127.0.0.1", 0) as listener:
        named, chosen, adapted_text, mute = (
            banner(ready, listener, with_key=False)
            for ready in (Ready(*chat), Ready(*chat, chosen="it is quick", missed="n is away"), adapted, voiceless)
        )
    assert "--model" not in named
    assert "    chosen because it is quick\n    n is away\n    to change it: voxlane serve --model" in chosen
    assert "  chats with model and adapter peter: a, " in adapted_text
    assert "speaks with base: no voice yet" in mute
    assert "voxlane voices add NAME --from recording.wav" in mute
    assert "/v1/audio/speech" not in mute, "no call is offered that would fail"
    assert "browser" not in mute


def test_an_engine_that_cannot_load_again_ends_the_server_with_a_code_of_its_own(
    beside: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "v.toml"
    model = f"once:{tmp_path / 'started'}"
    config.write_text(f'[server]\nport = 0\ndrain_s = 0\n[engine]\nmodel = "{model}"\nstart_failures = 2\n')

    def crash(told: TextIO) -> int:
        url = told.readline().split()[-1]
        body = {"messages": [{"role": "user", "content": "crash"}]}
        return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code

    assert beside(lambda: cli.main(["serve", "--config", str(config)]), crash) == (ENGINE_GIVEN_UP, 503)
    assert ENGINE_GIVEN_UP == 69
    told = capsys.readouterr().err
    assert "voxlane: the engine cannot be started again: it cannot start (the weights are gone)" in told


async def test_a_shared_port_is_listened_on_only_later() -> None:
    alone = listen("127.0.0.1", 0)
    with pytest.raises(ConfigError, match="in use"):
        listen("127.0.0.1", alone.getsockname()[1], shared=True)
    alone.close()
    first, second = listen("127.0.0.1", 0, shared=True), None
    try:
        second = listen("127.0.0.1", first.getsockname()[1], shared=True)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*first.getsockname())
    finally:
        first.close()
        if second is not None:
            second.close()


async def test_a_server_that_waits_for_its_engine_can_be_stopped(engine_command: Any) -> None:
    config = Config(ServerConfig(reuse_port=True), EngineConfig("never-ready"))
    metrics = Metrics()
    service = make_service(config, EngineProcess(config.engine, command=engine_command), metrics, "")
    listener = listen("127.0.0.1", 0, shared=True)
    http = HttpServer(service, listener)
    async with asyncio.timeout(60):
        starting = asyncio.create_task(http.start())
        service.sessions.stop_asked.set()
        await starting
        await drain(service, http)
    assert not service.engine.ready
    assert service.engine.pid is None
