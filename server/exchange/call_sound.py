"""The sound of a call on a clock, and the codes of the telephone network."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from voxlane.codecs.g711 import decode_mulaw, encode_mulaw
from voxlane.codecs.g722 import G722Decoder, G722Encoder
from voxlane.codecs.wav import encode_wav
from voxlane.server.exchange.errors import CallSilent

Floats = NDArray[np.float32]

FRAME_S = 0.02
"""Length of the sound in one packet."""

LOUD = 0.01
"""Sound above this part of full scale is no silence."""


@dataclass(frozen=True, slots=True)
class CallSound:
    """Sound of one direction of a call: `samples` begin at `start`. Nothing arrived where there is silence."""

    start: float
    rate: int
    samples: Floats

    def between(self, begin: float, end: float) -> Floats:
        """Return the samples between two moments."""
        first, last = (max(0, round((moment - self.start) * self.rate)) for moment in (begin, end))
        return self.samples[first:last]

    def stretches(self, level: float = LOUD, pause_s: float = 0.2) -> list[tuple[float, float]]:
        """Return begin and end of every stretch of sound. Silence shorter than `pause_s` belongs to the stretch."""
        width = self.rate // 200  # 5 ms
        count = len(self.samples) // width
        peaks = np.abs(self.samples[: count * width]).reshape(count, width).max(axis=1, initial=0.0)
        found: list[tuple[float, float]] = []
        for place in np.flatnonzero(peaks > level):
            begin = self.start + float(place) * width / self.rate
            end = begin + width / self.rate
            if found and begin - found[-1][1] < pause_s:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
        return found

    def sound_from(self, moment: float, level: float = LOUD) -> float | None:
        """Return when sound is first heard at or after a moment."""
        return next((max(begin, moment) for begin, end in self.stretches(level) if end > moment), None)

    def silent_from(self, moment: float, level: float = LOUD, pause_s: float = 0.2) -> float:
        """Return when silence of at least `pause_s` begins, at or after a moment."""
        covering = (end for begin, end in self.stretches(level, pause_s) if begin <= moment < end)
        return next(covering, moment)

    def wav(self) -> bytes:
        """Return the recording as a WAV file."""
        return encode_wav(self.samples, self.rate)


@dataclass(frozen=True, slots=True)
class SoundPacket:
    """Sound of one RTP packet. `moment` is when its first sample is spoken or played."""

    moment: float
    timestamp: int
    samples: Floats


def timeline(packets: Sequence[SoundPacket], start: float, end: float, rate: int) -> CallSound:
    """Return packets as one recording from `start` to `end`.

    Packets whose RTP timestamps follow each other lie side by side, as a phone plays them. The first packet of a
    stretch lies where it arrived, and so does one that is more than 60 ms from its place.
    """
    samples = np.zeros(max(0, round((end - start) * rate)), dtype=np.float32)
    expected, place = -1, 0.0
    for packet in packets:
        if packet.timestamp != expected or abs(packet.moment - place) > 3 * FRAME_S:
            place = packet.moment
        first = round((place - start) * rate)
        piece = packet.samples[max(0, -first) : max(0, len(samples) - first)]
        samples[max(0, first) : max(0, first) + len(piece)] = piece
        expected = packet.timestamp + 160  # both codes count 8,000 a second
        place += len(packet.samples) / rate
    return CallSound(start, rate, samples)


class _Coder(Protocol):
    """Both directions of a telephone code; each keeps its state between packets."""

    def encode(self, samples: Floats) -> bytes: ...
    def decode(self, data: bytes) -> Floats: ...


class _Mulaw:
    def encode(self, samples: Floats) -> bytes:
        return encode_mulaw(samples)

    def decode(self, data: bytes) -> Floats:
        return decode_mulaw(data)


class _Wideband:
    def __init__(self) -> None:
        self._encoder, self._decoder = G722Encoder(), G722Decoder()

    def encode(self, samples: Floats) -> bytes:
        return self._encoder.push(samples)

    def decode(self, data: bytes) -> Floats:
        return self._decoder.decode(data)


@dataclass(frozen=True, slots=True)
class PhoneCode:
    """A code of the telephone network: its name in SDP, its RTP payload type, and its sample rate."""

    name: str
    payload_type: int
    rate: int
    coder: Callable[[], _Coder]


PCMU = PhoneCode("PCMU/8000", 0, 8_000, _Mulaw)
G722 = PhoneCode("G722/16000", 9, 16_000, _Wideband)


@dataclass(slots=True)
class SpokenSound:
    """Sound that was given to the microphone."""

    frames: deque[Floats]
    began: float | None = None
    ended: float | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def wait(self, timeout_s: float = 60.0) -> tuple[float, float]:
        """Wait until all of it was spoken. Return when its first sample began and its last one ended."""
        if not self.over.wait(timeout_s):
            raise CallSilent(f"the phone did not speak within {timeout_s:g} s")
        assert self.began is not None
        assert self.ended is not None
        return self.began, self.ended
