"""jambonz's `listen` and `stream` verbs with bidirectional streaming: binary 16-bit sound, JSON for the rest.

The first text is the call, with the verb's own metadata among its fields. `passDtmf` must be set for keys.

jambonz gathers sound before it plays it: messages are so large that none of them waits for the next. It clears its
buffer 20 ms after it was told so, with all that has come until then. A mark comes back with `playout` when it is
reached, or with `cleared`; after that jambonz returns marks too late, under the names of earlier ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import Struct

from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.line_events import CallStarted, LineEvent, LineTraits, MarkReturned, Media, Message
from voxlane.server.protocols.phone.reading import (
    Identifier,
    MarkName,
    Number,
    audio_format,
    call_facts,
    checked_sound,
    event_name,
    json_object,
    json_text,
    key_event,
    read_as,
    scalars,
    unknown,
)
from voxlane.server.protocols.phone.system import TelephoneSystem

GATHERED_SAMPLES = 640
"""Samples that jambonz gathers before it plays them, twice as many at the beginning of a call."""

SETTLE_S = 0.04
"""Two ticks of jambonz: by then it has cleared its buffer."""

_ADVICE = "set sampleRate to 8000, 16000 or 24000"
_NOT_PARAMETERS = {
    "accountSid", "applicationSid", "callId", "callSid", "callStatus", "callTerminationBy", "callerId", "callerName",
    "direction", "fsPublicIp", "fsSipAddress", "localSipAddress", "mixType", "originatingSipIp",
    "originatingSipTrunkName", "parentCallSid", "publicIp", "sampleRate", "sbcCallid", "service_url", "sipReason",
    "sipStatus", "traceId",
}  # fmt: skip


class _Call(Struct, rename="camel"):
    sample_rate: Number
    mix_type: Identifier = "mono"
    call_sid: Identifier = ""


class _ReturnAudio(Struct, rename="camel"):
    sample_rate: Number


class _Key(Struct):
    dtmf: str | int = ""


class _Mark(Struct):
    name: MarkName
    event: str = "playout"


class Jambonz:
    """The messages of one call on jambonz."""

    traits = LineTraits("jambonz", settle_s=SETTLE_S)

    def __init__(self) -> None:
        self._input: AudioFormat | None = None
        self._least_bytes = 0  # of a message
        self._sent_bytes = 0
        self._marks_lie = False

    def read(self, message: Message) -> list[LineEvent]:
        """Return the events of a message; raise BadMessage if it breaks the rules."""
        if isinstance(message, bytes):
            if self._input is None:
                raise BadMessage("sound comes before the call's text")
            return [Media(checked_sound(message, self._input))] if message else []
        body = json_object(message)
        if self._input is None:
            return self._start(body)
        name = event_name(body, "event" if "event" in body else "type")
        if name == "dtmf":
            return [key_event(read_as(_Key, body).dtmf, name)]
        if name == "mark":
            mark = read_as(_Mark, body.get("data"), at="data")
            self._marks_lie |= mark.event == "cleared"
            return [MarkReturned(mark.name, not self._marks_lie)]
        return [unknown(name)]

    def _start(self, body: dict[str, Any]) -> list[LineEvent]:
        call = read_as(_Call, body)
        if call.mix_type != "mono":
            raise BadMessage('only the caller must be heard: set mixType to "mono"')
        self._input = audio_format("l16", call.sample_rate, _ADVICE)
        output, back = self._input, body.get("bidirectionalAudio")
        if isinstance(back, dict) and "sampleRate" in back:
            rate = read_as(_ReturnAudio, back, at="bidirectionalAudio").sample_rate
            output = audio_format("l16", rate, _ADVICE)
        # jambonz counts by the rate of the caller's sound, and by a multiple of it where ours is higher.
        least = GATHERED_SAMPLES * max(1, output.rate // self._input.rate)
        self._least_bytes = 2 * least
        self.traits = replace(self.traits, piece_ms=-(-least * 1000 // output.rate))
        top = {key: value for key, value in scalars(body).items() if key not in _NOT_PARAMETERS}
        given = {**top, **scalars(body.get("customerData")), **scalars(body.get("metadata"))}
        facts = call_facts(self.traits.name, call.call_sid, given, caller=body.get("from"), called=body.get("to"))
        return [CallStarted(facts, self._input, output)]

    def media(self, data: bytes) -> bytes:
        """Return the message for a piece of sound, filled up so that jambonz plays it at once.

        jambonz marks places in its buffer with the sample -1 and would take such a sample for a mark.
        """
        samples = np.frombuffer(data, "<i2")
        sound = np.where(samples == -1, np.int16(0), samples).astype("<i2").tobytes()
        if len(sound) < self._least_bytes:
            sound = sound.ljust(max(self._least_bytes, 2 * self._least_bytes - self._sent_bytes), b"\0")
        self._sent_bytes += len(sound)
        return sound

    def mark(self, name: str) -> str:
        """Return the message for a mark."""
        return json_text({"type": "mark", "data": {"name": name}})

    def clear(self) -> str:
        """Return the message that discards what was not played."""
        return json_text({"type": "killAudio"})

    def hang_up(self) -> str:
        """Return the message that ends the verb, and the call if no other verb follows."""
        return json_text({"type": "disconnect"})


JAMBONZ = TelephoneSystem(
    "jambonz",
    Jambonz,
    begins=lambda first: "event" not in first.body and "callSid" in first.body and "sampleRate" in first.body,
    subprotocols=("audio.jambonz.org", "audio.drachtio.org"),
    known_by_subprotocol=True,
)
