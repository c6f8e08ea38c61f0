"""The person's turns in OpenAI Realtime: speech starts and stops, commits, and transcripts.

The dialect has no hold: its clients stop playing as soon as they are told that speech started. So while a reply is on
hold, the events of the voice that caused it are held back. They are sent if the voice takes the floor, else dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from voxlane.server.conversation.replies.history import turn_item
from voxlane.server.conversation.server_events import (
    Fault,
    IdleTimeout,
    InputCommitted,
    SpeechStarted,
    SpeechStopped,
    TurnDone,
    UserTurn,
    UserWords,
)
from voxlane.server.conversation.turns.policies import TurnPolicy
from voxlane.server.protocols.dialect import Packet
from voxlane.server.protocols.openai_realtime.items import KnownItems, shown_message
from voxlane.server.protocols.openai_realtime.packets import packet

TurnEvent = SpeechStarted | SpeechStopped | UserWords | UserTurn | TurnDone | InputCommitted | IdleTimeout


@dataclass(slots=True)
class _Speech:
    """One turn that the client was told of."""

    item: str
    began_s: float
    seconds: float = 0.0
    committed: bool = False
    settled: str = ""
    sent: str = ""  # the transcript sent so far


class PersonTurns:
    """Makes the packets about the person's turns."""

    def __init__(self, known: KnownItems, heard_s: Callable[[], float]) -> None:
        self.session = ""  # name of the session
        self.transcribes = False  # the client wants transcripts
        self.policy = TurnPolicy()  # how turns begin and end
        self._known = known
        self._heard_s = heard_s
        self._marked_s = 0.0  # up to here sound was committed or cleared
        self._speeches: dict[int, _Speech] = {}  # by turn, until their words are known
        self._holds = False
        self._kept: list[TurnEvent] = []  # held-back events of the turn that caused the hold

    # ---- holds

    def hold(self) -> None:
        """Hold back the events of a voice that begins from now on."""
        self._holds = True

    def release(self) -> None:
        """Drop the events that were held back: the voice did not take the floor."""
        self._holds = False
        self._kept.clear()

    def interrupted(self, closing: list[Packet]) -> list[Packet]:
        """Return the packets of an interruption: speech_started, the response's end, the other held-back events."""
        kept, self._kept, self._holds = self._kept, [], False
        first = [one for event in kept[:1] for one in self.encode(event)]
        return [*first, *closing, *(one for event in kept[1:] for one in self.encode(event))]

    # ---- turns

    def encode(self, event: TurnEvent, fault: Fault | None = None) -> list[Packet]:
        """Return the packets for an event of a turn; `fault` is why the turn failed."""
        starts = isinstance(event, SpeechStarted)
        if self._holds and (starts or any(kept.turn == event.turn for kept in self._kept)):
            self._kept.append(event)
            return []
        match event:
            case SpeechStarted(turn, at_s):
                self._speeches[turn] = speech = _Speech(turn_item(self.session, turn), at_s)
                begins_s = max(self._marked_s, at_s - self.policy.pre_roll_s)  # with the padding before the voice
                fields: dict[str, Any] = {"audio_start_ms": _ms(min(at_s, begins_s)), "item_id": speech.item}
                return [packet("input_audio_buffer.speech_started", **fields)]
            case IdleTimeout(turn, item, from_s, to_s):
                self._speeches[turn] = _Speech(item, from_s, to_s - from_s)
                fields = {"audio_start_ms": _ms(from_s), "audio_end_ms": _ms(to_s), "item_id": item}
                return [packet("input_audio_buffer.timeout_triggered", **fields)]
            case InputCommitted():
                return self._commit(event)
        speech_or_none = self._speeches.get(event.turn)
        if speech_or_none is None:  # typed, or the client was not told of it
            return []
        match event:
            case SpeechStopped(at_s=at_s):
                return self._stop(speech_or_none, at_s)
            case UserWords(settled=settled):
                speech_or_none.settled += settled
                return self._transcript_delta(speech_or_none, speech_or_none.settled)
            case UserTurn(turn, text):
                del self._speeches[turn]
                return self._complete(speech_or_none, text)
            case TurnDone(turn, how):
                del self._speeches[turn]
                if not speech_or_none.committed:  # some clients assume speech until it stops
                    return self._stop(speech_or_none, self._heard_s())
                return self._fail(speech_or_none, fault) if how == "failed" else self._complete(speech_or_none, "")

    def clear(self) -> list[Packet]:
        """Return the packet for a cleared input buffer."""
        self._marked_s = self._heard_s()
        return [packet("input_audio_buffer.cleared")]

    def _stop(self, speech: _Speech, at_s: float) -> list[Packet]:
        speech.seconds = max(0.0, at_s - speech.began_s)
        ends_s = max(at_s, min(self._heard_s(), at_s + self.policy.min_wait_s))  # with the silence that ended it
        fields = {"audio_end_ms": _ms(ends_s), "item_id": speech.item}
        return [packet("input_audio_buffer.speech_stopped", **fields)]

    def _commit(self, event: InputCommitted) -> list[Packet]:
        speech = self._speeches.get(event.turn)
        if speech is None:  # the client ends turns itself: no SpeechStarted
            speech = _Speech(event.item, self._marked_s, max(0.0, self._heard_s() - self._marked_s))
            self._speeches[event.turn] = speech
        speech.committed, self._marked_s = True, self._heard_s()
        before = self._known.add(speech.item)
        content: list[dict[str, Any]] = [{"type": "input_audio", "transcript": None}]
        placed = {"previous_item_id": before, "item": shown_message(speech.item, "user", content, "completed")}
        return [
            packet("input_audio_buffer.committed", previous_item_id=before, item_id=speech.item),
            packet("conversation.item.added", **placed),
            packet("conversation.item.done", **placed),
            *self._transcript_delta(speech, speech.settled),
        ]

    # ---- transcripts

    def _transcript_delta(self, speech: _Speech, words: str) -> list[Packet]:
        """Return the new part of a transcript; it is sent only after its item."""
        words = words.lstrip()
        delta = words.removeprefix(speech.sent)
        if not (self.transcribes and speech.committed and delta and words.startswith(speech.sent)):
            return []
        speech.sent = words
        return [packet(f"{_TRANSCRIPTION}.delta", item_id=speech.item, content_index=0, delta=delta)]

    def _complete(self, speech: _Speech, text: str) -> list[Packet]:
        if not (self.transcribes and speech.committed):
            return []
        usage = {"type": "duration", "seconds": round(speech.seconds, 3)}
        fields = {"item_id": speech.item, "content_index": 0, "transcript": text, "usage": usage}
        return [*self._transcript_delta(speech, text), packet(f"{_TRANSCRIPTION}.completed", **fields)]

    def _fail(self, speech: _Speech, fault: Fault | None) -> list[Packet]:
        if not self.transcribes:
            return []
        code, message = (fault.code, fault.message) if fault else ("engine_failed", "the engine could not finish this")
        error = {"type": "transcription_error", "code": code, "message": message}
        return [packet(f"{_TRANSCRIPTION}.failed", item_id=speech.item, content_index=0, error=error)]


_TRANSCRIPTION = "conversation.item.input_audio_transcription"


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
