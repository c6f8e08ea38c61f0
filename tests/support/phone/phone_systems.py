"""The far ends of all telephone systems but Twilio: Telnyx, Plivo, Sinch, Exotel, Vonage, Genesys, jambonz, Asterisk.

Each is as strict as its system, and plays what it is sent as its system does. The sources: the systems' documents of
their messages; Genesys' reference implementation of an AudioHook client; jambonz's mod_audio_fork; Asterisk 22.10, seen
on the wire.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import deque
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import urlsplit

import numpy as np
from phone_caller import Caller, Message, TwilioCaller, WebSocketWire, Wire

STREAM_ID = "32de0dea-53cb-4b21-89a4-9e1819c043bc"
CALL_ID = "5a3f9b10-0000-4000-8000-00155d8a1b2c"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class TelnyxCaller(Caller):
    """Telnyx with `stream_bidirectional_mode=rtp`. Its messages are not always in order; a clear returns all marks."""

    system = "telnyx"
    encoding: ClassVar[str] = "PCMU"
    swaps: ClassVar[int] = 7  # of so many packets one comes after its follower

    def __init__(self, wire: Wire, parameters: dict[str, str] | None = None) -> None:
        super().__init__(wire, {"codec": self.encoding, **(parameters or {})})
        self._sequence = 0
        self._chunks = 0
        self._late: str | None = None

    def put(self, event: str, **fields: object) -> str:
        self._sequence += 1
        return json.dumps({"event": event, "sequence_number": str(self._sequence), "stream_id": STREAM_ID, **fields})

    def start(self) -> list[Message]:
        begun = {
            "user_id": "3e6f995f-85f7-4705-9741-53b116d28237",
            "call_control_id": "v2:T02llQxIyaRkhfRKxgAP8nY511EhFLizdvdUKJiSw8d6A9BborherQ",
            "call_session_id": CALL_ID,
            "from": "+13122010094",
            "to": "+13122123456",
            "client_state": "aGF2ZSBhIG5pY2UgZGF5ID1d",
            "custom_parameters": self.parameters,
            "media_format": {"encoding": self.encoding, "sample_rate": 8000, "channels": 1},
        }
        return [json.dumps({"event": "connected", "version": "1.0.0"}), self.put("start", start=begun)]

    def speak(self, sound: bytes) -> None:
        self._chunks += 1
        place = {"track": "inbound", "chunk": str(self._chunks), "timestamp": str(20 * (self._chunks - 1))}
        message = self.put("media", media={**place, "payload": b64(sound)})
        if self._chunks % self.swaps == 0 and self._late is None:
            self._late = message
            return
        self.post(message)
        if self._late is not None:
            self.post(self._late)
            self._late = None

    def press_one(self, key: str) -> None:
        self.post(self.put("dtmf", occurred_at="2026-11-17T12:00:00.000000Z", dtmf={"digit": key}))

    def take(self, message: Message) -> None:
        body = json.loads(message)
        match body["event"]:
            case "media":
                sound = base64.b64decode(body["media"]["payload"], validate=True)
                if not 160 <= len(sound) <= 240_000:
                    self.wrong.append(f"{len(sound)} bytes: a message has 20 ms to 30 s")
                self.line.add(sound)
            case "mark":
                self.mark(body["mark"]["name"])
            case "clear":
                for name in self.clear():
                    self.marked(name)
            case other:
                self.wrong.append(other)

    def return_mark(self, name: str) -> None:
        self.post(self.put("mark", mark={"name": name}))

    async def hang_up(self) -> None:
        self.open = False
        self.post(self.put("stop", stop={"user_id": "3e6f995f", "call_control_id": "v2:T02"}))
        await self.leave()


class TelnyxAlawCaller(TelnyxCaller):
    """Telnyx with A-law in both directions."""

    codec = "alaw"
    silence = b"\x55"  # -8: A-law has no zero, and the scripted engine hears a letter in every sample above it
    encoding = "PCMA"


class PlivoCaller(Caller):
    """Plivo. A checkpoint that was cleared never comes back; there is no message at the end."""

    system = "plivo"

    def __init__(self, wire: Wire, parameters: dict[str, str] | None = None) -> None:
        super().__init__(wire, parameters)
        self._sequence = 0
        self._chunks = 0

    def put(self, event: str, **fields: object) -> str:
        self._sequence += 1
        return json.dumps({"sequenceNumber": self._sequence, "streamId": STREAM_ID, "event": event, **fields})

    def start(self) -> list[Message]:
        begun = {
            "callId": CALL_ID,
            "streamId": STREAM_ID,
            "accountId": "MAXXXXXXXXXXXXXXXXXX",
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
        }
        self._sequence += 1
        headers = ";".join(f"{key}={value}" for key, value in self.parameters.items())
        return [json.dumps({"sequenceNumber": 1, "event": "start", "start": begun, "extra_headers": headers})]

    def speak(self, sound: bytes) -> None:
        self._chunks += 1
        media = {"track": "inbound", "timestamp": str(int(time.time() * 1000)), "chunk": self._chunks}
        self.post(self.put("media", media={**media, "payload": b64(sound)}, extra_headers="{}"))

    def press_one(self, key: str) -> None:
        dtmf = {"track": "inbound", "digit": key, "timestamp": str(int(time.time() * 1000))}
        self.post(self.put("dtmf", dtmf=dtmf, extra_headers="{}"))

    def take(self, message: Message) -> None:
        body = json.loads(message)
        match body["event"]:
            case "playAudio":
                media = body["media"]
                if (media["contentType"], media["sampleRate"]) != ("audio/x-mulaw", 8000):
                    self.wrong.append("the sound is not that of the stream")
                self.line.add(base64.b64decode(media["payload"], validate=True))
            case "checkpoint" if body["streamId"] == STREAM_ID:
                self.mark(body["name"])
            case "clearAudio" if body["streamId"] == STREAM_ID:
                self.clear()
                self.post(self.put("clearedAudio"))
            case other:
                self.wrong.append(other)

    def return_mark(self, name: str) -> None:
        self.post(self.put("playedStream", name=name))


class ExotelCaller(Caller):
    """Exotel's Voicebot: 16-bit sound in messages of 100 ms. A message that is no multiple of 320 bytes crackles."""

    system = "exotel"
    codec = "pcm16"
    silence = b"\0"
    spoken_ms = 100

    def __init__(self, wire: Wire, parameters: dict[str, str] | None = None) -> None:
        super().__init__(wire, parameters)
        self._sequence = 0
        self._chunks = 0
        self.short = 0  # messages of less than 100 ms

    def put(self, event: str, **fields: object) -> str:
        self._sequence += 1
        return json.dumps({"event": event, "sequence_number": str(self._sequence), "stream_sid": STREAM_ID, **fields})

    def start(self) -> list[Message]:
        begun = {
            "stream_sid": STREAM_ID,
            "call_sid": CALL_ID,
            "account_sid": "AC0",
            "from": "+919876543210",
            "to": "+918047491899",
            "custom_parameters": self.parameters,
            "media_format": {"encoding": "audio/x-raw", "sample_rate": "8000", "bit_rate": "16"},
        }
        return [json.dumps({"event": "connected"}), self.put("start", start=begun)]

    def speak(self, sound: bytes) -> None:
        self._chunks += 1
        place = {"chunk": str(self._chunks), "timestamp": str(100 * (self._chunks - 1))}
        self.post(self.put("media", media={**place, "payload": b64(sound)}))

    def press_one(self, key: str) -> None:
        self.post(self.put("dtmf", dtmf={"digit": key, "duration": "100"}))

    def take(self, message: Message) -> None:
        body = json.loads(message)
        if body["stream_sid"] != STREAM_ID:
            self.wrong.append("a foreign stream")
        match body["event"]:
            case "media":
                sound = base64.b64decode(body["media"]["payload"], validate=True)
                if len(sound) % 320 or len(sound) > 100_000:
                    self.wrong.append(f"{len(sound)} bytes")
                self.short += len(sound) < 3_200
                self.line.add(sound)
            case "mark":
                self.mark(body["mark"]["name"])
            case "clear":
                for name in self.clear():
                    self.marked(name)
            case other:
                self.wrong.append(other)

    def return_mark(self, name: str) -> None:
        self.post(self.put("mark", mark={"name": name}))

    async def hang_up(self) -> None:
        self.open = False
        self.post(self.put("stop", stop={"call_sid": CALL_ID, "account_sid": "AC0", "reason": "callended"}))
        await self.leave()


