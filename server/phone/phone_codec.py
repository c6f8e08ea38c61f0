"""The `Codec` of a telephone call. The events go as they are to call_states.py, which has the line's player. Pure."""

from __future__ import annotations

from dataclasses import replace

from voxlane.server import limits
from voxlane.server.conversation.client_events import Played
from voxlane.server.conversation.server_events import (
    Duck,
    FloorState,
    Hold,
    Interrupted,
    Release,
    Speech,
    SpeechDone,
    ToolCalled,
    UserTurn,
)
from voxlane.server.protocols.dialect import AudioFormat, Dialect, GoAway, Hello, Incoming, Outgoing, Packet, RateLimits
from voxlane.server.protocols.sound import Loudspeaker

_FOR_THE_CALL = (Duck, FloorState, GoAway, Hold, Interrupted, Release, ToolCalled, UserTurn)


class PhoneCodec:
    """Converts the sound of replies to the rate of the line."""

    def __init__(self, hello: Hello, session_rate: int) -> None:
        self._rate = hello.output.rate
        self._loudspeaker = Loudspeaker(AudioFormat("pcm16", self._rate), session_rate)

    def sound(self, message: bytes) -> None:
        """Return None: the call itself reads what comes."""

    def heard_s(self) -> float:
        """Return 0: the caller's sound is counted by its microphone."""
        return 0.0

    def session_samples(self, played: Played) -> Played:
        """Convert a position on the line to the session's samples."""
        return replace(played, samples=self._loudspeaker.session_samples(played.samples))

    def decode(self, message: bytes | str) -> list[Incoming]:
        """Return nothing: call.py reads the messages of a line."""
        return []

    def encode(self, event: Outgoing) -> list[Packet]:
        """Return the event itself, with sound as 16-bit samples at the rate of the line."""
        match event:
            case Speech():
                return [self._sound(piece.epoch, piece.offset, piece.data) for piece in self._loudspeaker.push(event)]
            case SpeechDone(epoch, samples):
                pieces, total = self._loudspeaker.finish(epoch, samples)
                sounds = [self._sound(epoch, piece.offset, piece.data) for piece in pieces if piece.data]
                return [*sounds, Packet((SpeechDone(epoch, total),))]
            case _ if isinstance(event, _FOR_THE_CALL):
                return [Packet((event,))]
            case _:
                return []

    def _sound(self, epoch: int, offset: int, pcm: bytes) -> Packet:
        samples = len(pcm) // 2
        return Packet((Speech(epoch, offset, pcm),), epoch, offset + samples, samples / self._rate)

    def write(self, packet: Packet, sequence: int) -> bytes:
        """Return nothing: call.py writes the messages of a line."""
        return b""


RATE_LIMITS = RateLimits(
    frame_bytes=limits.VOICE_FRAME_BYTES,
    frames_per_s=limits.VOICE_FRAMES_PER_SECOND,
    frames_burst=limits.VOICE_FRAMES_BURST,
    bytes_per_s=limits.VOICE_BYTES_PER_SECOND,
    bytes_burst=limits.VOICE_BYTES_BURST,
    audio_rate=limits.VOICE_AUDIO_RATE,
    audio_burst_s=limits.VOICE_AUDIO_BURST_SECONDS,
)

PHONE = Dialect("", RATE_LIMITS, PhoneCodec, subprotocol_needed=False, resumable=False, name="phone")
