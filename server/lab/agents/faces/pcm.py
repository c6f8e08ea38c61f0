"""A planted agent's side of plain PCM: 16 kHz in binary messages both ways, and {"type": "clear"}. Pure.

It is the server for which the lab needs no mapping file.
"""

from __future__ import annotations

import numpy as np

from voxlane.server.lab.agents.acts import Act, ClientInput, ResponseCut, ResponseSound
from voxlane.server.lab.agents.voice import AGENT_RATE, at_rate
from voxlane.server.lab.values import USER_RATE, Message
from voxlane.server.protocols.dialect import BadMessage

CLEAR = '{"type":"clear"}'

MOST_BYTES = 64 * 1024
"""Bytes of sound in one message: two seconds."""


class PcmFace:
    """One call in plain PCM."""

    def __init__(self) -> None:
        self.ready = True

    def opening(self) -> list[Message]:
        """Return nothing."""
        return []

    def read(self, message: Message) -> ClientInput:
        """Return what a message says; texts say nothing. Raise BadMessage if it breaks the rules."""
        if isinstance(message, str):
            return ClientInput()
        if len(message) > MOST_BYTES:
            raise BadMessage(f"a message has at most {MOST_BYTES} bytes of sound")
        if len(message) % 2:
            raise BadMessage("16-bit audio has an odd number of bytes")
        return ClientInput(sound=np.frombuffer(message, "<i2").astype(np.int16))

    def write(self, act: Act) -> list[Message]:
        """Return the messages for an act; there are no turns and no responses."""
        match act:
            case ResponseSound(_, clip, first, end):
                pcm = at_rate(clip, USER_RATE)[first * USER_RATE // AGENT_RATE : end * USER_RATE // AGENT_RATE]
                return [pcm.astype("<i2").tobytes()]
            case ResponseCut(flush=True):
                return [CLEAR]
        return []
