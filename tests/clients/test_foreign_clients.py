"""The clients that we did not write, in environments that `make soak` and `make test-clients` set up.

Each plays the scenarios of client_table with a real server: one script for a client, one connection for a scenario.
What its user sees and what passes over the wire are checked. OpenAI's transport for Twilio has a caller behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certificates import Authority, write_pair
from client_script import SCENARIO_S
from client_table import CLIENTS, NOT_OFFERED, REFUSED, SCENARIOS, ForeignClient
from openai import OpenAI
from peer import eventually
from phone_caller import TICK_S, TwilioCaller
from realtime_scenario import (
    CUT,
    RATE,
    Answer,
    answers,
    check_scenario,
    check_seen,
    left,
    listener,
    record,
    steady_key,
    words,
)
from small_model import with_small_model
from wiretap import Wire, Wiretap

from voxlane.codecs.g711 import decode_mulaw, encode_mulaw
from voxlane.codecs.pcm import Floats, decode_pcm16, encode_pcm16
from voxlane.codecs.resample import Resampler
from voxlane.server.protocols.openai_realtime.protocol import BETA_REFUSED

HERE = Path(__file__).parent
VENVS = HERE.parent.parent / ".venv-clients"
NODE = VENVS / "node" / "bin"
"""Where Node is installed if the system has none that is new enough."""

CELLS = [
    pytest.param(one, scenario, id=f"{one.key}-{scenario}")
    for one in CLIENTS
    for scenario in SCENARIOS
    if one.result(scenario) != NOT_OFFERED and not one.browser
]
ANSWER = '{"scenario"'
"""How a script's answer begins; its client prints other lines."""

AT_ONCE = 2
"""How many clients talk at the same time."""

SCRIPT_S = 60.0
"""How long a script may take to load its client."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as errors:
        command = [sys.executable, "-m", "voxlane.server.cli", "serve", "--port", "0", *with_small_model(())]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("voxlane "), log.read_text()
    yield first.split()[-1]
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server}/v1", api_key="none", timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def clips(client: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for name, pcm in record(client).items():
        (folder / f"{name}.pcm").write_bytes(pcm)
    return folder


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one scenario came to."""

    told: dict[str, Any]  # what the script says
    wires: list[Wire]  # all connections that became WebSockets
    other: str  # what the client has printed


class Runs:
    """Runs the script of each client once, with all its scenarios that were asked for, and the next one beside it."""

    def __init__(
        self, server: str, client: OpenAI, clips: Path, wanted: dict[str, list[str]], threads: Executor
    ) -> None:
        self.hear = listener(client)
        self._server, self._client, self._clips = server, client, clips
        self._authority = Authority()
        (clips / "authority.pem").write_bytes(self._authority.pem)
        self._certificate = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._certificate.load_cert_chain(*write_pair(clips, self._authority.pair("127.0.0.1")))
        # They wait for sound most of the time, so two take little longer than one.
        clients = {one.key: one for one in CLIENTS}
        self._begun = {key: threads.submit(self.run, clients[key], wanted[key]) for key in wanted}

    def outcome(self, one: ForeignClient, scenario: str) -> Outcome:
        """Return what a scenario came to."""
        return self._begun[one.key].result()[scenario]

    def run(self, one: ForeignClient, scenarios: list[str]) -> dict[str, Outcome]:
        """Run a client's script; each scenario has a wiretap of its own."""
        with contextlib.ExitStack() as stack:
            tls = self._certificate if one.over_tls else None
            taps = {name: stack.enter_context(Wiretap(self._server, tls)) for name in scenarios}
            # Only WebSockets can be tapped.
            urls = {name: tap.url if one.api == "Realtime" else self._server for name, tap in taps.items()}
            arguments = [steady_key(self._client), self._clips, *(f"{name}={url}" for name, url in urls.items())]
            command = [*program(one), *one.script[1:], *arguments]
            log = self._printed(command, SCRIPT_S + SCENARIO_S * len(scenarios), self._clips / f"{id(taps)}.log")
        lines = [json.loads(line) for line in log.splitlines() if line.startswith(ANSWER)]
        other = "\n".join(line for line in log.splitlines() if not line.startswith(ANSWER))
        told = {line["scenario"]: line for line in lines}
        nothing = {"failed": "the script says nothing about it"}
        return {
            name: Outcome(told.get(name, nothing), [wire for wire in tap.wires if wire.messages], other)
            for name, tap in taps.items()
        }

    def _printed(self, command: list[str | Path], limit_s: float, log: Path) -> str:
        """Run a command; return all that it prints, to its end or to the limit."""
        trusting = {"NODE_EXTRA_CA_CERTS": str(self._clips / "authority.pem")}
        with log.open("w") as file:
            process = subprocess.Popen(command, env={**environment(), **trusting}, stdout=file, stderr=file)
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return log.read_text()


