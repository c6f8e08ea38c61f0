"""A conversation without sound or models: a scripted ear, and an engine that answers when the test asks it to.

The engine tracks which requests run, their input and their output. Like the real one, it sends nothing for a paused,
cancelled or unknown request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    Finished,
    FromEngine,
    Pause,
    Pieces,
    Probability,
    RequestStats,
    Resume,
    Samples,
    SpokenWord,
    Submit,
    Text,
    ToolCall,
    Words,
)
from voxlane.server.conversation.effects import Send, SendToEngine
from voxlane.server.conversation.hearing.ear import Confirmed, Dropped, Onset, Silent, Voiced
from voxlane.server.conversation.server_events import Duck, Interrupted, Speech

FRAME = 320  # samples of a frame of the ear
SPEAK_RATE = 1000
SAMPLES_PER_CHAR = 50
STATS = RequestStats(0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)


@cache
def sound(kind: str, frames: int) -> bytes:
    """Return frames of voice ("v"), noise that sounds like a voice at first ("n"), or silence ("s")."""
    return bytes([ord(kind), 0] * FRAME) * frames


COVERED_S = 1e6
"""The scripted recogniser's words are always those of all the sound."""


class ScriptedEar:
    """Hears what the bytes say: an onset after two frames, confirmed after four."""

    def __init__(self) -> None:
        self.guarded = False
        self.faint = False
        self.may_speak = False  # the last sound of a pause may be a voice
        self._sound = bytearray()
        self._frames = 0
        self._run = 0  # frames of voice or noise since the onset
        self._state = "quiet"
        self._onset = 0
        self._voiced = 0
        self._last = 0  # sample at which the voice stopped
        self._loud = 0  # sample at which the last voice or noise ended
        self._strong = 0  # frames of voice or noise since the onset
        self.excess_db = 0.0

    @property
    def heard(self) -> int:
        return len(self._sound) // 2

    @property
    def voiced_for(self) -> int:
        return self._voiced * FRAME if self._state in ("voiced", "paused") else 0

    @property
    def p_finished(self) -> float | None:
        return 0.5 if self._state == "paused" else None

    @property
    def faded_for(self) -> int:
        return self._frames * FRAME - self._loud

    @property
    def strong_for(self) -> int:
        return self._strong * FRAME

    def silence(self, samples: int) -> int:
        return samples - self._last if self._state == "paused" else 0

    def since(self, sample: int) -> bytes:
        return bytes(self._sound[sample * 2 :])

    def rest(self) -> None:
        self._state, self._run, self._voiced = "quiet", 0, 0

    def feed(self, pcm: bytes) -> list:
        self._sound += pcm
        events: list = []
        while (self._frames + 1) * FRAME <= self.heard:
            kind = chr(self._sound[self._frames * FRAME * 2])
            self._frames += 1
            found = self._frame(kind, self._frames * FRAME)
            if kind != "s":
                self._loud = self._frames * FRAME
                self._strong = 2 if any(isinstance(event, Onset) for event in found) else self._strong + 1
            events += found
        return events

    def _frame(self, kind: str, at: int) -> list:
        if self._state in ("quiet", "suspected"):
            if kind == "s":
                suspected, self._state, self._run = self._state == "suspected", "quiet", 0
                return [Dropped(self._onset, at, faint=self.faint)] if suspected else []
            self._run += 1
            if self._run == 2:
                self._state, self._onset = "suspected", at - 2 * FRAME
                return [Onset(self._onset, at)]
            if self._run >= 4:
                if kind == "n":
                    self.rest()
                    return [Dropped(self._onset, at)]
                self._state, self._voiced = "voiced", self._run
                return [Confirmed(self._onset, at)]
            return []
        if kind == "v":
            self._voiced += 1
            paused, self._state = self._state == "paused", "voiced"
            return [Voiced(at - FRAME, at)] if paused else []
        if self._state == "voiced":
            self._state, self._last = "paused", at - FRAME
            return [Silent(self._last, at)]
        return []


@dataclass
class _Work:
    """One request and its remaining output."""

    submit: Submit
    paused: bool = False
    ended: bool = False
    audio: int = 0
    sound: bytes = b""
    told: int = 0
    queue: deque[FromEngine] = field(default_factory=deque)
    clauses: deque[tuple[int, str]] = field(default_factory=deque)
    chars: int = 0
    spoken: int = 0