class VonageCaller(Caller):
    """Vonage: 16-bit sound in binary messages of 20 ms, each of which is one frame. A clear discards notices, too."""

    system = "vonage"
    codec = "pcm16"
    rate = 16_000
    silence = b"\0"
    most: ClassVar[int] = 3_072  # messages that it buffers

    def start(self) -> list[Message]:
        return [json.dumps({"event": "websocket:connected", "content-type": "audio/l16;rate=16000", **self.parameters})]

    def speak(self, sound: bytes) -> None:
        self.post(sound)

    def press_one(self, key: str) -> None:
        self.post(json.dumps({"event": "websocket:dtmf", "digit": key, "duration": 260}))

    def take(self, message: Message) -> None:
        if isinstance(message, bytes):
            if len(message) != self.frame_bytes():
                self.wrong.append(f"{len(message)} bytes")
            if len(self.line) < self.most * self.frame_bytes():
                self.line.add(message)
            return
        body = json.loads(message)
        match body["action"]:
            case "notify":
                self.mark(json.dumps(body["payload"]))
            case "clear":
                self.clear()
                self.post(json.dumps({"event": "websocket:cleared"}))
            case other:
                self.wrong.append(other)

    def return_mark(self, name: str) -> None:
        self.post(json.dumps({"event": "websocket:notify", "payload": json.loads(name)}))

    def flood(self, name: str) -> None:
        self.return_mark(json.dumps({"mark": name}))


