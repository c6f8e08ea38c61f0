"""People who talk with a speech-to-speech model in real time, and the engine's loop that serves them.

A person speaks for a few seconds, listens to the answer as it is played, sometimes interrupts it, and goes on; the
conversation so far goes with every turn. Engine and people share one thread: the people are asked where the engine
would read its socket. All times count from when a thing was due, not from when the thread came to it.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from support.people import Listener

from voxlane.engine.api import (
    LISTEN_RATE,
    Append,
    Cancel,
    ChatMessage,
    EndInput,
    Finished,
    FromEngine,
    Pause,
    Pieces,
    Priority,
    Refused,
    Samples,
    SamplingParams,
    StepStats,
    Submit,
    ToEngine,
    Tool,
    heard_pieces,
)
from voxlane.engine.loop.core import Core

PIECE_S, THINK_S, VOICE_S = 0.06, (0.3, 1.0), (1.5, 4.0)
CUTS_IN = 0.3  # the share of answers that are interrupted
VERDICT_S = 0.3  # after this long an interruption is one, and the answer is given up
ANSWER_S = (3.0, 6.0)  # of an answer: random weights end none, so the person does
MOST_MESSAGES = 24  # then the conversation begins anew
POLL_S = 0.0005

State = Literal["quiet", "speaking", "listening"]


@dataclass(slots=True)
class TalkDiary:
    """The events of one conversation; times are seconds."""

    first_packets: list[tuple[float, float]] = field(default_factory=list)  # (end of the turn, until the first sound)
    underruns: list[tuple[float, float]] = field(default_factory=list)  # (when, silence)
    interrupts: list[tuple[float, float]] = field(default_factory=list)  # (when, until it was in force)
    faults: list[tuple[float, str]] = field(default_factory=list)


@dataclass(slots=True)
class Heard(Listener):
    """An answer on its way to a person."""

    name: str
    ended_s: float  # when the person's turn ended
    said: bytes
    pieces: list[tuple[int, ...]] = field(default_factory=list)
    wanted: int = 0  # samples: then the answer is over
    samples: int = 0
    first_s: float = 0.0
    over: bool = False
    ended: bool = False  # the engine knows
    cut_s: float = 0.0  # when the person interrupts; 0: not at all
    held_s: float = 0.0  # since when it is on hold
    marked: bool = False  # the hold is in force


class Talker:
    """One person."""

    def __init__(self, name: str, seed: int, begins_s: float, frame_samples: int, rate: int) -> None:
        self.diary = TalkDiary()
        self._name = name
        self._random = random.Random(seed)
        self._voice = np.random.default_rng(seed).normal(0, 2500, int(VOICE_S[1] * LISTEN_RATE) + 1).astype("<i2")
        self._frame, self._rate = frame_samples, rate
        self._history: list[ChatMessage] = []
        self._turn = 0
        self._state: State = "quiet"
        self._began_s = begins_s
        self._voice_s = 0.0
        self._sent = 0  # samples of what is being said
        self._heard: Heard | None = None
        self._given_up: list[Heard] = []  # interrupted, and not cancelled yet
        self.due_s = begins_s

    @property
    def _id(self) -> str:
        return f"{self._name}/{self._turn}"

    @property
    def unanswered_s(self) -> float | None:
        """When the turn ended whose answer has not begun to sound, if there is one."""
        return self._heard.ended_s if self._heard is not None and not self._heard.first_s else None

    def act(self, now: float) -> list[ToEngine]:
        """Do what is due; set when to be asked again."""
        commands: list[ToEngine] = []
        for heard in [one for one in self._given_up if now >= one.held_s + VERDICT_S]:
            commands.append(Cancel(heard.name))
            self._given_up.remove(heard)
        if self._state == "quiet" and now >= self._began_s:
            commands += self._begin(self._began_s, Priority.HIGH)
        elif self._state == "speaking":
            commands += self._speak(now)
        elif self._state == "listening":
            commands += self._listen(now)
        self.due_s = max(self._next_s(now), now + POLL_S)
        return commands

    def _next_s(self, now: float) -> float:
        """Return when something is due next, unless a message comes before."""
        verdicts = [one.held_s + VERDICT_S for one in self._given_up]
        if self._state == "quiet":
            due_s = self._began_s
        elif self._state == "speaking":
            due_s = min(self._began_s + self._voice_s, self._began_s + self._sent / LISTEN_RATE + PIECE_S)
        else:
            heard = self._heard
            assert heard is not None, "an answer is awaited"
            soon_s = now + PIECE_S / 4  # what comes meanwhile may change when the person acts
            due_s = min(heard.cut_s or (heard.heard_until_s if heard.over else soon_s), soon_s)
        return min([due_s, *verdicts])

    def _begin(self, now: float, priority: Priority) -> list[ToEngine]:
        self._turn += 1
        self._state, self._began_s, self._sent = "speaking", now, 0
        self._voice_s = self._random.uniform(*VOICE_S)
        if len(self._history) >= MOST_MESSAGES:
            self._history.clear()
        sampling = SamplingParams(temperature=1.0, top_k=50, max_tokens=4096, seed=self._random.getrandbits(32))
        told = tuple(self._history)
        submit = Submit(self._id, "converse", told, sampling=sampling, priority=priority, session=self._name)
        return [submit, *self._speak(now)]

    def _speak(self, now: float) -> list[ToEngine]:
        """Say what was said since the last call, in whole pieces; the turn ends with the voice."""
        ended = now - self._began_s >= self._voice_s
        spoken_s = self._voice_s if ended else int((now - self._began_s) / PIECE_S) * PIECE_S
        upto, commands = int(spoken_s * LISTEN_RATE), list[ToEngine]()
        if upto > self._sent:
            commands.append(Append(self._id, audio=self._voice[self._sent : upto].tobytes()))
            self._sent = upto
        if ended:
            commands.append(EndInput(self._id))
            said = self._voice[:upto].tobytes()
            wanted = int(self._random.uniform(*ANSWER_S) * self._rate)
            self._heard = Heard(self._id, self._began_s + self._voice_s, said, wanted=wanted)
            self._state = "listening"
        return commands

    def _listen(self, now: float) -> list[ToEngine]:
        heard = self._heard
        assert heard is not None, "an answer is awaited"
        if heard.cut_s and now >= heard.cut_s:
            # Commands are carried out in order: the refusal of the second shows that the first is in force.
            mark = Submit(f"{heard.name}/mark", "converse", tools=(Tool("none", "", "{}"),), session=self._name)
            heard.held_s, cut_s = heard.cut_s, heard.cut_s
            self.diary.interrupts.append((cut_s, float("inf")))
            self._given_up.append(heard)
            self._remember(heard, cut_s)
            return [Pause((heard.name,)), mark, *self._begin(cut_s, Priority.CRITICAL)]
        commands: list[ToEngine] = []
        if heard.over and not heard.ended:
            heard.ended = True
            commands.append(Cancel(heard.name))
        if heard.over and now >= heard.heard_until_s:
            self._remember(heard, now)
            self._state, self._began_s = "quiet", now + self._random.uniform(*THINK_S)
        return commands

    def _remember(self, heard: Heard, now: float) -> None:
        left = max(0, int((heard.heard_until_s - now) * self._rate))
        pieces = heard_pieces(heard.pieces, max(0, heard.samples - left), self._frame)
        self._history.append(ChatMessage("user", "", sound=heard.said))
        if pieces:
            self._history.append(ChatMessage("assistant", "", pieces=pieces))
        self._heard = None

    def take(self, message: FromEngine, now: float) -> None:
        """Hear a message about one of the person's requests."""
        name = getattr(message, "request_id", "")
        cut = next((one for one in self._given_up if name in (one.name, f"{one.name}/mark")), None)
        if cut is not None:
            if isinstance(message, Refused) or (isinstance(message, Samples) and cut.marked):
                self.diary.interrupts[-1] = (cut.held_s, now - cut.held_s)
                cut.marked = True
            return
        heard = self._heard
        match message:
            case Refused(detail=detail):
                self.diary.faults.append((now, detail))
            case Samples(pcm=pcm) if heard is not None and name == heard.name and pcm:
                self._play(heard, len(pcm) // 2, now)
            case Pieces(pieces=pieces) if heard is not None and name == heard.name:
                heard.pieces += pieces
            case Finished(reason=reason) if heard is not None and name == heard.name:
                heard.over = heard.ended = True
                if reason not in ("eos", "length", "cancelled"):
                    self.diary.faults.append((now, f"an answer ended with {reason}"))
            case _:
                pass

    def _play(self, heard: Heard, samples: int, now: float) -> None:
        left_s = heard.play(now, samples / self._rate)
        if not heard.first_s:
            heard.first_s = now
            self.diary.first_packets.append((heard.ended_s, now - heard.ended_s))
            if self._random.random() < CUTS_IN:
                heard.cut_s = now + self._random.uniform(0.4, 2.5)
        elif left_s < 0:
            self.diary.underruns.append((now, -left_s))
        heard.samples += samples
        heard.over = heard.over or heard.samples >= heard.wanted


class TalkLoop:
    """The engine's loop with people in the place of its socket."""

    def __init__(self, core: Core, *, frame_samples: int, rate: int) -> None:
        self.talkers: list[Talker] = []
        self.stats: list[StepStats] = []
        self._core = core
        self._sizes = frame_samples, rate
        self._due: list[tuple[float, int]] = []  # a heap of when to ask which person
        self._random = random.Random(11)

    def join(self, count: int, within_s: float) -> None:
        """Let people join until there are so many, at random times."""
        now = time.monotonic()
        for number in range(len(self.talkers), count):
            begins_s = now + self._random.uniform(0.0, within_s)
            self.talkers.append(Talker(str(number), number, begins_s, *self._sizes))
            heapq.heappush(self._due, (begins_s, number))

    def live(self, seconds: float) -> None:
        """Serve the people for some seconds."""
        core, end = self._core, time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            if core.busy:
                self._take(core.step(self._receive, self._take))
            elif commands := self._receive():
                self._take(core.handle(commands))
            else:
                self._take(core.idle(self._waiting))
                time.sleep(max(0.0, min(POLL_S, self._due[0][0] - now)) if self._due else POLL_S)
            self._take(core.stats_due())

    def _waiting(self) -> bool:
        return bool(self._due) and self._due[0][0] <= time.monotonic()

    def _receive(self) -> Sequence[ToEngine]:
        now, commands = time.monotonic(), list[ToEngine]()
        while self._due and self._due[0][0] <= now:
            _, number = heapq.heappop(self._due)
            talker = self.talkers[number]
            commands += talker.act(now)
            heapq.heappush(self._due, (talker.due_s, number))
        return commands

    def _take(self, messages: Iterable[FromEngine]) -> None:
        now = time.monotonic()
        for message in messages:
            if isinstance(message, StepStats):
                self.stats.append(message)
            elif name := getattr(message, "request_id", ""):
                self.talkers[int(name.partition("/")[0])].take(message, now)
