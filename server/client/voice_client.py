"""A client of the native dialect, for programs that talk to a voxlane server; docs/protocol.md specifies the protocol.

    async with VoiceClient("ws://127.0.0.1:8000/v1/voice") as client:
        await client.say("Hello!")
        async for event in client:
            print(event.name, event.fields)

It connects, and resumes its conversation when a connection breaks. It does not play or record: `player` helps with
playback. With `gathers` it sends quiet sound in fewer messages, as microphone.py says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import msgpack
import websockets.asyncio.client
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from voxlane.server.client.microphone import QuietGatherer
from voxlane.server.client.player import Player

SUBPROTOCOL = Subprotocol("voxlane.v1")

FIELDS: dict[str, tuple[str, ...]] = {
    "state": ("name",),
    "speech_started": ("turn", "at_s"),
    "speech_stopped": ("turn", "at_s"),
    "user_words": ("turn", "settled", "tail"),
    "user_turn": ("turn", "text"),
    "reply": ("epoch", "turn"),
    "reply_text": ("epoch", "text"),
    "audio": ("epoch", "offset", "data", "words"),
    "audio_done": ("epoch", "samples"),
    "duck": ("epoch", "gain"),
    "hold": ("epoch",),
    "release": ("epoch",),
    "interrupted": ("epoch", "heard", "samples"),
    "reply_done": ("epoch", "text"),
    "turn_done": ("turn", "how"),
    "tool_call": ("epoch", "call_id", "name", "arguments"),
    "latency": ("turn", "turn_end_ms", "words_ms", "first_token_ms", "first_sample_ms", "first_frame_ms"),
    "barge_in": ("epoch", "hold_ms", "verdict_ms", "committed", "ducked_ms", "muted_ms"),
    "hard_to_hear": (),
    "error": ("code", "message", "retryable", "retry_after_s"),
    "configured": ("config",),
    "pong": ("mark", "audio_s"),
    "go_away": ("seconds", "reason"),
    "resumable": ("resumable",),
    "bye": (),
}
"""The names of the fields of the server's messages, after name and sequence number. `ready` has a map."""

RETRY_S = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Waits before attempts to resume; the last is repeated until the server has dropped the conversation."""

WORTH_RETURNING = frozenset({1001, 1005, 1006, 1011})
"""Close codes after which a conversation may be resumed: 1006 is a broken connection, 1011 one that did not answer the
server's pings in time."""

HANDED_OVER, TRY_AGAIN = 1012, 1013
"""The server restarts, and after `go_away` the next process has the conversation; it cannot be resumed just now."""


_UNORDERED = frozenset({"hello", "audio", "played"})
"""Messages that need not come behind sound that waits. Others do: what was heard before a button is not its turn."""


class SentAway(ConnectionClosed):
    """The server has refused the conversation with an error message, and closed."""

    def __init__(self, message: str, closed: ConnectionClosed) -> None:
        super().__init__(closed.rcvd, closed.sent, closed.rcvd_then_sent)
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} ({super().__str__()})"


@dataclass(frozen=True, slots=True)
class Event:
    """One of the server's messages."""

    name: str
    sequence: int
    fields: dict[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]


