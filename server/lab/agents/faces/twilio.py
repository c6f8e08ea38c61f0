"""A planted agent's side of Twilio Media Streams: sound at 8 kHz, a mark after each piece, and `clear`. Pure."""

from __future__ import annotations

import numpy as np

from voxlane.codecs.g711 import encode_alaw, encode_mulaw
from voxlane.server.lab.agents.acts import Act, ClientInput, ResponseCut, ResponseSound
from voxlane.server.lab.agents.voice import AGENT_RATE, at_rate
from voxlane.server.lab.values import Message
from voxlane.server.protocols.dialect import AudioFormat
from voxlane.server.protocols.phone.line_events import CallEnded, CallStarted, MarkReturned, Media
from voxlane.server.protocols.phone.twilio import Twilio
from voxlane.server.protocols.sound import Microphone


class TwilioFace:
    """One telephone call. A mark's name is the response and the sample behind the piece: `3:4800`."""

    def __init__(self) -> None:
        self.ready = False
        self._codec = Twilio()
        self._form = AudioFormat("mulaw", 8_000)
        self._microphone = Microphone(self._form)
        self._marks: set[str] = set()  # marks that have not come back and whose sound was not dropped

    def opening(self) -> list[Message]:
        """Return nothing: the carrier speaks first."""
        return []

    def read(self, message: Message) -> ClientInput:
        """Return what a message says; raise BadMessage if it breaks the rules."""
        for event in self._codec.read(message):
            match event:
                case CallStarted():
                    self._form = event.output
                    self._microphone = Microphone(event.input)
                    self.ready = True
                case Media(data):
                    return ClientInput(sound=np.frombuffer(self._microphone.push(data), "<i2").astype(np.int16))
                case MarkReturned(name):
                    return self._returned(name)
                case CallEnded():
                    return ClientInput(ended=True)
        return ClientInput()

    def write(self, act: Act) -> list[Message]:
        """Return the messages for an act; a carrier knows no turns and no responses."""
        match act:
            case ResponseSound(response, _, _, end):
                mark = f"{response}:{end}"
                self._marks.add(mark)
                return [self._codec.media(self._encoded(act)), self._codec.mark(mark)]
            case ResponseCut(flush=True):
                # Marks of dropped sound come back at once: they do not say that it was played.
                self._marks.clear()
                return [self._codec.clear()]
        return []

    def _encoded(self, act: ResponseSound) -> bytes:
        rate = self._form.rate
        pcm = at_rate(act.clip, rate)[act.first * rate // AGENT_RATE : act.end * rate // AGENT_RATE]
        match self._form.codec:
            case "mulaw":
                return encode_mulaw(pcm / 32768)
            case "alaw":
                return encode_alaw(pcm / 32768)
        return pcm.astype("<i2").tobytes()

    def _returned(self, name: str) -> ClientInput:
        if name not in self._marks:
            return ClientInput()
        self._marks.remove(name)
        response, _, end = name.partition(":")
        return ClientInput(played=(int(response), int(end)))
