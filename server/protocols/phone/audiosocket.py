"""Asterisk's AudioSocket: frames over TCP, of a kind, a length of two bytes with the high byte first, and data.

The sound is 16 bits at 8 kHz. The line keeps no buffer that could be discarded and returns no marks: sound is sent when
it is due.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.line_events import (
    CallEnded,
    CallFacts,
    CallStarted,
    LineEvent,
    LineTraits,
    Media,
    Message,
)
from voxlane.server.protocols.phone.reading import checked_sound, key_event, unknown

FORMAT = AudioFormat("pcm16", 8_000)

HANG_UP, IDENTIFIER, KEY, SOUND, ERROR = 0x00, 0x01, 0x03, 0x10, 0xFF
OTHER_SOUND = range(0x11, 0x19)
"""Kinds of sound at other rates, which only the channel driver sends."""

_HEAD_BYTES = 3


@dataclass(frozen=True, slots=True)
class AudioSocketFrame:
    """One frame."""

    kind: int
    data: bytes = b""

    def __bytes__(self) -> bytes:
        return bytes((self.kind,)) + len(self.data).to_bytes(2, "big") + self.data


class AudioSocketParser:
    """Cuts a stream of bytes into frames. It never keeps more than one incomplete frame."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[AudioSocketFrame]:
        """Return the frames that are complete with the next bytes."""
        self._rest += data
        frames, start = [], 0
        while len(self._rest) - start >= _HEAD_BYTES:
            size = int.from_bytes(self._rest[start + 1 : start + _HEAD_BYTES], "big")
            end = start + _HEAD_BYTES + size
            if len(self._rest) < end:
                break
            frames.append(AudioSocketFrame(self._rest[start], bytes(self._rest[start + _HEAD_BYTES : end])))
            start = end
        del self._rest[:start]
        return frames


class AudioSocket:
    """One call over AudioSocket. `read` takes the bytes of the connection as they come."""

    traits = LineTraits("audiosocket", lead_s=0.04, piece_ms=20, clears=False, marks=False, asks_next=True)

    def __init__(self) -> None:
        self._parser = AudioSocketParser()
        self._started = False
        self._ended = False

    def read(self, message: Message) -> list[LineEvent]:
        """Return the events of the next bytes; raise BadMessage if they break the rules."""
        if isinstance(message, str):
            raise BadMessage("AudioSocket has no text")
        return [event for frame in self._parser.feed(message) for event in self._read_frame(frame)]

    def _read_frame(self, frame: AudioSocketFrame) -> list[LineEvent]:
        if self._ended:
            return []
        if frame.kind == IDENTIFIER:
            return self._start(frame.data)
        if frame.kind == HANG_UP:
            return self._end()
        if not self._started:
            raise BadMessage("the first frame is the call's UUID")
        if frame.kind == SOUND:
            return [Media(checked_sound(frame.data, FORMAT))] if frame.data else []
        if frame.kind == KEY:
            return [key_event(frame.data.decode("latin-1"), "dtmf")]
        if frame.kind == ERROR:
            return [unknown(f"error {frame.data[:1].hex()}"), *self._end()]
        if frame.kind in OTHER_SOUND:
            raise BadMessage("the sound must be at 8 kHz: use the application AudioSocket, or c(slin)")
        return [unknown(f"kind {frame.kind:#04x}")]

    def _start(self, data: bytes) -> list[LineEvent]:
        if self._started:
            raise BadMessage("the UUID comes twice")
        if len(data) != 16:
            raise BadMessage("a UUID has 16 bytes")
        self._started = True
        return [CallStarted(CallFacts(self.traits.name, str(uuid.UUID(bytes=data))), FORMAT, FORMAT)]

    def _end(self) -> list[LineEvent]:
        self._ended = True
        return [CallEnded()]

    def media(self, data: bytes) -> bytes:
        """Return the frame for a piece of sound."""
        return bytes(AudioSocketFrame(SOUND, data))

    def mark(self, name: str) -> None:
        """Return nothing: there are no marks."""
        return

    def clear(self) -> None:
        """Return nothing: what was sent is played."""
        return

    def hang_up(self) -> bytes:
        """Return the frame that ends the call."""
        return bytes(AudioSocketFrame(HANG_UP))
