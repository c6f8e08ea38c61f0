"""The states of a call and what each decides: a call rings until its line says which call it is, then it talks. Pure.

Events of the line, of the conversation and of the clock go in, with the time; effects come out, and call.py carries
them out. The player of the line and the caller's microphone are inside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from voxlane.server.config import PhoneConfig
from voxlane.server.conversation.client_events import Audio, Played, Say, Stop, TextTurn, ToolResult
from voxlane.server.conversation.server_events import (
    Duck,
    FloorState,
    Hold,
    Interrupted,
    Release,
    Speech,
    SpeechDone,
    ToolCalled,
    UserTurn,
)
from voxlane.server.conversation.values import StateName
from voxlane.server.phone.call_tools import (
    ENDING,
    CallTools,
    CollectKeys,
    CustomerTool,
    HangUp,
    SendKeys,
    TransferTo,
    WrongCall,
)
from voxlane.server.phone.departure import Departure, Reason
from voxlane.server.phone.keypad import Keypad, KeyRequest
from voxlane.server.phone.line_microphone import LineMicrophone
from voxlane.server.phone.line_player import TONES, LinePlayer
from voxlane.server.phone.patience import Patience
from voxlane.server.phone.tones import key_tones
from voxlane.server.protocols.dialect import GoAway
from voxlane.server.protocols.phone.line_events import (
    BufferFull,
    BufferReady,
    CallEnded,
    CallStarted,
    KeyPressed,
    LineCodec,
    LineEvent,
    MarkReturned,
    Media,
    Message,
    MustSend,
)

REPORT_S = 0.1
"""How often the conversation is told what the caller has heard."""

PROBE_S = 10.0
"""How often the delay of the line is measured while nothing plays."""

FIRST_PROBES, FIRST_PROBE_S = 4, 0.007
"""The first measurements, and the time between two: a line that works in ticks of 20 ms returns a mark at the next one,
so the shortest of several round trips is the true one."""

KEYS_S = 15.0
"""How long a tool waits for the first key where phone.silence_s is 0."""

Recogniser = Callable[[Sequence[Message]], LineCodec | None]
"""Returns the codec for the first messages of a call, None if it needs more of them."""


class Due(Enum):
    """What the clock asks of a call, again and again in this order."""

    SOUND = auto()  # send what is due
    WAITS = auto()  # report what was heard; end the waits that are over
    END = auto()  # end the call if it is over


@dataclass(frozen=True, slots=True)
class FloorFacts:
    """What the conversation is doing at the moment of an event."""

    state: StateName
    open_reply: int = 0  # the reply whose sound is not complete; 0: none


@dataclass(frozen=True, slots=True)
class ModelEnding:
    """Whether the model ends the call after its reply. Results of tools are not answered then."""

    ends: bool
    transfer_to: str = ""  # the number to connect the caller with when the call has ended; "": none


CallEvent = (
    LineEvent | Speech | SpeechDone | Hold | Release | Duck | Interrupted | FloorState | UserTurn | ToolCalled | GoAway
    | Due
)  # fmt: skip
Effect = Message | Audio | Played | Say | Stop | TextTurn | ToolResult | ModelEnding | ToolCalled
"""A message for the line, an event for the conversation, an ending, or a call of a tool for the customer's server."""


@dataclass(frozen=True, slots=True)
class BegunCall:
    """The line has said which call it is."""

    codec: LineCodec
    start: CallStarted
    rest: Sequence[LineEvent]  # what came behind it


class RingingCall:
    """A call before its line has said which call it is."""

    def __init__(self, recognise: Recogniser) -> None:
        self._recognise = recognise
        self._first: list[Message] = []
        self._codec: LineCodec | None = None

    @property
    def system(self) -> str:
        """The name of the telephone system, as far as it is known."""
        return "unknown" if self._codec is None else self._codec.traits.name

    def read(self, message: Message) -> Iterator[Message | BegunCall | CallEnded]:
        """Yield what the line must be sent; the call's beginning or its end is the last."""
        messages = [message]
        if self._codec is None:
            self._first.append(message)
            messages, self._codec = self._first, self._recognise(self._first)
        if self._codec is None:
            return
        events = [event for one in messages for event in self._codec.read(one)]
        for place, event in enumerate(events):
            match event:
                case MustSend(answer):
                    yield answer
                case CallStarted():
                    yield BegunCall(self._codec, event, events[place + 1 :])
                    return
                case CallEnded():
                    yield event
                    return
                case _:
                    pass