class VoiceClient:
    """One conversation. Iterate over it for events; everything else is a method."""

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        input_format: Mapping[str, object] | None = None,
        output_format: Mapping[str, object] | None = None,
        config: Mapping[str, object] | None = None,
        comes_back: bool = True,
        player: Player | None = None,
        gathers: bool = False,
    ) -> None:
        """`gathers`: quiet pieces of PCM16 may wait for others while the server only listens, for less than 60 ms."""
        self.ready: dict[str, Any] = {}
        self.player = player  # gets every event before it is yielded
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._hello: dict[str, object] = {"config": dict(config or {})}
        if input_format is not None:
            self._hello["input"] = dict(input_format)
        if output_format is not None:
            self._hello["output"] = dict(output_format)
        self._comes_back = comes_back
        self._socket: websockets.asyncio.client.ClientConnection | None = None
        self._sequence = 0
        self._played: tuple[int, int] | None = None
        self._first: Event | None = None
        self._going_away = False  # the last message was `go_away`
        self._gathers = gathers
        self._gatherer: QuietGatherer | None = None  # from `ready` on, if the input is PCM16
        self._state = ""  # the floor, as the server told it
        self._pressed = False  # between start_turn() and end_turn()
        self.close_code: int | None = None

    # ---- coming and going

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> Event:
        """Open the connection and send hello; return `ready`, or raise ConnectionClosed or InvalidHandshake.

        If the server sends an error message first, the exception is a SentAway with that message.
        """
        event = await self._open(self._hello)
        if event.name == "error":
            raise SentAway(event["message"], await self._closed())
        self._first = event
        return event

    async def close(self) -> None:
        """Send bye and close."""
        if self._socket is None:
            return
        with contextlib.suppress(ConnectionClosed):
            await self._send("bye")
        await self._socket.close()

    async def _open(self, hello: dict[str, object]) -> Event:
        """Return the server's answer: `ready`, or an `error` after which it closes."""
        url = self._url
        if hello.get("resume"):  # a balancer finds the server by its name
            at = "" if self._going_away else self.ready.get("at", "")
            url = f"{url}{'&' if '?' in url else '?'}at={quote(at, safe='')}"
        self._socket = await websockets.asyncio.client.connect(
            url, subprotocols=[SUBPROTOCOL], additional_headers=self._headers, compression=None, max_size=1 << 20
        )
        await self._send("hello", hello)
        event = self._parse(await self._socket.recv())
        if event.name != "error":
            self.ready = event.fields
            self._note(event)
            taken = self.ready.get("input", {})
            if self._gathers and self._gatherer is None and taken.get("codec") == "pcm16":
                self._gatherer = QuietGatherer(taken["rate"])
        return event

    async def _closed(self) -> ConnectionClosed:
        """Wait for the server to close, and return how it did."""
        assert self._socket is not None
        try:
            while True:
                await self._socket.recv()
        except ConnectionClosed as closed:
            return closed

    async def _come_back(self) -> Event:
        """Resume the conversation on a new connection; raise the last attempt's error when it is too late."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + float(self.ready["limits"]["resume_s"])
        hello: dict[str, object] = {"resume": self.ready["token"], "last_seq": self._sequence}
        if self.player is not None and self.player.epoch:
            hello["played"] = [self.player.epoch, self.player.position]
        elif self._played is not None:
            hello["played"] = list(self._played)
        attempt = 0
        while True:
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
            attempt += 1
            try:
                event = await self._open(hello)
                if event.name == "error":
                    raise await self._closed()
                return event
            except (OSError, InvalidHandshake, ConnectionClosed) as error:
                again = WORTH_RETURNING | {HANDED_OVER, TRY_AGAIN}
                refused = isinstance(error, ConnectionClosed) and _close_code(error) not in again
                if refused or loop.time() > deadline:
                    raise

    # ---- events

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield the server's messages until one side is done; raise ConnectionClosed after an error."""
        if self._first is not None:
            first, self._first = self._first, None
            yield first
        while True:
            assert self._socket is not None
            try:
                event = self._parse(await self._socket.recv())
            except ConnectionClosed as closed:
                self.close_code = _close_code(closed)
                if self.close_code == 1000:
                    return
                handed_over = self._going_away and self.close_code == HANDED_OVER
                if not self._comes_back or not (handed_over or self.close_code in WORTH_RETURNING):
                    raise
                event = await self._come_back()
            else:
                self._note(event)
            yield event

    def _parse(self, message: str | bytes) -> Event:
        if isinstance(message, str):
            raise ValueError("the server sent text")
        name, sequence, *values = msgpack.unpackb(message)
        if name == "ready":
            return Event(name, sequence, values[0])
        # The server may be newer than this client: fields that it adds are named by their number.
        names = FIELDS.get(name, ())
        fields = {names[place] if place < len(names) else str(place): value for place, value in enumerate(values)}
        return Event(name, sequence, fields)

    def _note(self, event: Event) -> None:
        self._going_away = event.name == "go_away"
        if event.name in ("ready", "state"):
            self._state = event.fields.get("state" if event.name == "ready" else "name", "")
        if event.name != "ready":
            self._sequence = max(self._sequence, event.sequence)
        elif not event["resumed"]:  # after a resume, older messages are repeated behind `ready`
            self._sequence = 0
        if self.player is not None:
            self.player.handle(event.name, event.fields)

    # ---- what a client can say

    async def send_audio(self, data: bytes) -> None:
        """Send the next piece of the microphone's sound, in the input format; 20 ms are usual.

        While the connection is broken, sound and acks are lost. Iterating over the client resumes the conversation.
        """
        if self._gatherer is not None:
            data = self._gatherer.push(data, calm=self._state == "listening" and not self._pressed)
        if data:
            await self._send_if_open("audio", data)

    async def say(self, text: str) -> None:
        """Send a typed turn."""
        await self._send("text", text)

    async def start_turn(self) -> None:
        """Take the floor, as by pressing a button."""
        await self._send("start")
        self._pressed = True

    async def end_turn(self) -> None:
        """Give up the floor, as by releasing the button."""
        await self._send("end")
        self._pressed = False

    async def respond(self) -> None:
        """Ask for a reply, if the conversation does not reply by itself."""
        await self._send("respond")

    async def stop(self) -> None:
        """Stop the assistant's reply."""
        await self._send("stop")

    async def configure(self, **values: object) -> None:
        """Change the conversation's configuration; values not given stay."""
        await self._send("config", values)

    async def tool_result(self, call_id: str, output: str) -> None:
        """Answer a tool call."""
        await self._send("tool_result", call_id, output)

    async def played(self, epoch: int, samples: int, queued: int) -> None:
        """Report how far a reply was played and how much waits, in samples of the output format."""
        self._played = (epoch, samples)
        await self._send_if_open("played", epoch, samples, queued)

    async def send_acks(self) -> None:
        """Send the acks of the player that are due."""
        if self.player is not None:
            for ack in self.player.acks():
                await self.played(ack.epoch, ack.samples, ack.queued)

    async def ping(self, mark: int) -> None:
        """Ask for a pong, sent when all messages before the ping are processed."""
        await self._send("ping", mark)

    async def _send_if_open(self, name: str, *fields: object) -> None:
        try:
            await self._send(name, *fields)
        except ConnectionClosed:
            if not self._comes_back:
                raise

    async def _send(self, name: str, *fields: object) -> None:
        assert self._socket is not None
        if self._gatherer is not None and name not in _UNORDERED and (waiting := self._gatherer.flush()):
            await self._socket.send(msgpack.packb(("audio", waiting)))
        await self._socket.send(msgpack.packb((name, *fields)))


def _close_code(closed: ConnectionClosed) -> int:
    return closed.rcvd.code if closed.rcvd is not None else 1006