class SinchCaller(Caller):
    """Sinch: 16-bit sound in binary messages once the call is answered; no marks."""

    system = "sinch"
    codec = "pcm16"
    rate = 16_000
    silence = b"\0"
    answered = False

    def start(self) -> list[Message]:
        about = {"command": "connect", "version": 1, "callId": "a-call", "applicationKey": "A", "codec": "PCM"}
        return [json.dumps({**about, "sampleRate": self.rate, "callHeaders": self.parameters})]

    def speak(self, sound: bytes) -> None:
        if self.answered:
            self.post(sound)

    def take(self, message: Message) -> None:
        if isinstance(message, bytes):
            self.line.add(message)
            return
        match json.loads(message)["command"]:
            case "answer":
                self.answered = True
            case "clear":
                self.clear()
            case other:
                self.wrong.append(other)


class GenesysCaller(Caller):
    """Genesys' Audio Connector. It checks every number of every text, and takes five messages a second, or 25 at once.

    It opens and closes the session: after a `disconnect` it sends `close`, and it ends the connection after `closed`.
    """

    system = "genesys"
    ping_s: ClassVar[float] = 0.4  # every five seconds in truth
    rate_limit: ClassVar[tuple[float, float]] = (5.0, 25.0)

    def __init__(self, wire: Wire, parameters: dict[str, str] | None = None) -> None:
        super().__init__(wire, parameters)
        self.state = "opening"
        self.pongs = 0
        self._seq = self._serverseq = self._clientseq = 0
        self._ping: int | None = None  # the number of a ping that was not answered
        self._pinged_s = 0.0
        self._spoken = 0
        self._plays = False
        self._tokens, self._filled_s = self.rate_limit[1], self._loop.time()

    def put(self, kind: str, **parameters: object) -> str:
        self._seq += 1
        return json.dumps(
            {
                "version": "2",
                "id": STREAM_ID,
                "type": kind,
                "seq": self._seq,
                "serverseq": self._serverseq,
                "position": f"PT{self._spoken / 8000:.3f}S",
                "parameters": parameters,
            }
        )

    def start(self) -> list[Message]:
        offer = {"type": "audio", "format": "PCMU", "rate": 8000}
        who = {
            "id": "883efee8-3d6c-4537-b500-6d7ca4b92fa0",
            "ani": "tel:+15555551234",
            "aniName": "",
            "dnis": "tel:+18005556789",
        }
        return [
            self.put(
                "open",
                organizationId="d7934305-0972-4844-938e-9060eef73d05",
                conversationId="090eaa2f-72fa-480a-83e0-8667ff89c0ec",
                participant=who,
                media=[
                    {**offer, "channels": ["external", "internal"]},
                    {**offer, "channels": ["external"]},
                    {**offer, "channels": ["internal"]},
                ],
                language="en-US",
                inputVariables=self.parameters,
            )
        ]

    @property
    def streams(self) -> bool:
        return self.state == "open"

    def speak(self, sound: bytes) -> None:
        self._spoken += len(sound)
        self.post(sound)

    def press_one(self, key: str) -> None:
        self.post(self.put("dtmf", digit=key))

    def tick(self) -> None:
        super().tick()
        if self.state != "open":
            return
        if self.line.sounding != self._plays:
            self._plays = self.line.sounding
            self.post(self.put("playback_started" if self._plays else "playback_completed"))
        now = self._loop.time()
        if now >= self._pinged_s + self.ping_s and self._ping is None:
            self._pinged_s = now
            self.post(self.put("ping", rtt="PT0.001S"))
            self._ping = self._seq

    def take(self, message: Message) -> None:
        self._limit()
        if self.state == "closed" or len(message) > 65_535:
            self._refuse("a message after the end, or a large one")
        elif isinstance(message, str):
            self._take_text(json.loads(message))
        elif self.state == "opening":
            self._refuse("sound before opened")
        else:
            self.line.add(message)

    def _take_text(self, body: dict[str, Any]) -> None:
        if body["version"] != "2" or body["id"] != STREAM_ID:
            self._refuse("not a message of this session")
        if body["seq"] != self._serverseq + 1:
            self._refuse(f"seq {body['seq']} after {self._serverseq}")
        if not self._clientseq <= body["clientseq"] <= self._seq:
            self._refuse(f"clientseq {body['clientseq']}")
        self._serverseq, self._clientseq = body["seq"], body["clientseq"]
        self._text(body["type"], body)

    def _text(self, kind: str, body: dict[str, Any]) -> None:
        parameters = body["parameters"]
        match kind:
            case "opened" if self.state == "opening":
                (chosen,) = parameters["media"]
                if chosen != {"type": "audio", "format": "PCMU", "rate": 8000, "channels": ["external"]}:
                    self._refuse("the chosen format")
                self.state = "open"
            case "pong" if self._ping is not None and body["clientseq"] == self._ping:
                self._ping, self.pongs = None, self.pongs + 1
            case "event" if [one["type"] for one in parameters["entities"]] == ["barge_in"]:
                self.clear()
            case "disconnect" if parameters["reason"] in ("completed", "unauthorized", "error"):
                self._close("disconnect")
            case "closed" if self.state == "closing":
                self.state = "closed"
                self._tasks.append(asyncio.create_task(self.leave()))
            case _:
                self._refuse(f"{kind} in the state {self.state}")

    def _limit(self) -> None:
        now, (rate, burst) = self._loop.time(), self.rate_limit
        self._tokens = min(burst, self._tokens + (now - self._filled_s) * rate) - 1
        self._filled_s = now
        if self._tokens < 0:
            self._refuse("too many messages")

    def _refuse(self, what: str) -> None:
        self.wrong.append(what)
        self.post(self.put("error", code=400, message="wrong"))
        self._close("error")

    def _close(self, reason: str) -> None:
        if self.state in ("opening", "open"):
            self.state, self.open = "closing", False
            self.post(self.put("close", reason=reason))

    def flood(self, name: str) -> None:
        self.post(self.put("ping", rtt=name))

    async def hang_up(self) -> None:
        self._close("end")
        await self.gone()


