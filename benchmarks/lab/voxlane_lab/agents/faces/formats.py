"""The formats of sound that a face reads and writes: 16-bit PCM, or G.711, at any rate. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from voxlane_lab.agents.acts import ResponseSound
from voxlane_lab.agents.voice import AGENT_RATE, at_rate
from voxlane_lab.dialects.wire import NotUnderstood
from voxlane_lab.rates import RateConverter
from voxlane_lab.values import USER_RATE, Pcm
from voxlane_lab.waveform import decode_g711, encode_g711, floats_of, quantise


@dataclass(frozen=True, slots=True)
class SoundFormat:
    """How one direction of a call writes its samples."""

    codec: Literal["pcm16", "mulaw", "alaw"] = "pcm16"
    rate: int = AGENT_RATE

    def place(self, sample: int) -> int:
        """Return the place of a sample of the agent's in this format."""
        return sample * self.rate // AGENT_RATE

    def written(self, act: ResponseSound) -> bytes:
        """Return a piece of a response."""
        pcm = at_rate(act.clip, self.rate)[self.place(act.first) : self.place(act.end)]
        return pcm.astype("<i2").tobytes() if self.codec == "pcm16" else encode_g711(pcm, self.codec)


MULAW, ALAW = SoundFormat("mulaw", 8_000), SoundFormat("alaw", 8_000)


class ClientSound:
    """The microphone of a client, as it comes."""

    def __init__(self, form: SoundFormat) -> None:
        self._form = form
        self._converter = RateConverter(form.rate, USER_RATE)

    def read(self, data: bytes) -> Pcm:
        """Return the next samples at USER_RATE."""
        if self._form.codec != "pcm16":
            pcm = decode_g711(data, self._form.codec)
        elif len(data) % 2:
            raise NotUnderstood("16-bit audio with an odd number of bytes")
        else:
            pcm = np.frombuffer(data, "<i2").astype(np.int16)
        return pcm if self._form.rate == USER_RATE else quantise(self._converter.push(floats_of(pcm)))
