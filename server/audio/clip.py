"""Convert an audio file to the engine's input: mono PCM16 at one rate. Pure: bytes in, bytes out, in slices."""

from __future__ import annotations

from collections.abc import Iterator

from voxlane.codecs.container import decode_audio
from voxlane.codecs.limits import AudioLimits
from voxlane.codecs.pcm import Buffer, encode_pcm16
from voxlane.codecs.resample import Resampler
from voxlane.engine.api import LISTEN_RATE

USUAL_RATE = 48_000
"""The decoded size is limited to that of a recording of the allowed length at this rate."""

SLICES_PER_SECOND = 4
"""A slice is half a millisecond of work. Between two slices other tasks may run."""


def limits_for(seconds: float) -> AudioLimits:
    """Return the limits for recordings of at most `seconds`."""
    # Even a short limit must admit a few seconds of 8 channels at 192 kHz.
    return AudioLimits(seconds, max(int(seconds * USUAL_RATE * 4), 64 * 1024 * 1024))


def to_listening(data: Buffer, limits: AudioLimits, wanted_rate: int = LISTEN_RATE) -> Iterator[bytes]:
    """Yield a file's samples as PCM16 at `wanted_rate`; raise AudioError before the first if it cannot be decoded."""
    samples, rate = decode_audio(data, limits)
    resampler = Resampler(rate, wanted_rate)
    # In slices: a copy of a whole hour would be as large as the hour itself.
    size = rate // SLICES_PER_SECOND
    for start in range(0, len(samples), size):
        yield encode_pcm16(resampler.push(samples[start : start + size]))
    yield encode_pcm16(resampler.flush())
