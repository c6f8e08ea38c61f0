"""Many telephone lines that talk in turns, in one thread.

Every 20 ms a line sends a packet of the caller's sound and plays 20 ms of what it was sent. It knows how much sound it
has left when a message comes, and how long it had none in the middle of a reply. The WebSocket code is that of
support/crowd/; messages are read just as far as the accounts need.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from support.crowd.clients import BINARY, Caller, framed
from support.people import in_turns

from voxlane.codecs.g711 import encode_mulaw
from voxlane.codecs.resample import resample

TEXT = 1
LINE_RATE, RATE = 8_000, 16_000
SAME_REPLY_S = 0.3  # sound that comes so soon after a clear goes on with the reply
LOST_S = 2.0  # a reply of which nothing comes for so long is over
END_S = 0.15  # a reply of which no more is missing was heard to its end

Samples = NDArray[np.float32]


@dataclass(slots=True)
class Account:
    """What a caller has heard."""

    left_ms: list[float] = field(default_factory=list)  # sound that was left when more of a reply came
    gaps_ms: list[float] = field(default_factory=list)  # silences in the middle of a reply
    replies: int = 0  # that began
    whole: int = 0  # that were heard to the end


class LineCaller(Caller):
    """A telephone line, and a caller who listens."""

    path = "/v1/phone"

    def __init__(self, address: tuple[str, int], account: Account, reply_s: float, number: int) -> None:
        super().__init__(address, Counter())
        self.account = account
        self.number = number
        self._reply = round((reply_s - END_S) * LINE_RATE)
        self._frames = 0  # packets sent
        self._left = 0  # samples to play
        self._played = 0  # samples of the present reply
        self._begun = False  # whether sound of it has come
        self._empty_s: float | None = None  # since when there is no sound in the middle of a reply
        self._cleared_s: float | None = None
        self._marks: deque[tuple[int, str]] = deque()  # samples to play before each mark returns
        self._loop = asyncio.get_running_loop()

    def tick(self, sound: bytes) -> None:
        """Send 20 ms of the caller's sound, and play 20 ms."""
        if self.close_code is not None:
            return
        self.send(self._packet(sound))
        self._frames += 1
        self._play(min(self._left, LINE_RATE // 50))

    def _packet(self, sound: bytes) -> bytes:
        raise NotImplementedError

    def _play(self, count: int) -> None:
        self._left -= count
        self._played += count
        if count and not self._left:
            if self._played >= self._reply:
                self.account.whole += 1
            else:
                self._empty_s = self._loop.time()
        self._marks = deque((max(0, left - count), name) for left, name in self._marks)
        self._return_marks()

    def _receive(self, samples: int) -> None:
        """Note that sound came."""
        now, account = self._loop.time(), self.account
        if self._cleared_s is not None:
            begins = now - self._cleared_s > SAME_REPLY_S
        else:
            begins = not self._begun or (not self._left and self._played >= self._reply)
        begins = begins or (self._empty_s is not None and now - self._empty_s > LOST_S)
        if begins:
            self._played, self._begun = 0, True
            account.replies += 1
        elif self._cleared_s is None:
            account.left_ms.append(1e3 * self._left / LINE_RATE)
            if self._empty_s is not None:
                account.gaps_ms.append(1e3 * (now - self._empty_s))
        self._cleared_s = self._empty_s = None
        self._left += samples

    def _clear(self) -> None:
        """Note that what was not played is discarded."""
        self._left, self._empty_s, self._cleared_s = 0, None, self._loop.time()

    def _mark(self, name: str) -> None:
        self._marks.append((self._left, name))
        self._return_marks()

    def _return_marks(self) -> None:
        while self._marks and not self._marks[0][0]:
            self.send(self._mark_message(self._marks.popleft()[1]))

    def _mark_message(self, name: str) -> bytes:
        raise NotImplementedError

    def _take(self, opcode: int, start: int, length: int) -> None:
        if opcode == TEXT:
            self._read(bytes(self._data[start : start + length]))
        elif opcode == BINARY:
            self._receive(length)
        else:
            super()._take(opcode, start, length)

    def _read(self, message: bytes) -> None:
        raise NotImplementedError


class TwilioCaller(LineCaller):
    """A line of Twilio's."""

    subprotocol = ""

    def _begin(self, hello: dict[str, object]) -> None:
        self._stream = f"MZ{self.number:032x}"
        media = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
        start = {"streamSid": self._stream, "callSid": f"CA{self.number:032x}", "mediaFormat": media}
        for message in (
            {"event": "connected", "protocol": "Call", "version": "1.0.0"},
            {"event": "start", "sequenceNumber": "1", "streamSid": self._stream, "start": start},
        ):
            self.send(framed(json.dumps(message).encode(), TEXT))

    def _packet(self, sound: bytes) -> bytes:
        place = f'"track":"inbound","chunk":"{self._frames + 1}","timestamp":"{20 * self._frames}"'
        head = f'{{"event":"media","sequenceNumber":"{self._frames + 2}","streamSid":"{self._stream}"'
        return framed(b'%b,"media":{%b,"payload":"%b"}}' % (head.encode(), place.encode(), sound), TEXT)

    def _mark_message(self, name: str) -> bytes:
        return framed(f'{{"event":"mark","streamSid":"{self._stream}","mark":{{"name":"{name}"}}}}'.encode(), TEXT)

    def _read(self, message: bytes) -> None:
        body = json.loads(message)
        match body["event"]:
            case "media":
                payload = body["media"]["payload"]
                self._receive(len(payload) // 4 * 3 - payload.count("="))
            case "mark":
                self._mark(body["mark"]["name"])
            case "clear":
                self._clear()
                self._marks = deque((0, name) for _, name in self._marks)  # Twilio returns them all
                self._return_marks()


class AsteriskCaller(LineCaller):
    """A channel of Asterisk's."""

    subprotocol = "media"

    def _begin(self, hello: dict[str, object]) -> None:
        start = {"event": "MEDIA_START", "connection_id": "c", "channel_id": f"{self.number}", "format": "ulaw"}
        self.send(framed(json.dumps({**start, "optimal_frame_size": 160, "ptime": 20}).encode(), TEXT))

    def _packet(self, sound: bytes) -> bytes:
        return framed(sound)

    def _mark_message(self, name: str) -> bytes:
        event = {"event": "MEDIA_MARK_PROCESSED", "channel_id": f"{self.number}", "correlation_id": name}
        return framed(json.dumps(event).encode(), TEXT)

    def _read(self, message: bytes) -> None:
        body = json.loads(message)
        match body["command"]:
            case "MARK_MEDIA":
                self._mark(body["correlation_id"])
            case "FLUSH_MEDIA":
                self._clear()
                self._marks.clear()  # they never return


def microphones(sound: Samples) -> dict[type[LineCaller], list[bytes]]:
    """Return 16 kHz speech in packets of 20 ms, as each kind of caller sends them."""
    line = encode_mulaw(resample(sound, RATE, LINE_RATE))
    coded = [line[at : at + 160] for at in range(0, len(line) - 159, 160)]
    return {
        AsteriskCaller: coded,
        TwilioCaller: [b64encode(packet) for packet in coded],
    }


async def talk(
    callers: Sequence[LineCaller],
    sounds: dict[type[LineCaller], list[bytes]],
    spread: int,
    stop: asyncio.Event,
) -> float:
    """Let every caller send and play 20 ms every 20 ms; return how late one was at most."""

    def act(caller: LineCaller, at: int) -> None:
        packets = sounds[type(caller)]
        caller.tick(packets[at % len(packets)])

    return await in_turns(callers, act, spread, stop)
