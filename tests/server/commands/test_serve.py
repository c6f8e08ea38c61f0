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
from typing import Any

import httpx
import pytest
from flying_loop import FlyingLoop
from peer import eventually
from waiting import until

from voxlane.engine.api import EngineConfig, Loading, Ready
from voxlane.server import limits
from voxlane.server.cli import ENGINE_GIVEN_UP
from voxlane.server.commands.progress import Progress
from voxlane.server.commands.serve import HttpServer, banner, drain, listen
from voxlane.server.config import Config, ServerConfig
from voxlane.server.engine_client import child
from voxlane.server.engine_client.engine_process import EngineProcess
from voxlane.server.errors import ConfigError, Draining, Overloaded
from voxlane.server.http.request_limit import RequestLimit
from voxlane.server.metrics import Metrics
from voxlane.server.service import make_service


class Served:
    """A server process around the scripted engine."""

    def __init__(self, command: Sequence[str], drain_s: float, model: str) -> None:
        code = (
            "import asyncio, uvloop\n"
            "from voxlane.engine.api import EngineConfig\n"
            "from voxlane.server import log\n"
            "from voxlane.server.config import Config, ServerConfig\n"
            "from voxlane.server.commands.serve import serve\n"
            "log.set_up('info')\n"
            f"config = Config(ServerConfig(port=0, drain_s={drain_s}), EngineConfig({model!r}))\n"
            "with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:\n"
            f"    runner.run(serve(config, '', engine_command={tuple(command)!r}))\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.banner = [self.process.stdout.readline() for _ in range(7)]
        self.url = self.banner[0].split()[-1]

    def ask(self, client: httpx.Client, said: str) -> Any:
        """Open a stream and wait for its first word."""
        body = {"messages": [{"role": "user", "content": said}], "stream": True}
        request = client.build_request("POST", f"{self.url}/v1/chat/completions", json=body)
        answer = client.send(request, stream=True)
        lines = answer.iter_lines()
        while '"one "' not in next(lines):
            pass
        return lines

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM; return exit status and log."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def served(engine_command: Sequence[str]) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(drain_s: float = 15.0, model: str = "scripted") -> Served:
        started.append(Served(engine_command, drain_s, model))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def test_the_banner_tells_how_to_use_it_and_sigterm_ends_it(served: Any) -> None:
    server = served()
    assert f"open {server.url} in a browser" in "".join(server.banner)
    assert "curl" in "".join(server.banner)
    assert httpx.get(f"{server.url}/healthz", timeout=60).json()["status"] == "ready"
    status, log = server.stop()
    assert status == 0
    assert "stopping signal=SIGTERM" in log
    assert "drained running=0 finished=0 ended=0" in log


@pytest.mark.parametrize(("told", "counted"), [("3", 3.0), ("", 0.0), ("-1", 0.0)])
def test_a_cell_counts_the_failures_of_its_keeper(
    served: Any, monkeypatch: pytest.MonkeyPatch, told: str, counted: float
) -> None:
    monkeypatch.setenv("VOXLANE_KEEPER_FAILURES", told)
    server = served()
    figures = httpx.get(f"{server.url}/metrics").text
    assert f'voxlane_caught_errors_total{{part="keeper"}} {counted}\n' in figures
    assert server.stop()[0] == 0


def test_running_requests_finish_before_the_end(served: Any) -> None:
    server = served(drain_s=120)
    with httpx.Client(timeout=60) as client, httpx.Client(timeout=60) as other:
        held = server.ask(client, "hold")
        engine = int(next(line for line in held if "pid" in line).partition("pid ")[2].partition('"')[0])
        assert other.get(f"{server.url}/healthz").status_code == 200  # leaves an open connection
        server.process.send_signal(signal.SIGTERM)
        until(lambda: other.get(f"{server.url}/healthz").json()["status"] == "draining", "it drains")
        body = {"messages": [{"role": "user", "content": "hello"}]}
        refused = other.post(f"{server.url}/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/healthz")
        os.kill(engine, signal.SIGUSR1)  # the scripted engine's sign to go on
        told = [line for line in held if line]
    _, log = server.process.communicate(timeout=60)
    assert told[-1] == "data: [DONE]"
    assert "two" in "".join(told)
    assert server.process.returncode == 0
    assert "drained running=1 finished=1 ended=0" in log


def test_what_outlasts_the_drain_is_ended_and_told(served: Any) -> None:
    server = served(drain_s=0.2)
    with httpx.Client(timeout=60) as client:
        lines = server.ask(client, "wait")
        status, log = server.stop()
        told = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert told[-1]["error"]["code"] == "draining"
    assert status == 0
    assert "drained running=1 finished=0 ended=1" in log


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


def test_the_limit_of_open_files_follows_the_connections() -> None:
    code = (
        "import resource\n"
        "from voxlane.server.commands.serve import SPARE_DESCRIPTORS, allow_descriptors\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "allow_descriptors(100)\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (100 + SPARE_DESCRIPTORS, hard)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))\n"
        "allow_descriptors(100)\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (128, 128)\n"
        "allow_descriptors(1)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_second_signal_does_not_wait(served: Any) -> None:
    server = served(drain_s=3600)
    with httpx.Client(timeout=60) as client:
        lines = server.ask(client, "wait")
        server.process.send_signal(signal.SIGINT)
        assert server.process.stderr is not None
        assert any("stopping signal=SIGINT" in line for line in iter(server.process.stderr.readline, ""))
        server.process.send_signal(signal.SIGINT)
        told = [line for line in lines if line.startswith("data: ")]
    assert json.loads(told[-1][6:])["error"]["code"] == "draining"
    _, log = server.process.communicate(timeout=60)
    assert server.process.returncode == 0
    assert "stopping at once signal=SIGINT ended=1" in log