def environment() -> dict[str, str]:
    """Return what a script finds in its environment."""
    path = os.pathsep.join([str(NODE), os.environ["PATH"]])
    support = HERE.parent / "support"
    modules = os.pathsep.join(map(str, (support, support / "clients")))
    return {**os.environ, "PATH": path, "PYTHONPATH": modules, "LOGURU_LEVEL": "WARNING"}


def need(environment: str) -> None:
    """Skip where an environment could not be installed, or was not."""
    if environment and not (VENVS / environment / ".ready").exists():
        pytest.skip(f"{environment} is not installed: make clients")


def node() -> str:
    """Return Node's path."""
    return shutil.which("node", path=environment()["PATH"]) or "node"


def program(one: ForeignClient) -> list[str | Path]:
    """Return the command that runs a client's script."""
    script = HERE / one.script[0]
    need(one.environment)
    if script.suffix == ".mjs":
        return [node(), script]
    if not one.environment:
        return [sys.executable, script]
    return [VENVS / one.environment / "bin" / "python", script]


@pytest.fixture(scope="module")
def runs(server: str, client: OpenAI, clips: Path, request: pytest.FixtureRequest) -> Iterator[Runs]:
    wanted: dict[str, list[str]] = {}
    for item in request.session.items:
        if parameters := getattr(item, "callspec", None):
            one, scenario = (parameters.params.get(name) for name in ("one", "scenario"))
            if one and scenario:
                wanted.setdefault(one.key, []).append(scenario)
    threads = ThreadPoolExecutor(AT_ONCE)
    yield Runs(server, client, clips, wanted, threads)
    threads.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("one", "scenario"), CELLS)
def test_a_cell_of_the_table(one: ForeignClient, scenario: str, runs: Runs) -> None:
    outcome = runs.outcome(one, scenario)
    told = outcome.told
    assert "failed" not in told, f"{told['failed']}\n{outcome.other}"
    assert f"{told['version']}.".startswith(f"{one.version}."), told["version"]
    if one.result(scenario) == REFUSED:
        assert BETA_REFUSED in told["refused"]
        return
    check_seen(scenario, told["seen"])
    if one.api == "Realtime":
        (wire,) = outcome.wires
        # LiveKit 1.2 cancels when it leaves, whether or not a response is active, and hides the answer from its user.
        expected = "response_cancel_not_active" if one.key == "livekit-agents 1.2" else ""
        check_scenario(scenario, wire, runs.hear, expected)


def test_openai_in_node_without_tls(runs: Runs) -> None:
    (one,) = [one for one in CLIENTS if one.package == "openai (npm)"]
    for name, outcome in runs.run(replace(one, over_tls=False), ["connect", "text"]).items():
        assert "failed" not in outcome.told, f"{outcome.told['failed']}\n{outcome.other}"
        check_seen(name, outcome.told["seen"])
        check_scenario(name, outcome.wires[0], runs.hear)


# ---- OpenAI's transport for Twilio

LINE_RATE = 8_000
LISTENS_S = 1.2
BRIDGE_MS = 100  # the transport knows what was played by marks of 40 ms, and adds 50 ms


def resampled(samples: Floats, source: int, target: int) -> Floats:
    resampler = Resampler(source, target)
    return np.concatenate([resampler.push(samples), resampler.flush()])


