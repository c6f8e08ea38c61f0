"""An audio file to what the engine hears: mono, 16 bits, of one rate. Pure: bytes in, bytes out, in slices."""

from __future__ import annotations

from collections.abc import Iterator

from voxlane.codecs.container import decode_audio
from voxlane.codecs.limits import AudioLimits
from voxlane.codecs.pcm import Buffer, encode_pcm16
from voxlane.codecs.resample import Resampler
from voxlane.engine.api import LISTEN_RATE

USUAL_RATE = 48_000
"""The decoded size is limited to what a recording of the allowed length has at this rate."""

SLICES_PER_SECOND = 4
"""How finely a file is converted: half a millisecond of work, after which others may have their turn."""


def limits_for(seconds: float) -> AudioLimits:
    """Return the limits that go with a longest recording."""
    # A short limit must still let in the few seconds that a file of 8 channels at 192 kHz may have.
    return AudioLimits(seconds, max(int(seconds * USUAL_RATE * 4), 64 * 1024 * 1024))


def to_listening(data: Buffer, limits: AudioLimits, wanted_rate: int = LISTEN_RATE) -> Iterator[bytes]:
    """Yield a file's samples as the engine hears them; raise AudioError before the first if it cannot be decoded."""
    samples, rate = decode_audio(data, limits)
    resampler = Resampler(rate, wanted_rate)
    # A little at a time: the copies of an hour would be as large as the hour itself.
    size = rate // SLICES_PER_SECOND
    for start in range(0, len(samples), size):
        yield encode_pcm16(resampler.push(samples[start : start + size]))
    yield encode_pcm16(resampler.flush())
