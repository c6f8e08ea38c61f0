"""The microphone's track as one unbroken stream, whatever was lost or never sent. Pure.

A packet that is repeated stands for up to three that were lost: it sounds alike, and a hole in a word is heard as
another word. Silence stands for longer gaps.
"""

from __future__ import annotations

from voxlane.codecs.opus import DECODED_RATE
from voxlane.codecs.opus_packets import packet_samples
from voxlane.server.protocols.openai_realtime.call_codec import MicrophoneSound

REPEATED_S = 0.06
"""A gap up to this length is filled with the packet before it: a longer one would be heard as a drone."""

LONGEST_GAP_S = 1.0
"""Silence for one gap between two packets: in a longer one the sender had stopped, and `quiet` has stood in for it."""

QUIET_S = 0.5
"""A track that sends nothing for so long is silent: turns end by the sound of silence. Networks stall for less."""


class TrackMicrophone:
    """Fills the gaps of a track. Places are samples at 48 kHz by the track's own time stamps."""

    def __init__(self) -> None:
        self._next: int | None = None  # where the next packet begins if none is lost; None: none has come
        self._last = b""
        self._made_up = 0  # samples of silence that `quiet` gave since the last packet

    def push(self, at: int, packet: bytes) -> MicrophoneSound:
        """Return a packet that begins at a place, behind what stands for those before it; raise InvalidAudio."""
        samples = packet_samples(packet)
        gap = 0 if self._next is None else max(0, at - self._next - self._made_up)
        before, self._last = self._last, packet
        self._next, self._made_up = at + samples, 0
        if 0 < gap <= round(REPEATED_S * DECODED_RATE):
            return MicrophoneSound(0, (*[before] * (gap // packet_samples(before)), packet))
        return MicrophoneSound(min(gap, round(LONGEST_GAP_S * DECODED_RATE)), (packet,))

    def quiet(self) -> MicrophoneSound | None:
        """Return the silence of QUIET_S without a packet; None before the first packet."""
        if self._next is None:
            return None
        silence = round(QUIET_S * DECODED_RATE)
        self._made_up += silence
        return MicrophoneSound(silence)