class TalkingCall:
    """A call that has begun, until its end."""

    def __init__(
        self, codec: LineCodec, start: CallStarted, config: PhoneConfig, tools: CallTools, began_s: float
    ) -> None:
        """Begin a call whose line was connected at `began_s`."""
        self.player = LinePlayer(codec, start.output)
        self.microphone = LineMicrophone(start.input)
        self.departure = Departure()
        self.over = False
        self._rate = start.output.rate
        self._config = config
        self._tools = tools
        self._keypad = Keypad(config.digits_s, config.digits_end)
        self._patience = Patience(config.silence_s, config.reprompts)
        self._key_request: KeyRequest | None = None
        self._reported = (0, 0)  # epoch and sample of the last report
        self._tones: dict[int, bytes] = {}  # the tones that follow a reply, by its epoch
        self._spoken_epoch = 0  # the last reply that had sound
        self._ends_s = began_s + config.call_s
        self._reported_s = self._probed_s = began_s
        self._probes = 0
        self._effects: list[Effect] = []

    def feed(self, event: CallEvent, now: float, floor: FloorFacts) -> list[Effect]:
        """Process an event; return what follows from it. Nothing does after the end."""
        if not self.over:
            self._act(event, now, floor)
        effects, self._effects = self._effects, []
        return effects

    def due_at(self, now: float) -> float:
        """Return when the clock has something to ask if no event comes before."""
        playing = not self.player.finished(now)
        times = [
            self.player.next_at(now),
            self.microphone.quiet_at(),
            self._keypad.due_at(),
            self._probed_s if self._probes < FIRST_PROBES and not playing else None,
            self._patience.due_at() if self.departure.reason is None else now + REPORT_S,
            self._key_request.due_s if self._key_request is not None else None,
            max(self._ends_s, now + REPORT_S),
            now + REPORT_S if playing else None,
        ]
        return min(at for at in times if at is not None)

    def _act(self, event: CallEvent, now: float, floor: FloorFacts) -> None:
        match event:
            case Media():
                self._effects += map(Audio, self.microphone.push(event, now))
            case KeyPressed(key):
                self._press(key, now, floor)
            case MarkReturned(name, played):
                self.player.marked(name, now, played=played)
            case BufferFull() | BufferReady():
                self.player.set_full(isinstance(event, BufferFull))
            case MustSend(message):
                self._effects.append(message)
            case CallEnded():
                self.over = True
            case Speech(epoch, offset, pcm):
                self.player.add(epoch, offset, pcm)
                self._spoken_epoch = epoch
            case SpeechDone(epoch):
                self.player.finish(epoch)
                self._add_tones(epoch)
            case Hold():
                self._effects += self.player.hold(now)
                self._report(now)
            case Release():
                self._effects += self.player.release(now)
            case Duck(_, gain):
                self._effects += self.player.duck(gain, now)
            case Interrupted(epoch):
                self._stay()
                if self._key_request is not None:
                    self._key_request.cut = True
                self._effects += self.player.drop(epoch, now)
                self._add_tones(epoch)
            case FloorState("listening"):
                self._patience.listening(now)
            case FloorState():
                self._patience.busy()
            case UserTurn():
                self._patience.spoke()
                self._stay()
                self._end_request("", "The caller has spoken instead.")
            case GoAway(seconds):
                self.departure.begin("shutdown", now, within_s=seconds)
            case ToolCalled():
                self._run_tool(event, now, floor)
            case Due.SOUND:
                self._effects += self.player.due(now)
                self._probe(now)
            case Due.WAITS:
                self._end_waits(now, floor)
            case Due.END:
                self._end_if_over(now, floor)
            case _:
                pass

    # ---- keys

    def _press(self, key: str, now: float, floor: FloorFacts) -> None:
        """Note a key: it interrupts the reply, as a word does."""
        self._patience.spoke()
        if self._key_request is not None:
            self._key_request.due_s = None
        if self._key_request is None or floor.state == "speaking":
            self._effects.append(Stop())
        self._stay()
        self._use_keys(self._keypad.press(key, now))

    def _use_keys(self, keys: str) -> None:
        """Give a whole number to the tool that waits for it, or to the conversation as a turn."""
        if not keys:
            return
        request = self._end_request(keys)
        if request is None or request.cut:  # the result of a reply that was interrupted is remembered, not answered
            self._effects.append(TextTurn(f"I pressed {' '.join(keys)} on my telephone."))

    def _end_request(self, keys: str, reason: str = "") -> KeyRequest | None:
        """Give the tool that waits for keys its result; return its request, None if there is none."""
        request, self._key_request = self._key_request, None
        if request is not None:
            found = {"digits": keys} | ({"reason": reason} if reason else {})
            self._effects.append(ToolResult(request.call_id, json.dumps(found)))
        return request

    def _wait_for_keys(self, request: KeyRequest, now: float, floor: FloorFacts) -> None:
        """End the wait of a tool for keys that do not come."""
        if self._keypad.due_at() is not None or floor.state == "speaking":
            request.due_s = None
        elif request.due_s is None:
            request.due_s = now + (self._config.silence_s or KEYS_S)
        elif now >= request.due_s:
            self._end_request("", "The caller has pressed no key.")

    # ---- time

    def _report(self, now: float) -> None:
        """Tell the conversation what the caller has heard."""
        self._reported_s = now
        for position in self.player.heard(now):
            known = position.epoch, position.samples
            # A position that stands still is told, too, while the line plays something else.
            if known > self._reported or (known == self._reported and not self.player.finished(now)):
                self._reported = known
                self._effects.append(Played(position.epoch, position.samples))

    def _probe(self, now: float) -> None:
        """Measure the delay of the line by a mark: before the first sound, and now and then."""
        if now >= self._probed_s:
            self._probes += 1
            self._probed_s = now + (PROBE_S if self._probes >= FIRST_PROBES else FIRST_PROBE_S)
            self._effects += self.player.probe(now)

    def _end_waits(self, now: float, floor: FloorFacts) -> None:
        """Make up the silence of a line that sends none, end a number, ask a silent caller, end a long call."""
        if now >= self._reported_s + REPORT_S or self.player.finished(now):
            self._report(now)
        self._effects += map(Audio, iter(lambda: self.microphone.quiet(now), b""))
        self._use_keys(self._keypad.wait(now))
        if self._key_request is not None:
            self._wait_for_keys(self._key_request, now, floor)
        if now >= self._ends_s and not self.departure.final:
            self._effects.append(Stop())
            self.departure.begin("time_limit", now)
        if self.departure.reason is None:
            match self._patience.advise(now):
                case "ask":
                    self._effects.append(Say(self._config.reprompt))
                case "leave":
                    self.departure.begin("silence", now)
                case _:
                    pass

    def _end_if_over(self, now: float, floor: FloorFacts) -> None:
        quiet = floor.state == "listening" and self.player.finished(now)
        wordless = self.departure.epoch > self._spoken_epoch
        match self.departure.step(now, quiet=quiet, wordless=wordless):
            case "say_good_bye" if self._config.good_bye:
                self._effects.append(Say(self._config.good_bye))
            case "wait":
                pass
            case _:
                self.over = True

    # ---- tools

    def _run_tool(self, called: ToolCalled, now: float, floor: FloorFacts) -> None:
        match self._tools.action(called):
            case HangUp():
                self._end_by_tool(called, "hang_up", "", now)
            case TransferTo(_, number):
                self._end_by_tool(called, "transfer", number, now)
            case SendKeys(keys):
                self._send_keys(called, keys, floor)
            case CollectKeys() if self._key_request is not None:
                self._result(called, {"error": "Keys are already being waited for."})
            case CollectKeys():
                self._key_request = KeyRequest(called.call_id)
            case CustomerTool():
                self._effects.append(called)
            case WrongCall(reason):
                self._result(called, {"error": reason})

    def _send_keys(self, called: ToolCalled, keys: str, floor: FloorFacts) -> None:
        """Play the tones of keys: after the reply that has asked for them, if its sound is not complete."""
        self._tones[called.epoch] = self._tones.get(called.epoch, b"") + key_tones(keys, self._rate)
        if floor.open_reply != called.epoch:
            self._add_tones(called.epoch)
        self._result(called, {"sent": True})

    def _add_tones(self, epoch: int) -> None:
        if tones := self._tones.pop(epoch, b""):
            self.player.add(TONES, 0, tones)

    def _end_by_tool(self, called: ToolCalled, reason: Reason, number: str, now: float) -> None:
        """End the call after the reply that has asked for it; the tool's result is not answered."""
        self._effects += ModelEnding(True, number), ToolResult(called.call_id, ENDING)
        self.departure.begin(reason, now, epoch=called.epoch)

    def _stay(self) -> None:
        """Go on with a call that was to end: the caller speaks, or presses a key."""
        if self.departure.stay():
            self._effects.append(ModelEnding(False))

    def _result(self, called: ToolCalled, output: dict[str, object]) -> None:
        self._effects.append(ToolResult(called.call_id, json.dumps(output)))
