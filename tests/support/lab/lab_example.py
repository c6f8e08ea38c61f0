"""Three calls of one scenario, made by hand, whose course is known: a good one, one with stale sound, one false stop.

The person asks for a story (0.5 s), murmurs (5.0 s) and stops the agent (8.0 s). The agent's loudspeaker is the lab's
own; what it is told is written below. The voices are syllables of tones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np

from voxlane_lab.judge import judged_call, judged_scenario
from voxlane_lab.loudspeaker import VirtualLoudspeaker
from voxlane_lab.results import RunResult, ScenarioResult
from voxlane_lab.scenario import Gates
from voxlane_lab.values import (
    TICK_S,
    USER_RATE,
    Arrival,
    Interval,
    Meaning,
    Occurrence,
    Pcm,
    Recording,
    Run,
    StepRecord,
    StepResult,
)

RATE = 24_000
SCENARIO = "mhm, then stop"
LENGTH_S = 16.0
ANSWER_S = 5.0
TURN_S, MURMUR_S, STOP_S = (0.5, 2.2), (5.0, 5.4), (8.0, 9.4)
STORY, ANSWER = "1", "2"

GATES: Gates = {
    "yield_ms": {"p95": 500.0},
    "response_ms": {"p50": 1200.0},
    "false_stop": {"share": 0.1},
    "stale_ms": {"max": 0.0},
    "memory_wrong": {"share": 0.1},
}
Fault = Literal["none", "stale", "false_stop"]
THREE: tuple[Fault, ...] = ("none", "stale", "false_stop")


@cache
def syllables(seconds: float, rate: int, pitch: float, seed: int, level: float = 0.3) -> Pcm:
    """Return a voice of tones: about four syllables a second, with breaths between."""
    chance = np.random.default_rng(seed)
    at = np.arange(round(seconds * rate)) / rate
    # A melody that does not return: equal syllables would look like sound that was played twice.
    notes = np.arange(0, seconds + 1, 0.13)
    melody = np.interp(at, notes, pitch * chance.uniform(0.8, 1.3, len(notes)))
    phase = 2 * np.pi * np.cumsum(melody) / rate
    tone = sum(np.sin(n * phase + n) / n for n in range(1, 9)) + chance.normal(0, 0.15, len(at))
    shape = np.zeros(len(at))
    start = 0.0
    while start < seconds:
        length = float(chance.uniform(0.12, 0.26))
        here = (at >= start) & (at < start + length)
        shape[here] = np.sin(np.pi * (at[here] - start) / length) ** 0.7 * chance.uniform(0.4, 1.0)
        start += length + (float(chance.uniform(0.12, 0.18)) if chance.random() < 0.18 else 0.02)
    sound = tone * shape
    return (sound / max(1.0, float(np.abs(sound).max())) * level * 32767).astype(np.int16)


@dataclass(slots=True)
class Stage:
    """A call in the making: the loudspeaker is told things at their moments, and pulled every 20 ms."""

    speaker: VirtualLoudspeaker = field(default_factory=lambda: VirtualLoudspeaker(RATE))
    arrivals: list[Arrival] = field(default_factory=list)
    occurrences: list[Occurrence] = field(default_factory=list)
    plan: dict[int, list[Callable[[float], None]]] = field(default_factory=dict)

    def at(self, seconds: float, *acts: Callable[[float], None]) -> None:
        """Plan what happens in the tick of a moment."""
        self.plan.setdefault(round(seconds / TICK_S), []).extend(acts)

    def say(self, at_s: float, response: str, pcm: Pcm) -> None:
        """Let the sound of a response come from a moment on, a quarter faster than it is played."""
        piece = round(RATE * 0.2)
        for number, start in enumerate(range(0, len(pcm), piece)):
            self.at(at_s + number * 0.16, self._sound(response, pcm[start : start + piece]))

    def _sound(self, response: str, pcm: Pcm) -> Callable[[float], None]:
        def come(now_s: float) -> None:
            offset = self.speaker.add(response, pcm)
            self.arrivals.append(Arrival(now_s, response, offset, len(pcm)))
            self.occurrences.append(Occurrence(now_s, "got", "audio", f"epoch {response}"))

        return come

    def note(self, side: Literal["sent", "got", "card"], name: str, detail: str = "") -> Callable[[float], None]:
        """Return the act of writing an event down."""
        return lambda now_s: self.occurrences.append(Occurrence(round(now_s, 6), side, name, detail))

    def forget(self, response: str) -> Callable[[float], None]:
        """Return the act of dropping what waits of a response, and what is planned of it."""

        def act(now_s: float) -> None:
            dropped = self.speaker.clear(response)
            self.occurrences.append(Occurrence(now_s, "card", "clear", f"{dropped / RATE * 1000:.0f} ms dropped"))

        return act

    def run(self) -> tuple[Pcm, list[Run], list[int], list[bool]]:
        """Hold the call; return what was played, and the states after each tick."""
        tick = round(RATE * TICK_S)
        played, runs, queued, held = [], [], [], []
        for number in range(round(LENGTH_S / TICK_S)):
            for act in self.plan.get(number, ()):
                act(number * TICK_S)
            pull = self.speaker.pull(tick)
            played.append(pull.pcm)
            runs.extend(Run(number * tick + run.at, run.response, run.offset, run.samples) for run in pull.runs)
            queued.append(pull.queued)
            held.append(pull.held)
        return np.concatenate(played), joined(runs), queued, held


def joined(runs: list[Run]) -> list[Run]:
    """Return runs with those that continue each other made one."""
    done: list[Run] = []
    for run in runs:
        last = done[-1] if done else None
        if last and (last.end, last.response, last.offset + last.samples) == (run.at, run.response, run.offset):
            done[-1] = Run(last.at, last.response, last.offset, last.samples + run.samples)
        else:
            done.append(run)
    return done


def call(fault: Fault = "none", repeat: int = 0) -> Recording:
    """Return a call with one fault, or none."""
    stage = Stage()
    # The first three calls are the same but for their faults; others differ by some ticks.
    slower = (0.0, 0.0) if repeat < 3 else tuple(np.random.default_rng(repeat).integers(0, 9, 2) * TICK_S)
    story, answer = syllables(13.0, RATE, 190, 1), syllables(2.6, RATE, 190, 2)
    stage.at(0.0, stage.note("sent", "start"), stage.note("got", "ready"))
    stage.at(2.36, stage.note("got", "user_words", "Tell me a long story."))
    stage.at(2.7, stage.note("got", "reply", "epoch 1"))
    stage.say(2.8 + slower[1], STORY, story if fault != "false_stop" else story[: round(RATE * 3.2)])
    stage.at(5.14, stage.note("got", "hold", "epoch 1"), lambda _: stage.speaker.hold())
    if fault == "false_stop":
        stage.at(
            5.4, stage.note("got", "interrupted", "epoch 1"), stage.forget(STORY), lambda _: stage.speaker.release()
        )
        return recording(stage, repeat, stop="nothing_to_interrupt")
    stage.at(5.38, stage.note("got", "release", "epoch 1"), lambda _: stage.speaker.release())
    stage.at(8.12, stage.note("card", "lowered", "to -12 dB"), lambda _: stage.speaker.lower(0.25))
    stopped_s = 8.34 + slower[0]
    stage.at(stopped_s, stage.note("got", "interrupted", "epoch 1"), stage.forget(STORY))
    stage.at(stopped_s, lambda _: stage.speaker.release())
    for late in [tick for tick in stage.plan if tick >= round(stopped_s / TICK_S)]:
        stage.plan[late] = [act for act in stage.plan[late] if act.__name__ != "come"]
    if fault == "stale":
        stage.at(9.62, stage._sound(STORY, story[:12_000]), stage.note("got", "audio", "epoch 1"))
    stage.at(9.8, stage.note("got", "user_words", "Stop, that is enough."))
    stage.at(10.04 + slower[1], stage.note("got", "reply", "epoch 2"))
    stage.say(10.16 + slower[1], ANSWER, answer)
    for at_s in np.arange(3.0, 14.0, 0.5):
        stage.at(float(at_s), stage.note("sent", "played"))
    stage.at(13.4, stage.note("got", "reply_end", "epoch 2"))
    return recording(stage, repeat)


def recording(stage: Stage, repeat: int, stop: StepResult = "done") -> Recording:
    """Return the call of a stage."""
    agent, runs, queued, held = stage.run()
    person = np.zeros(round(LENGTH_S * USER_RATE), np.int16)
    steps: list[StepRecord] = []
    said: list[tuple[str, Meaning, tuple[float, float], bool]] = [
        ("1 Tell me a long story.", "turn", TURN_S, False),
        ("2 mhm", "nothing", MURMUR_S, True),
        ("3 Stop, that is enough.", "stop", STOP_S, True),
    ]
    for number, (name, means, (first_s, last_s), over) in enumerate(said):
        if means == "stop" and stop != "done":
            steps.append(StepRecord(number, name, means, stop))
            continue
        first, last = round(first_s * USER_RATE), round(last_s * USER_RATE)
        person[first:last] = syllables(last_s - first_s, USER_RATE, 120, number)
        voiced: tuple[Interval, ...] = ((first, last),)
        steps.append(
            StepRecord(number, name, means, "done", first, voiced, STORY if over else "", over, means != "nothing")
        )
        stage.occurrences.append(Occurrence(first_s, "card", "step", name))
    noise = np.random.default_rng(repeat).normal(0, 60, len(person))
    return Recording(
        scenario=SCENARIO,
        dialect="native",
        repeat=repeat,
        seed=1,
        agent_rate=RATE,
        person=person,
        microphone=(person + noise).astype(np.int16),
        agent=agent,
        runs=runs,
        arrivals=stage.arrivals,
        received={name: np.concatenate(parts) for name, parts in stage.speaker.received.items()},
        queued=queued,
        held=held,
        steps=steps,
        occurrences=sorted(stage.occurrences, key=lambda one: one.at_s),
        texts={STORY: "Once upon a time there was a dragon.", ANSWER: "Of course. What else can I do for you?"},
        history=[("user", "Tell me a long story."), ("assistant", "Once upon a time")],
        late_ms=[0.1] * len(queued),
    )


def run(
    faults: Sequence[Fault] = THREE, *, name: str = SCENARIO, gates: Gates = GATES
) -> tuple[RunResult, dict[tuple[str, int], Recording]]:
    """Return a run with a call for each fault, and its recordings."""
    recordings = [call(fault, repeat) for repeat, fault in enumerate(faults)]
    for one in recordings:
        one.scenario = name
    result = RunResult(
        scenarios=[judged(recordings, gates)], dialect="native", url="ws://127.0.0.1:8000/v1/voice", virtual=True
    )
    return result, {(name, one.repeat): one for one in recordings}


def judged(recordings: Sequence[Recording], gates: Gates) -> ScenarioResult:
    """Return the figures of a scenario's calls."""
    return judged_scenario(
        recordings[0].scenario,
        [judged_call(one, answer_s=ANSWER_S) for one in recordings],
        gates,
        description="A murmur must change nothing; a clear word must stop the agent.",
        seed=1,
        answer_s=ANSWER_S,
    )
