"""OpenAI Realtime over WebRTC: the same events, with the sound on a track instead of in them.

A message in text is an event and goes over the data channel. A message in bytes never leaves the process: it goes to
the player of the reply's track (webrtc/track_playback.py), or comes from the microphone's track. So the connection
needs to know nothing of tracks, and sound, holds and events keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from msgspec import Struct, msgpack

from voxlane.codecs.opus import DECODED_RATE
from voxlane.engine.api import LISTEN_RATE
from voxlane.server import limits
from voxlane.server.conversation import client_events, server_events
from voxlane.server.protocols.dialect import AudioFormat, Hello, Incoming, OpusPacket, Outgoing, Packet
from voxlane.server.protocols.openai_realtime.packets import Event, packet
from voxlane.server.protocols.openai_realtime.protocol import RATE_LIMITS, REALTIME, OpenAIRealtime
from voxlane.server.protocols.sound import Loudspeaker, PacketMicrophone, SoundPiece

REPLY_TRACK = AudioFormat("pcm16", 24_000)

KNOWN_REPLIES = 16
"""Replies whose ids are remembered: one plays, and the next ones wait behind it."""


class TrackCommand(Struct, array_like=True, frozen=True):
    """What the player of the reply's track is told: `audio`, `finished`, `hold`, `release`, `duck`, `interrupted`."""

    name: str
    fields: dict[str, Any]


class MicrophoneSound(Struct, array_like=True, frozen=True):
    """Sound of the microphone's track: a silence, and Opus packets behind it."""

    silence: int = 0  # samples at 48 kHz
    packets: tuple[bytes, ...] = ()


_SOUND = msgpack.Decoder(MicrophoneSound)


class RealtimeCall(OpenAIRealtime):
    """One conversation in OpenAI's dialect over WebRTC."""

    def __init__(self, hello: Hello, session_rate: int) -> None:
        self._track_microphone = PacketMicrophone()
        self._silence = 0  # samples at 48 kHz that stood for packets that did not come
        self._track = Loudspeaker(REPLY_TRACK, session_rate)
        self._replies: dict[int, tuple[str, str]] = {}  # ids of a reply's response and item, by epoch
        super().__init__(hello, session_rate)

    def heard_s(self) -> float:
        """Return how much audio has come, in seconds: on the track, and in events."""
        return super().heard_s() + self._track_microphone.seconds + self._silence / DECODED_RATE

    def session_samples(self, played: client_events.Played) -> client_events.Played:
        """Convert a position of the track to the session's samples."""
        return replace(played, samples=self._track.session_samples(played.samples))

    # ---- in

    def decode(self, message: bytes | str) -> Iterable[Incoming]:
        """Return the events of a message."""
        if isinstance(message, str):
            return super().decode(message)
        return self._hear(_SOUND.decode(message))

    def _hear(self, heard: MicrophoneSound) -> list[Incoming]:
        """Return the silence, and the packets: another process decodes them."""
        found: list[Incoming] = []
        if heard.silence:
            self._silence += heard.silence
            pcm = bytes(2 * (heard.silence * LISTEN_RATE // DECODED_RATE))
            found.append(client_events.Audio(pcm, made_up=True))
        for data in heard.packets:
            self._track_microphone.push(data)
            found.append(OpusPacket(data))
        return found

    def clear_output(self, event: Event, ref: str) -> list[Incoming]:
        """Read output_audio_buffer.clear: the reply ends where it is."""
        self._responses.end_by_client()
        return [client_events.Stop()]

    # ---- out

    def write(self, packet: Packet, sequence: int) -> bytes | str:
        """Return the text of an event, or the bytes of a command to the track's player."""
        content = packet.fields[0]
        return msgpack.encode(content) if isinstance(content, TrackCommand) else super().write(packet, sequence)

    def encode(self, event: Outgoing) -> list[Packet]:
        """Return the packets for an event."""
        match event:
            case server_events.Speech():
                return [*self._responses.words(event), *(self._sound(piece) for piece in self._track.push(event))]
            case server_events.SpeechDone(epoch, samples):
                rest = [self._sound(piece) for piece in self._track.finish(epoch, samples)[0]]
                return [*rest, *self._events(event), _command("finished", epoch=epoch)]
            case server_events.Hold(epoch):
                return [*self._events(event), _command("hold", epoch=epoch)]
            case server_events.Duck(epoch, gain):
                return [*self._events(event), _command("duck", epoch=epoch, gain=gain)]
            case server_events.Release(epoch):
                return [*self._events(event), _command("release", epoch=epoch)]
            case server_events.Interrupted(epoch):
                return [_command("interrupted", epoch=epoch), *self._events(event), *self._truncated(event)]
            case server_events.ReplyStarted(epoch):
                packets = self._events(event)
                self._note(epoch, event.item, packets)
                return packets
            case _:
                return self._events(event)

    def _events(self, event: Outgoing) -> list[Packet]:
        """Return the packets of the dialect that carry no sound."""
        return [one for one in super().encode(event) if not one.epoch]

    def _note(self, epoch: int, item: str, packets: list[Packet]) -> None:
        """Remember the ids of a reply."""
        created: Any = packets[0].fields[0]
        self._replies[epoch] = created["response"]["id"], item
        if len(self._replies) > KNOWN_REPLIES:
            del self._replies[next(iter(self._replies))]

    def _sound(self, piece: SoundPiece) -> Packet:
        response, _ = self._replies.get(piece.epoch, ("", ""))
        command = TrackCommand(
            "audio", {"epoch": piece.epoch, "offset": piece.offset, "data": piece.data, "response": response}
        )
        end, seconds = piece.offset + piece.samples, piece.samples / REPLY_TRACK.rate
        return Packet((command,), piece.epoch, end, seconds)

    def _truncated(self, cut: server_events.Interrupted) -> list[Packet]:
        """Return the event for a reply that is remembered only as far as it was heard: the client cannot know."""
        _, item = self._replies.get(cut.epoch, ("", ""))
        if item not in self._known:  # an aside, or a reply that had not begun to speak
            return []
        heard_ms = round(self._track.client_samples(cut.samples) * 1000 / REPLY_TRACK.rate)
        return [packet("conversation.item.truncated", item_id=item, content_index=0, audio_end_ms=heard_ms)]


def _command(name: str, **fields: Any) -> Packet:
    return Packet((TrackCommand(name, fields),))


REALTIME_CALL = replace(
    REALTIME,
    # A track runs in real time: a recording cannot be sent ahead on it.
    rate_limits=replace(RATE_LIMITS, audio_burst_s=limits.CALL_AUDIO_BURST_SECONDS),
    make=RealtimeCall,
    name="webrtc",
)