class JambonzCaller(Caller):
    """jambonz's `listen` with bidirectional streaming, as its module mod_audio_fork does it.

    Sound gathers before it is played: 1280 samples at the beginning, 640 later; what is less stays there. `killAudio`
    takes effect at the next tick, and discards all that has come until then. A mark stands before the next sound; if
    none comes it returns when all is played. A clear returns all marks as cleared, and as many of those that follow
    are swallowed: their names come back later, in the place of others.
    """

    system = "jambonz"
    codec = "pcm16"
    silence = b"\0"
    subprotocols = ("audio.jambonz.org",)
    MARKER: ClassVar[bytes] = b"\xff\xff"
    MOST_MARKS: ClassVar[int] = 30

    def __init__(self, wire: Wire, parameters: dict[str, str] | None = None) -> None:
        super().__init__(wire, parameters)
        if isinstance(wire, WebSocketWire) and wire.subprotocol != "audio.jambonz.org":
            self.wrong.append("the subprotocol")
        self._waiting = bytearray()  # sound that gathers
        self._least = 4 * 320  # samples that must gather
        self._buffer = bytearray()
        self._clearing = False
        self._new: list[str] = []  # marks with no sound behind them
        self._used: deque[str] = deque()
        self._cleared: deque[str] = deque()

    def start(self) -> list[Message]:
        return [
            json.dumps(
                {
                    "callSid": CALL_ID,
                    "direction": "inbound",
                    "from": "+15083084809",
                    "to": "+15083728299",
                    "callId": "f2a35d8e",
                    "sbcCallid": "Y4xFM2Qc",
                    "sipStatus": 200,
                    "callStatus": "in-progress",
                    "accountSid": "ed649e33",
                    "applicationSid": "0e0681b0",
                    "mixType": "mono",
                    "sampleRate": self.rate,
                    "bidirectionalAudio": {"enabled": True, "streaming": True, "sampleRate": self.rate},
                    "metadata": self.parameters,
                }
            )
        ]

    def speak(self, sound: bytes) -> None:
        self.post(sound)

    def press_one(self, key: str) -> None:
        self.post(json.dumps({"event": "dtmf", "dtmf": key, "duration": "1600"}))

    def take(self, message: Message) -> None:
        if isinstance(message, bytes):
            self._gather(message)
            return
        body = json.loads(message)
        match body["type"]:
            case "mark":
                if len(self._used) + len(self._new) >= self.MOST_MARKS:
                    self.wrong.append("too many marks")
                else:
                    self._new.append(body["data"]["name"])
            case "killAudio":
                self._clearing = True
            case "disconnect":
                self.open = False
                self._tasks.append(asyncio.create_task(self.leave()))
            case other:
                self.wrong.append(other)

    def _gather(self, sound: bytes) -> None:
        if len(sound) % 2:
            self.wrong.append("half a sample")
        self._waiting += self.MARKER * len(self._new) + sound
        self._used.extend(self._new)
        self._new.clear()
        if len(self._waiting) >= 2 * self._least:
            self._least = 2 * 320
            self._buffer += self._waiting
            self._waiting.clear()

    def tick(self) -> None:
        if self._clearing:
            self._clear()
        else:
            self._play()
        super().tick()  # plays what _play has put there, and speaks

    def _clear(self) -> None:
        self.clears.append(len(self.played))
        self._clearing = False
        self._buffer.clear()
        for name in (*self._used, *self._new):
            self.marks.append(name)
            self._tell(name, "cleared")
        self._cleared.extend(self._used)
        self._used.clear()
        self._new.clear()

    def _play(self) -> None:
        size = self.frame_bytes()
        frame = bytes(self._buffer[:size])
        del self._buffer[:size]
        if not (self._used or self._cleared):
            self.line.add(frame)
            if not frame and self._new:
                self.marked(self._new.pop(0))
            return
        samples = np.frombuffer(frame, "<i2")
        for _ in range(int(np.count_nonzero(samples == -1))):
            if self._cleared:
                self._cleared.popleft()
            elif self._used:
                self.marked(self._used.popleft())
        self.line.add(samples[samples != -1].tobytes())

    def _tell(self, name: str, event: str) -> None:
        self.post(json.dumps({"type": "mark", "data": {"name": name, "event": event}}))

    def return_mark(self, name: str) -> None:
        self._tell(name, "playout")


