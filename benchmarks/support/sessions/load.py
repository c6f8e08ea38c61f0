"""A load that keeps an engine full: answers being written, long prompts arriving, people speaking, voices speaking.

Answers and prompts are a closed loop: each that ends is replaced, so that there are always more than the batch holds.
Speech runs in real time: a recogniser gets sound as from a microphone, and a voice gets its next clause shortly before
its listener has heard the ones before.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from support.people import FRAME_S, Listener
from support.sessions.engine import Engine, Sound, Told

from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    Finished,
    Priority,
    Refused,
    Samples,
    SamplingParams,
    Submit,
    Text,
)

TURN_S = 6.0
"""How long a person of the load speaks before the next turn."""

AHEAD_S = 1.5
"""How far a voice is ahead of its listener: as much as the server sends in advance."""

NEWS = (
    "The morning train is ten minutes late, so there is time for another cup of coffee.",
    "Yesterday the museum opened its new garden, and the first visitors came before breakfast.",
    "If the weather stays dry, the market will be held on the square behind the station.",
    "Most of the old bridges were built of stone, because timber did not last in the floods.",
    "Please remember to bring the blue folder, since the office closes early on Fridays.",
)
WORDS = " ".join(NEWS).split()


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of the load; a word is about a token."""

    answers: int  # open at any time
    streams: int  # of people who speak, and as many voices
    prompt_words: tuple[int, int]
    long_words: int  # in every sixteenth prompt
    answer_tokens: tuple[int, int]


FULL = Sizes(answers=288, streams=16, prompt_words=(40, 160), long_words=1500, answer_tokens=(128, 384))
SMALL = Sizes(answers=10, streams=1, prompt_words=(10, 40), long_words=150, answer_tokens=(16, 48))


@dataclass(slots=True)
class Answer:
    """One of the load's answers."""

    name: str  # also of its session
    prompt: str
    tokens: int
    text: str = ""
    begun: bool = False
    done: bool = False
    called: bool = False  # an interruption was sent
    paused: bool = False
    late: int = 0  # tokens that came after the pause, of the running step
    late_s: float = 0.0  # when the last of them came

    def submit(self, name: str = "") -> Submit:
        """Return its request, greedy, so that it can be repeated."""
        sampling = SamplingParams(max_tokens=self.tokens, ignore_eos=True)
        name = name or self.name
        return Submit(f"{name}/answer", "complete", text=self.prompt, sampling=sampling, session=name)


@dataclass(slots=True)
class _Ear:
    name: str
    sound: Sound
    turn: int = 0
    begun_s: float = 0.0
    sent: int = 0  # pieces


@dataclass(slots=True)
class _Mouth(Listener):
    name: str
    clauses: Iterator[str]
    asked: bool = False


