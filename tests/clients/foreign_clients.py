"""The heavier clients that we did not write, each in an environment of its own: `make test-clients` sets them up.

Each holds the conversation of realtime_scenario with a real server. OpenAI's transport for Twilio holds a shorter one,
with a caller on the other side of it. `make test` does not collect this file: its name is no test's.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI
from peer import eventually
from phone_caller import TICK_S, TwilioCaller
from realtime_scenario import CUT, RATE, Answer, answers, check, left, listener, record, steady_key, words
from small_model import with_small_model
from wiretap import Wire, Wiretap

from voxlane.codecs.g711 import decode_mulaw, encode_mulaw
from voxlane.codecs.pcm import Floats, decode_pcm16, encode_pcm16
from voxlane.codecs.resample import Resampler

HERE = Path(__file__).parent
VENVS = HERE.parent.parent / ".venv-clients"
COMMANDS = {
    "pipecat": [VENVS / "pipecat" / "bin" / "python", HERE / "pipecat_client.py"],
    "livekit": [VENVS / "livekit" / "bin" / "python", HERE / "livekit_client.py"],
    "node": ["node", HERE / "node" / "client.mjs"],
}


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


@pytest.mark.parametrize("name", COMMANDS)
def test_a_conversation(name: str, server: str, client: OpenAI, clips: Path) -> None:
    with Wiretap(server) as tap:
        done = subprocess.run(
            [*COMMANDS[name], tap.url, steady_key(client), clips],
            env={**os.environ, "PYTHONPATH": str(HERE.parent / "support"), "LOGURU_LEVEL": "WARNING"},
            capture_output=True,
            text=True,
            timeout=180,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    check(tap.wire, listener(client))


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
    bridge = await asyncio.create_subprocess_exec("node", script, url, key, stdout=asyncio.subprocess.PIPE)
    try:
        yield bridge
    finally:
        if bridge.returncode is None:
            bridge.kill()
        await bridge.communicate()


async def test_openais_transport_for_twilio(server: str, client: OpenAI, clips: Path) -> None:
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
    assert "blue" in words(question.transcript)
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