class AsteriskCaller(Caller):
    """Asterisk's chan_websocket with f(json): whole frames only, short commands only, no mark after a flush."""

    system = "asterisk"
    subprotocols = ("media",)
    form: ClassVar[str] = "ulaw"
    CHANNEL: ClassVar[str] = "1794927221.3"
    XOFF: ClassVar[int] = 900
    XON: ClassVar[int] = 800

    def __init__(self, wire: Wire, parameters: dict[str, str] | None = None) -> None:
        super().__init__(wire, parameters)
        self._full = False
        self._mute = 0  # frames for which a key is down

    def put(self, event: str, **fields: object) -> None:
        self.post(json.dumps({"event": event, "channel_id": self.CHANNEL, **fields}, separators=(",", ":")))

    def start(self) -> list[Message]:
        size = self.frame_bytes()
        variables = {
            "DIALEDPEERNUMBER": f"voxlane/c({self.form})f(json)",
            "MEDIA_WEBSOCKET_CONNECTION_ID": "voxlane",
            "MEDIA_WEBSOCKET_OPTIMAL_FRAME_SIZE": str(size),
            "VOXLANE_FROM": "+15550100",
            **{f"VOXLANE_{key}": value for key, value in self.parameters.items()},
        }
        begun = {
            "event": "MEDIA_START",
            "connection_id": "voxlane",
            "channel": "WebSocket/voxlane/0xffff5c00d038",
            "channel_id": self.CHANNEL,
            "format": self.form,
            "optimal_frame_size": size,
            "ptime": 20,
            "channel_variables": variables,
        }
        return [json.dumps(begun, separators=(",", ":"))]

    def speak(self, sound: bytes) -> None:
        if self._mute:
            self._mute -= 1
        else:
            self.post(sound)

    def press_one(self, key: str) -> None:
        self._mute += 9
        self.put("DTMF_END", digit=key)

    def take(self, message: Message) -> None:
        if isinstance(message, bytes):
            self._queue(message)
        elif len(message.encode()) > 128:
            self.wrong.append("a long command")
        else:
            self._obey(json.loads(message))

    def _queue(self, sound: bytes) -> None:
        size = self.frame_bytes()
        if len(sound) > 65_535:
            self._tasks.append(asyncio.create_task(self.leave(1009)))
        if len(sound) % size:
            self.wrong.append("a part of a frame")
        if len(self.line) < 1_000 * size:
            self.line.add(sound[: len(sound) // size * size])
        if len(self.line) >= self.XOFF * size and not self._full:
            self._full = True
            self.put("MEDIA_XOFF")

    def _obey(self, body: dict[str, Any]) -> None:
        match body["command"]:
            case "MARK_MEDIA":
                self.line.mark(body["correlation_id"])  # it is looked at with the next tick
            case "FLUSH_MEDIA":
                self.clear()
            case "HANGUP":
                self.open = False
                self._tasks.append(asyncio.create_task(self.leave()))
            case other:
                self.wrong.append(other)

    def tick(self) -> None:
        super().tick()
        if self._full and len(self.line) < self.XON * self.frame_bytes():
            self._full = False
            self.put("MEDIA_XON")

    def return_mark(self, name: str) -> None:
        self.put("MEDIA_MARK_PROCESSED", correlation_id=name)


class AsteriskWideCaller(AsteriskCaller):
    """The same with 16-bit sound at 16 kHz."""

    codec = "pcm16"
    rate = 16_000
    silence = b"\0"
    form = "slin16"


class StreamWire:
    """A TCP stream of AudioSocket frames: a message is one of them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.close_code: int | None = None

    async def send(self, message: Message) -> None:
        assert isinstance(message, bytes)
        with suppress(ConnectionError):
            self._writer.write(message)
            await self._writer.drain()

    async def receive(self) -> Message | None:
        try:
            head = await self._reader.readexactly(3)
            return head + await self._reader.readexactly(int.from_bytes(head[1:], "big"))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close(self, code: int = 1000) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    def drop(self) -> None:
        self._writer.transport.abort()


class AudioSocketCaller(Caller):
    """Asterisk's AudioSocket: what comes is played at once, without a buffer; an unknown kind ends the call."""

    system = "audiosocket"
    codec = "pcm16"
    silence = b"\0"

    @classmethod
    async def _connected(cls, url: str, **options: Any) -> Wire:
        split = urlsplit(url)
        return StreamWire(*await asyncio.open_connection(split.hostname, split.port))

    def start(self) -> list[Message]:
        return [b"\x01\x00\x10" + bytes.fromhex(CALL_ID.replace("-", ""))]

    def speak(self, sound: bytes) -> None:
        self.post(b"\x10" + len(sound).to_bytes(2, "big") + sound)

    def press_one(self, key: str) -> None:
        self.post(b"\x03\x00\x01" + key.encode())

    def take(self, message: Message) -> None:
        assert isinstance(message, bytes)
        kind, sound = message[0], message[3:]
        if kind == 0x10 and 0 < len(sound) <= 320:
            self.line.played += sound
        elif kind == 0x00:
            self.open = False
            self._tasks.append(asyncio.create_task(self.leave()))
        else:
            self.wrong.append(f"kind {kind:#04x} with {len(sound)} bytes")


SYSTEMS: dict[str, type[Caller]] = {
    "twilio": TwilioCaller,
    "telnyx": TelnyxCaller,
    "telnyx alaw": TelnyxAlawCaller,
    "plivo": PlivoCaller,
    "exotel": ExotelCaller,
    "vonage": VonageCaller,
    "genesys": GenesysCaller,
    "jambonz": JambonzCaller,
    "asterisk": AsteriskCaller,
    "asterisk slin16": AsteriskWideCaller,
    "audiosocket": AudioSocketCaller,
}
"""The far ends by name. Sinch has neither keys nor marks: its calls stand in test_calls.py."""
