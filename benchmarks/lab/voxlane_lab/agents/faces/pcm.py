"""A planted agent's side of plain PCM: 16 kHz in binary messages both ways, and {"type": "clear"}. Pure.

It is the server for which the lab needs no mapping file.
"""

from __future__ import annotations

from voxlane_lab.agents.acts import Act, ClientInput, ResponseCut, ResponseSound
from voxlane_lab.agents.faces.formats import ClientSound, SoundFormat
from voxlane_lab.dialects.wire import NotUnderstood
from voxlane_lab.values import USER_RATE, Message

FORM = SoundFormat("pcm16", USER_RATE)
CLEAR = '{"type":"clear"}'

MOST_BYTES = 64 * 1024
"""Bytes of sound in one message: two seconds."""


class PcmFace:
    """One call in plain PCM."""

    def __init__(self) -> None:
        self.ready = True
        self._sound = ClientSound(FORM)

    def opening(self) -> list[Message]:
        """Return nothing."""
        return []

    def read(self, message: Message) -> ClientInput:
        """Return what a message says; texts say nothing. Raise NotUnderstood if it breaks the rules."""
        if isinstance(message, str):
            return ClientInput()
        if len(message) > MOST_BYTES:
            raise NotUnderstood(f"sound of more than {MOST_BYTES} bytes in a message")
        return ClientInput(sound=self._sound.read(message))

    def write(self, act: Act) -> list[Message]:
        """Return the messages for an act; there are no turns and no responses."""
        match act:
            case ResponseSound():
                return [FORM.written(act)]
            case ResponseCut(flush=True):
                return [CLEAR]
        return []