def on_the_line(pcm: bytes) -> list[bytes]:
    """Return a clip as a caller's frames."""
    sound = encode_mulaw(resampled(decode_pcm16(pcm), RATE, LINE_RATE))
    return [sound[at : at + 160].ljust(160, b"\xff") for at in range(0, len(sound), 160)]


@asynccontextmanager
async def bridging(url: str, key: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the transport in Node."""
    script = HERE / "node" / "twilio_bridge.mjs"
    bridge = await asyncio.create_subprocess_exec(node(), script, url, key, stdout=asyncio.subprocess.PIPE)
    try:
        yield bridge
    finally:
        if bridge.returncode is None:
            bridge.kill()
        await bridge.communicate()


async def test_openais_transport_for_twilio(server: str, client: OpenAI, clips: Path) -> None:
    need("node")
    key = await asyncio.to_thread(steady_key, client)
    with Wiretap(server) as tap:
        async with bridging(tap.url, key) as bridge:
            assert bridge.stdout is not None
            port = int(await bridge.stdout.readline())
            async with TwilioCaller.calling(f"http://127.0.0.1:{port}") as caller:
                starts = await _converse(tap, caller, clips)
                await caller.hang_up()
            told = json.loads(await bridge.stdout.readline())
            assert await bridge.wait() == 0
    assert not caller.wrong
    assert told["errors"] == []
    await asyncio.to_thread(_check_call, tap.wire, caller, starts, client)
    spoken = [item["content"][0]["transcript"] for item in told["history"] if item.get("role") == "assistant"]
    assert spoken[1] == left(tap.wire, answers(tap.wire)[1].item)  # the SDK knows what was heard, too


async def _converse(tap: Wiretap, caller: TwilioCaller, clips: Path) -> list[int]:
    """Ask a question, ask for a story and cut in; return what had been played when each answer began."""
    await eventually(lambda: any(wire.events("server", "session.updated") for wire in tap.wires))
    starts = []
    for number, name in enumerate(("question", "story", "cut_in")):
        starts.append(len(caller.played))
        caller.speaking.extend(on_the_line((clips / f"{name}.pcm").read_bytes()))
        if name == "story":
            await eventually(lambda: len(caller.played) >= starts[-1] + LISTENS_S * LINE_RATE)
            continue
        await eventually(lambda: len(tap.wire.events("server", "response.done")) > number)  # noqa: B023
        await eventually(lambda: not len(caller.line))
    starts[2] = caller.clears[0]
    return starts


def _check_call(wire: Wire, caller: TwilioCaller, starts: list[int], client: OpenAI) -> None:
    """Check that the caller has heard the answers, and that the history has what was played of the story."""
    assert wire.events("server", "error") == []
    question, story, cut_in = answers(wire)
    played, hear = bytes(caller.played), listener(client)
    assert question.transcript
    assert played[: starts[1]] == question.pcm  # here it is the sound of the line
    assert played[starts[2] :] == cut_in.pcm
    heard = played[starts[1] : starts[2]]
    assert 0 < len(heard) < len(story.pcm)
    assert story.pcm.startswith(heard)
    assert len(caller.clears) == 1
    _check_cut(wire, story, heard, caller, hear)


def _check_cut(wire: Wire, story: Answer, heard: bytes, caller: TwilioCaller, hear: Any) -> None:
    (asked,) = wire.events("client", "conversation.item.truncate")
    (told,) = wire.events("server", CUT)
    assert asked["item_id"] == told["item_id"] == story.item
    assert asked["audio_end_ms"] == told["audio_end_ms"]
    off_ms = abs(asked["audio_end_ms"] - len(heard) / LINE_RATE * 1e3)
    assert off_ms <= BRIDGE_MS + (TICK_S + caller.lag_s) * 1e3
    text = left(wire, story.item)
    assert story.transcript.startswith(text.rstrip())
    assert 0 < len(words(text)) < len(words(story.transcript))
    found = hear(encode_pcm16(resampled(decode_mulaw(heard), LINE_RATE, RATE)))
    assert abs(len(found) - len(words(text))) <= 2, (found, text)
