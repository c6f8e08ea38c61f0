"""Limits on the audio that one decode may produce."""

from __future__ import annotations

from dataclasses import dataclass

from voxlane.codecs.errors import TooMuchAudio, UnsupportedAudio

LOWEST_RATE = 4_000
HIGHEST_RATE = 192_000
"""Sample rates outside this range are mistakes or attacks: nothing that records speech uses them."""


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """What a caller accepts from one file."""

    seconds: float = 600.0
    decoded_bytes: int = 512 * 1024 * 1024  # float32 samples of all channels, before they are mixed down
    channels: int = 8

    def check(self, frames: int, channels: int, rate: int) -> None:
        """Raise if this much audio may not be decoded; call it before anything is allocated."""
        if not LOWEST_RATE <= rate <= HIGHEST_RATE:
            raise UnsupportedAudio(f"the sample rate must lie between {LOWEST_RATE} and {HIGHEST_RATE} Hz")
        if not 1 <= channels <= self.channels:
            raise UnsupportedAudio(f"the audio must have 1 to {self.channels} channels")
        if frames > self.seconds * rate:
            raise TooMuchAudio(f"the audio is longer than {self.seconds:g} s")
        if frames * channels * 4 > self.decoded_bytes:
            raise TooMuchAudio(f"the decoded audio is larger than {self.decoded_bytes} bytes")