class ScriptedEngine:
    """Answers commands one message at a time, on demand."""

    def __init__(self, answer: str = "Well, that is easy. It was a sunny day, and we went home.") -> None:
        self.answer = answer
        self.unsaid = ""  # what a speech-to-speech model writes after it, and has no sound for
        self.first_answers: deque[str] = deque()  # these come before it
        self.transcripts = deque(["tell me a story"])
        self.calls: deque[tuple[str, str]] = deque()
        self.work: dict[str, _Work] = {}
        self.paused_steps = 0

    def receive(self, message) -> None:
        match message:
            case Submit():
                assert message.request_id not in self.work, "an id is used twice"
                self.work[message.request_id] = work = _Work(message)
                name, epoch = message.request_id, message.epoch
                if message.task == "chat":
                    words = (self.first_answers.popleft() if self.first_answers else self.answer).split(" ")
                    work.queue.extend(Text(name, epoch, word + " ") for word in words)
                    if self.calls:
                        tool, arguments = self.calls.popleft()
                        work.queue.append(ToolCall(name, epoch, f"call-{name}", tool, arguments))
                    work.queue.append(Finished(name, epoch, "eos", STATS))
                elif message.task == "probe":
                    work.queue.extend([Probability(name, epoch, 0.9), Finished(name, epoch, "length", STATS)])
            case Append(name):
                if work := self.work.get(name):
                    work.audio += len(message.audio) // 2
                    work.sound += message.audio
                    if message.text:
                        work.clauses.append((work.chars, message.text))
                        work.chars += len(message.text)
            case EndInput(name):
                if work := self.work.get(name):
                    work.ended = True
                    if work.submit.task == "converse":
                        work.queue.extend(self._converse(work.submit))
            case Cancel(name):
                self.work.pop(name, None)
            case Pause(names):
                for name in self.work.keys() & set(names):
                    self.work[name].paused = True
            case Resume(name):
                if work := self.work.get(name):
                    work.paused = False
            case _:
                raise AssertionError(f"a session sent {message}")

    def ready(self) -> list[str]:
        """Return the requests that could send a message now."""
        return sorted(name for name, work in self.work.items() if not work.paused and self._has_more(work))

    def bring(self, name: str) -> FromEngine:
        """Return the next message of a request."""
        work = self.work[name]
        if work.submit.task == "asr":
            return self._hear(name, work)
        if work.submit.task == "tts":
            return self._say(name, work)
        message = work.queue.popleft()
        if isinstance(message, Finished):
            del self.work[name]
        return message

    def _has_more(self, work: _Work) -> bool:
        if work.submit.task == "asr":
            return work.ended or (work.audio > 8000 and not work.told)
        return bool(work.clauses) or work.ended if work.submit.task == "tts" else bool(work.queue)

    def _converse(self, submit: Submit) -> Iterator[FromEngine]:
        """Yield an answer word by word: a token and a frame of sound for each character."""
        name, epoch, at = submit.request_id, submit.epoch, 0
        for word in (f"{word} " for word in self.answer.split(" ")):
            yield Text(name, epoch, word)
            sound, offset = SAMPLES_PER_CHAR * len(word), SAMPLES_PER_CHAR * at
            spoken = SpokenWord(at, at + len(word) - 1, offset, offset + sound)
            yield Samples(name, epoch, offset, bytes(2 * sound), (spoken,))
            yield Pieces(name, epoch, (*((ord(letter),) for letter in word), *((ord(letter), 1) for letter in word)))
            at += len(word)
        if self.unsaid:
            yield Text(name, epoch, self.unsaid)
        yield Finished(name, epoch, "length" if self.unsaid else "eos", STATS)

    def _hear(self, name: str, work: _Work) -> FromEngine:
        transcript = self.transcripts[0]
        if not work.told:
            work.told = 1
            return Words(name, 0, "", transcript, 0.0, covered_s=COVERED_S)
        if work.told == 1:
            work.told = 2
            return Words(name, 0, transcript, "", 0.0, covered_s=COVERED_S)
        del self.work[name]
        return Finished(name, 0, "eos", STATS)

    def _say(self, name: str, work: _Work) -> FromEngine:
        if not work.clauses:
            del self.work[name]
            return Finished(name, work.submit.epoch, "eos", STATS)
        start, clause = work.clauses.popleft()
        words, place = [], 0
        for word in clause.split(" "):
            if word:
                begin = work.spoken + place * SAMPLES_PER_CHAR
                end = begin + len(word) * SAMPLES_PER_CHAR
                words.append(SpokenWord(start + place, start + place + len(word), begin, end))
            place += len(word) + 1
        samples = len(clause) * SAMPLES_PER_CHAR
        message = Samples(name, work.submit.epoch, work.spoken, bytes(2 * samples), tuple(words))
        work.spoken += samples
        return message


class Client:
    """Keeps its events, and fails on an event that no client may be sent."""

    def __init__(self) -> None:
        self.events: list = []
        self.dead: set[int] = set()
        self.samples: dict[int, int] = {}
        self.held: int | None = None
        self.ducked: int | None = None

    def apply(self, effects: list, engine: ScriptedEngine) -> list:
        """Apply effects to the client or the engine; return the client's events."""
        events = []
        for effect in effects:
            if isinstance(effect, SendToEngine):
                engine.receive(effect.message)
                continue
            assert isinstance(effect, Send)
            self._check(effect.event)
            events.append(effect.event)
        self.events += events
        return events

    def _check(self, event) -> None:
        epoch = getattr(event, "epoch", None)
        kind = type(event).__name__
        if epoch is not None and kind not in ("Latency", "BargeIn"):
            assert epoch not in self.dead, f"{kind} of an epoch that was interrupted"
        match event:
            case Speech(epoch, offset, pcm):
                assert self.held != epoch, "speech while held"
                assert offset == self.samples.get(epoch, 0), "a gap or a repeat"
                self.samples[epoch] = offset + len(pcm) // 2
            case Interrupted(epoch):
                self.dead.add(epoch)
                self.held = None if self.held == epoch else self.held
                self.ducked = None if self.ducked == epoch else self.ducked
            case Duck(epoch, gain):
                assert 0.0 < gain < 1.0
                assert epoch in self.samples, "a reply is lowered that is not heard"
                assert epoch not in (self.held, self.ducked), "lowered twice, or while held"
                self.ducked = epoch
            case _ if kind == "Hold":
                assert self.held != epoch, "held twice"
                self.held = epoch
                self.ducked = None if self.ducked == epoch else self.ducked
            case _ if kind == "Release":
                assert epoch in (self.held, self.ducked), "released, but neither held nor lowered"
                self.held = self.ducked = None