def test_who_never_ends_is_not_waited_for_longer_than_is_promised(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, signals = FlyingLoop(), child._signal_group
    killed: list[float] = []

    def signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        killed.extend([loop.land()] if number == signal.SIGKILL else [])
        signals(process, number)

    async def stop_among_the_stuck() -> float:
        async with serving(hang_s=0.0) as server:  # else the stopped engine is replaced
            state, voice = server.http._server.server_state, server.service.sessions
            _, writer = await asyncio.open_connection("127.0.0.1", server.listener.getsockname()[1])
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
            await eventually(lambda: state.tasks)
            os.kill(server.service.engine.pid, signal.SIGSTOP)
            with server.service.request_limit.admit(), voice.socket("192.0.2.1"):
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
            with server.service.sessions.socket("192.0.2.1"):
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


def test_the_banner_says_why_auto_is_this_model_and_how_to_change_it() -> None:
    chat = ("m", "a", 1, 1, "w", "p", 1, 1, 1, "cpu")
    with listen("127.0.0.1", 0) as listener:
        named = banner(Ready(*chat), listener, with_key=False)
        text = banner(Ready(*chat, chosen="it is quick", missed="n could not be fetched"), listener, with_key=False)
    assert "--model" not in named
    assert "    chosen because it is quick\n    n could not be fetched\n    to change it: voxlane serve --model" in text


def test_the_banner_names_the_adapter() -> None:
    chat = ("some/model.gguf", "a", 1, 1, "w", "p", 1, 1, 1, "cpu")
    with listen("127.0.0.1", 0) as listener:
        text = banner(Ready(*chat, adapter="of/mine/peter"), listener, with_key=False)
    assert "  chats with model and adapter peter: a, " in text


def test_the_banner_of_a_speaker_without_a_voice_offers_no_call_that_fails() -> None:
    chat = ("m", "a", 1, 1, "w", "p", 1, 1, 1, "cpu")
    with listen("127.0.0.1", 0) as listener:
        text = banner(Ready(*chat, "ears", ("en",), "base", 24_000, (), clones=True), listener, with_key=False)
    assert "speaks with base: no voice yet" in text
    assert "voxlane voices add NAME --from recording.wav" in text
    assert "/v1/audio/speech" not in text
    assert "browser" not in text


def test_an_engine_that_cannot_load_again_ends_the_server_with_a_code_of_its_own(
    engine_command: Sequence[str], tmp_path: Path
) -> None:
    config = tmp_path / "v.toml"
    model = f"once:{tmp_path / 'started'}"
    config.write_text(f'[server]\nport = 0\ndrain_s = 0\n[engine]\nmodel = "{model}"\nstart_failures = 2\n')
    code = (
        "import sys\n"
        "from voxlane.server import cli\n"
        "from voxlane.server.engine_client import engine_process\n"
        f"engine_process.ENGINE_COMMAND = {tuple(engine_command)!r}\n"
        "sys.exit(cli.main())"
    )
    command = [sys.executable, "-c", code, "serve", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        body = {"messages": [{"role": "user", "content": "crash"}]}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 503
        _, log = server.communicate(timeout=60)
    assert server.returncode == ENGINE_GIVEN_UP == 69
    assert "voxlane: the engine cannot be started again: it cannot start (the weights are gone)" in log


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
