"""What the scripts of foreign clients share: their arguments, their answers, a player.

A script is called with a key, a folder of clips and `SCENARIO=URL` for each scenario that it is to run. It prints one
line of JSON for each: what its user has seen. Standard library only, so that a client's own environment can run it.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import time
import traceback
import wave
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from microphone import RATE

INSTRUCTIONS = "You are a friendly voice assistant. Answer in one short sentence."
SKY = "What color is the sky on a clear day?"
ASKED = "What is the weather in Paris?"
FORECAST = "It is raining in Paris, 11 degrees."
CHAT_MODEL = "smollm2-135m-instruct"
MAX_TOKENS = 30
LISTENS_S = 0.8
"""How long the person listens to the story before cutting in."""

SCENARIO_S = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a scenario is played, and what the person says there."""

    url: str
    key: str
    clips: dict[str, bytes]

    @property
    def api(self) -> str:
        """Return the base URL for HTTP."""
        return f"{self.url}/v1"

    @property
    def websocket(self) -> str:
        """Return the base URL for WebSocket."""
        return self.api.replace("http", "ws", 1)


class Scenario(Protocol):
    """A coroutine function that plays one scenario and returns what the user has seen."""

    __name__: str

    def __call__(self, place: Place, /) -> Coroutine[Any, Any, dict[str, Any]]: ...


class Refused(Exception):
    """The server has refused the client; the text is what the client has shown to its user."""


def play(package: str, *scenarios: Scenario, beta: Scenario | None = None, chat: Sequence[Scenario] = ()) -> None:
    """Run the scenarios that the command line names and print what the user has seen of each.

    A scenario goes by the name of its function. With `--beta`, each is an attempt at the beta of Realtime; with
    `--chat` they are those over HTTP, whose names begin with `chat_`.
    """
    arguments = sys.argv[1:]
    option = arguments.pop(0) if arguments[0].startswith("--") else ""
    key, folder, *wanted = arguments
    known = {one.__name__.removeprefix("chat_"): one for one in (chat if option == "--chat" else scenarios)}
    if option == "--beta":
        assert beta, f"{package} has no beta"
        known = dict.fromkeys(known, beta)
    clips = {file.stem: file.read_bytes() for file in Path(folder).glob("*.pcm")}
    with asyncio.Runner() as runner:  # one loop for all: langchain-openai keeps its connections for the next model
        for name, _, url in (each.partition("=") for each in wanted):
            told = runner.run(_told(known[name], Place(url, key, clips)))
            print(json.dumps({"scenario": name, "version": version(package), **told}), flush=True)


async def _told(scenario: Scenario, place: Place) -> dict[str, Any]:
    try:
        return {"seen": await asyncio.wait_for(scenario(place), SCENARIO_S)}
    except Refused as refused:
        return {"refused": str(refused)}
    except Exception:  # noqa: BLE001 - the test shows it
        return {"failed": traceback.format_exc()}


def wav(pcm: bytes) -> bytes:
    """Return a clip as a file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE)
        sound.writeframes(pcm)
    return file.getvalue()


class Player:
    """Plays each reply as it comes, after the one before it, and knows how much of it has been heard."""

    def __init__(self) -> None:
        self._item = ""
        self._began_s = self._ends_s = 0.0

    def take(self, item: str, pcm: bytes) -> None:
        """Play on."""
        at_s = max(self._ends_s, time.monotonic())
        if item != self._item:
            self._item, self._began_s = item, at_s
        self._ends_s = at_s + len(pcm) / 2 / RATE

    def left_s(self) -> float:
        """Return how long what has come will still play."""
        return max(0.0, self._ends_s - time.monotonic())

    def stop(self) -> dict[str, Any] | None:
        """Fall silent; return the truncation that the server is to be told, if there was something left to play."""
        now = time.monotonic()
        if now >= self._ends_s:
            return None
        self._ends_s = now
        return {"item_id": self._item, "content_index": 0, "audio_end_ms": int(max(0.0, now - self._began_s) * 1000)}
