"""How partner.py holds one exchange with a server: typed, or spoken in real time.

It keeps the reply to each turn, and judges nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from support.conversation import Person, person
from support.partner.exchanges import Exchange
from support.partner.rules import Called, Reply
from websockets.exceptions import ConnectionClosed

from voxlane.server.client import Event, VoiceClient

TURN_S = 600.0
"""The longest wait for one turn: enough for 256 tokens even on a busy machine."""

MOST_CALLS = 4
"""Most calls that are answered in one turn; a model that goes on calling is stopped."""

LISTENS_AT = 4.0
"""How fast replies are played; their words do not depend on it."""

UNHEARD_S = 5.0
"""How long after the person's last sound a server may take to notice the speech."""

LOOK_S = 0.1
"""How often to check whether the person is done, for which there is no event."""

PAUSE_S = 0.4
"""The pause between a reply's end and the person's next words."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One turn: what was said, what was understood, and the reply."""

    said: str
    heard: str
    reply: Reply
    first_s: float | None  # from the end of what was said to the first word of the reply, or to its first sound
    fault: str = ""  # the failure, if any


@dataclass(slots=True)
class TurnNotes:
    """The events of one turn. A pause may cut what is said into two turns: the last counts."""

    turn: int = 0
    heard: dict[int, str] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    fault: str = ""
    _turns: dict[int, int] = field(default_factory=dict)  # by epoch
    _texts: dict[int, str] = field(default_factory=dict)  # by epoch
    _calls: list[tuple[int, Called]] = field(default_factory=list)  # each with its epoch
    _first: dict[tuple[int, str], float] = field(default_factory=dict)  # by turn and kind of event

    def take(self, at_s: float, event: Event) -> None:
        """Note one event."""
        match event.name:
            case "speech_started":
                self.turn = max(self.turn, event["turn"])
            case "user_turn":
                self.turn = max(self.turn, event["turn"])
                self.heard[event["turn"]] = event["text"]
            case "reply":
                self._turns[event["epoch"]] = event["turn"]
            case "reply_text":
                self._texts[event["epoch"]] = self._texts.get(event["epoch"], "") + event["text"]
                self._note_first(at_s, event)
            case "tool_call":
                self._calls.append((event["epoch"], Called(event["name"], event["arguments"])))
                self._note_first(at_s, event)
            case "audio":
                self._note_first(at_s, event)
            case "turn_done":
                self.done.add(event["turn"])
            case "error":
                self.fault = f"{event['code']}: {event['message']}"

    def _note_first(self, at_s: float, event: Event) -> None:
        self._first.setdefault((self._turns.get(event["epoch"], 0), event.name), at_s)

    @property
    def over(self) -> bool:
        """Whether the last begun turn has ended."""
        return self.turn in self.done

    @property
    def calls(self) -> int:
        """The number of calls."""
        return len(self._calls)

    def answered(self, said: str, since_s: float, *, spoken: bool) -> Answered:
        """Return the turn, with its times from `since_s` on."""
        epochs = [epoch for epoch, turn in sorted(self._turns.items()) if turn == self.turn]
        text = " ".join(self._texts.get(epoch, "").strip() for epoch in epochs).strip()
        reply = Reply(text, tuple(call for epoch, call in self._calls if epoch in epochs))
        kinds = ("audio",) if spoken else ("reply_text", "tool_call")
        firsts = [self._first[self.turn, kind] for kind in kinds if (self.turn, kind) in self._first]
        heard = " ".join(text for _, text in sorted(self.heard.items()) if text)
        return Answered(said, heard, reply, min(firsts) - since_s if firsts else None, self.fault)


def _config(exchange: Exchange, seed: int) -> dict[str, object]:
    """Return the settings of a conversation: the seed, so that a run can be repeated, and the tools."""
    tools = [tool.declared() for tool in exchange.tools]
    return {"seed": seed, **({"tools": tools} if tools else {})}


async def typed(url: str, exchange: Exchange, seed: int) -> list[Answered]:
    """Type an exchange and return its turns."""
    address = url.replace("http", "ws", 1) + "/v1/voice"
    found: list[Answered] = []
    async with VoiceClient(address, config={"speaks": False, **_config(exchange, seed)}, comes_back=False) as client:
        events = aiter(client)
        for said in exchange.turns:
            notes, since_s = TurnNotes(), time.perf_counter()
            async with _patience(notes):
                await client.say(said)
                await _until_over(events, notes, client, exchange)
            found.append(notes.answered(said, since_s, spoken=False))
            if not notes.over:
                break
    return found


@contextlib.asynccontextmanager
async def _patience(notes: TurnNotes) -> AsyncIterator[None]:
    """Give up a turn that takes too long or loses its connection, and note that."""
    try:
        async with asyncio.timeout(TURN_S):
            yield
    except TimeoutError:
        notes.fault = f"no end within {TURN_S:.0f} s"
    except (ConnectionClosed, StopAsyncIteration):
        notes.fault = notes.fault or "the connection was closed"


async def _until_over(events: AsyncIterator[Event], notes: TurnNotes, client: VoiceClient, exchange: Exchange) -> None:
    while not notes.over:
        event = await anext(events)
        notes.take(time.perf_counter(), event)
        if event.name == "tool_call":
            await _serve_call(client, exchange, event, notes.calls)


async def _serve_call(client: VoiceClient, exchange: Exchange, event: Event, calls: int) -> None:
    """Answer a call as the tool would; stop a model that only calls."""
    results = {tool.name: tool.result for tool in exchange.tools}
    await client.tool_result(event["call_id"], results.get(event["name"], "there is no such tool"))
    if calls >= MOST_CALLS:
        await client.stop()


async def spoken_aloud(
    url: str, exchange: Exchange, seed: int, clip: Callable[[str], NDArray[np.int16]]
) -> list[Answered]:
    """Speak an exchange in real time and return its turns; `clip` gives the sound of a text."""
    sounds = [clip(said) for said in exchange.turns]
    found: list[Answered] = []
    async with person(url, **_config(exchange, seed)) as somebody:
        somebody.listens_at = LISTENS_AT
        for said, sound in zip(exchange.turns, sounds, strict=True):
            await asyncio.sleep(PAUSE_S)
            notes, since = TurnNotes(), len(somebody.events)
            somebody.speak(sound)
            async with _patience(notes):
                await _follow(somebody, notes, since, exchange)
            found.append(notes.answered(said, somebody.stopped_s, spoken=True))
            if not notes.over:
                break
    return found


async def _follow(somebody: Person, notes: TurnNotes, since: int, exchange: Exchange) -> None:
    """Note events until all was said and its last turn has ended, or the server heard nothing."""
    at = since
    while True:
        for at_s, event in somebody.events[at:]:
            at += 1
            notes.take(at_s, event)
            if event.name == "tool_call":
                await _serve_call(somebody.client, exchange, event, notes.calls)
        unheard = not notes.turn and time.perf_counter() - somebody.stopped_s > UNHEARD_S
        if not somebody.speaking and (notes.over or unheard):
            return
        await somebody.news(at, LOOK_S)