@dataclass(slots=True)
class Load:
    """The load of one engine."""

    engine: Engine
    sizes: Sizes
    sound: Sound | None  # None: without speech
    talks: bool
    random: random.Random
    answers: dict[str, Answer] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    _made: int = 0
    _running: bool = False
    _ears: list[_Ear] = field(default_factory=list)
    _mouths: list[_Mouth] = field(default_factory=list)

    def begin(self, now: float) -> None:
        """Submit the whole load."""
        self._running = True
        for _ in range(self.sizes.answers):
            self._ask()
        for number in range(self.sizes.streams):
            if self.sound is not None:
                self._ears.append(_Ear(f"ear{number}", self.sound, begun_s=now + TURN_S * self.random.random()))
                self.engine.receivers[f"ear{number}"] = self._take_other
            if self.talks:
                clauses = itertools.cycle(self.random.sample(NEWS, len(NEWS)))
                self._mouths.append(_Mouth(f"mouth{number}", clauses))
                self.engine.receivers[f"mouth{number}"] = self._take_other
                self.engine.send(Submit(f"mouth{number}/say", "tts", priority=Priority.HIGH))

    def tick(self, now: float) -> None:
        """Send the sound and the clauses that are due."""
        for ear in self._ears:
            self._speak(ear, now)
        for mouth in self._mouths:
            if not mouth.asked and mouth.heard_until_s - now < AHEAD_S:
                mouth.asked = True
                self.engine.send(Append(f"{mouth.name}/say", text=next(mouth.clauses)))

    async def until(self, condition: Callable[[], bool], most_s: float) -> bool:
        """Run the load until a condition holds; return whether it does."""

        def ticked() -> bool:
            self.tick(time.monotonic())
            return condition()

        return await self.engine.until(ticked, most_s)

    def end(self) -> None:
        """Cancel all open requests."""
        self._running = False
        for answer in self.answers.values():
            if not answer.done:
                self.engine.send(Cancel(f"{answer.name}/answer"))
        for ear in self._ears:
            self.engine.send(Cancel(f"{ear.name}/hear{ear.turn}"))
        for mouth in self._mouths:
            self.engine.send(Cancel(f"{mouth.name}/say"))

    @property
    def answering(self) -> list[Answer]:
        """Answers in progress that were not interrupted."""
        return [answer for answer in self.answers.values() if answer.begun and not answer.done and not answer.called]

    def _ask(self) -> None:
        number, sizes = self._made, self.sizes
        self._made += 1
        words = sizes.long_words if number % 16 == 15 else self.random.randint(*sizes.prompt_words)
        prompt = " ".join(self.random.choices(WORDS, k=words))[: self._longest_prompt]
        answer = Answer(f"load{number}", prompt, self.random.randint(*sizes.answer_tokens))
        self.answers[answer.name] = answer
        self.engine.receivers[answer.name] = self._take_answer
        self.engine.send(answer.submit())

    @property
    def _longest_prompt(self) -> int:
        """Return how many characters of prompt fit with the longest answer; a token has at least one character."""
        ready = self.engine.ready
        assert ready is not None
        return min(ready.context_tokens, ready.kv_blocks * ready.block_tokens) - self.sizes.answer_tokens[1] - 8

    def _take_answer(self, message: Told, now: float) -> None:
        match message:
            case Text(name, _, text):
                answer = self.answers[name.partition("/")[0]]
                answer.text += text
                answer.begun = True
                if answer.paused:
                    answer.late, answer.late_s = answer.late + 1, now
            case Finished(name, _, reason):
                self.answers[name.partition("/")[0]].done = reason == "length"
                if self._running:
                    self._ask()
            case Refused(detail=detail):
                self.failures.append(detail)
            case _:
                pass

    def _take_other(self, message: Told, now: float) -> None:
        match message:
            case Samples(name, _, _, pcm):
                mouth = next(one for one in self._mouths if name.startswith(f"{one.name}/"))
                assert self.engine.ready is not None
                mouth.asked = False
                mouth.play(now, len(pcm) / 2 / self.engine.ready.speak_rate)
            case Finished(name, _, reason) if reason == "failed":
                self.failures.append(f"{name} failed")
            case Refused(detail=detail):
                self.failures.append(detail)
            case _:
                pass

    def _speak(self, ear: _Ear, now: float) -> None:
        due = int((now - ear.begun_s) / FRAME_S)
        name = f"{ear.name}/hear{ear.turn}"
        if due > 0 and not ear.sent:
            self.engine.send(Submit(name, "asr", priority=Priority.HIGH))
        while ear.sent < min(due, round(TURN_S / FRAME_S)):
            at = ear.sent * FRAME_S % ear.sound.seconds
            self.engine.send(Append(name, audio=ear.sound.piece(at, at + FRAME_S)))
            ear.sent += 1
        if due > round(TURN_S / FRAME_S):
            self.engine.send(EndInput(name))
            ear.turn, ear.sent, ear.begun_s = ear.turn + 1, 0, now
