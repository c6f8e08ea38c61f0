"""The echo guard of one session: what it sends its client is compared with what the microphone hears. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from voxlane.server.conversation.effects import Effect, Send
from voxlane.server.conversation.hearing.echo import EchoCanceller
from voxlane.server.conversation.hearing.playback_clock import PlaybackClock
from voxlane.server.conversation.replies.reply import Reply
from voxlane.server.conversation.server_events import Speech
from voxlane.server.conversation.turns.overlap import DUCK_GAIN


class EchoGuard:
    """The loudspeaker and the microphone of one session."""

    def __init__(self, speak_rate: int) -> None:
        self._clock = PlaybackClock(speak_rate)
        self._canceller = EchoCanceller()
        self._ducked = False

    def note(self, effects: Iterable[Effect], reply: Reply | None) -> None:
        """Note what the client is sent of the reply."""
        for effect in effects if reply is not None else ():
            speech = effect.event if isinstance(effect, Send) else None
            if isinstance(speech, Speech) and reply is not None and speech.epoch == reply.epoch:
                self._clock.send(speech.epoch, speech.pcm)  # unlike an aside, which may never be played

    def hear(self, pcm: bytes, reply: Reply | None, now: float) -> bytes:
        """Return the microphone's sound without the echo of the reply."""
        plays = reply is not None and reply.stage == "live" and not reply.silent
        position = reply.position(now) if reply is not None and plays else None
        played = self._clock.play(len(pcm) // 2, position)
        if self._clock.jumped:
            self._canceller.begin_anew()
        ducked = reply is not None and reply.ducked
        if ducked != self._ducked:
            self._ducked = ducked
            self._canceller.change_loudness()
        if played is not None and ducked:
            played = played * np.float32(DUCK_GAIN)
        return self._canceller.hear(pcm, played)
