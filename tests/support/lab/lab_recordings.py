"""Calls with a known timeline: sound of responses at given times, the person's steps, clears. Times in seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

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
)


def sound(samples: int, seed: int, level: float = 3000.0) -> Pcm:
    """Return noise of one loudness that is like no other of another seed."""
    return np.rint(np.random.default_rng(seed).uniform(-level, level, samples)).astype(np.int16)


class RecordedCall:
    """Puts a recording together."""

    def __init__(self, rate: int = 24_000, *, named: bool = True, length_s: float = 20.0) -> None:
        self.rate = rate
        self.named = named
        self.agent = np.zeros(round(length_s * rate), np.int16)
        self.person = np.zeros(round(length_s * USER_RATE), np.int16)
        self.runs: list[Run] = []
        self.arrivals: list[Arrival] = []
        self.occurrences: list[Occurrence] = []
        self.steps: list[StepRecord] = []
        self.received: dict[str, list[Pcm]] = {}
        self.made: dict[str, Pcm] = {}
        self.kept: dict[str, Any] = {}

    def content(self, response: str, begin_s: float, end_s: float) -> Pcm:
        """Return a part of what a response says."""
        if response not in self.made:
            self.made[response] = sound(30 * self.rate, 1 + sum(map(ord, response)))
        return self.made[response][round(begin_s * self.rate) : round(end_s * self.rate)]

    def receive(self, response: str, pcm: Pcm, at_s: float, *, late: bool = False) -> int:
        """Note sound that arrives; return its offset."""
        name = response if self.named else ""
        parts = self.received.setdefault(name, [])
        offset = sum(map(len, parts))
        parts.append(pcm)
        self.arrivals.append(Arrival(at_s, name, offset, len(pcm), late))
        return offset

    def play(
        self,
        response: str,
        at_s: float,
        for_s: float,
        *,
        of_s: float,
        arrives_s: float | None = None,
        more_s: float = 0.0,
        silence: bool = False,
    ) -> None:
        """Play a part of a response; `more_s` of it are received behind that and never played."""
        whole = self.content(response, of_s, of_s + for_s + more_s)
        if silence:
            whole = np.zeros_like(whole)
        offset = self.receive(response, whole, at_s if arrives_s is None else arrives_s)
        begin, samples = round(at_s * self.rate), round(for_s * self.rate)
        self.agent[begin : begin + samples] = whole[:samples]
        self.runs.append(Run(begin, response if self.named else "", offset, samples))

    def occur(self, name: str, at_s: float, detail: str = "") -> None:
        """Note an occurrence of the card."""
        self.occurrences.append(Occurrence(at_s, "card", name, detail))

    def step(self, means: Meaning, *voiced_s: tuple[float, float], old: str | None = None, **more: Any) -> StepRecord:
        """Add a step of the person; `old` is audible then."""
        voiced: tuple[Interval, ...] = tuple((round(a * USER_RATE), round(b * USER_RATE)) for a, b in voiced_s)
        for first, last in voiced:
            self.person[first:last] = sound(last - first, 99)
        record = StepRecord(
            len(self.steps),
            f"{len(self.steps) + 1} {means}",
            means,
            "done",
            at=voiced[0][0],
            voiced=voiced,
            response=(old or "") if self.named else "",
            audible=old is not None,
        )
        self.steps.append(replace(record, **more))
        return self.steps[-1]

    def recording(self, **more: Any) -> Recording:
        """Return the call."""
        ticks = round(len(self.person) / USER_RATE / TICK_S)
        return Recording(
            "a scenario",
            "native" if self.named else "twilio",
            0,
            1,
            self.rate,
            self.person,
            self.person,
            self.agent,
            sorted(self.runs, key=lambda run: run.at),
            sorted(self.arrivals, key=lambda one: one.at_s),
            {name: np.concatenate(parts) for name, parts in self.received.items()},
            [0] * ticks,
            [False] * ticks,
            self.steps,
            sorted(self.occurrences, key=lambda one: one.at_s),
            late_ms=[0.0] * ticks,
            **more,
        )


def shifted(recording: Recording, ticks: int) -> Recording:
    """Return the same call after so many ticks of silence."""
    agent, person, seconds = (
        round(ticks * TICK_S * recording.agent_rate),
        round(ticks * TICK_S * USER_RATE),
        ticks * TICK_S,
    )
    return replace(
        recording,
        agent=np.concatenate((np.zeros(agent, np.int16), recording.agent)),
        person=np.concatenate((np.zeros(person, np.int16), recording.person)),
        runs=[replace(run, at=run.at + agent) for run in recording.runs],
        arrivals=[replace(one, at_s=one.at_s + seconds) for one in recording.arrivals],
        occurrences=[replace(one, at_s=one.at_s + seconds) for one in recording.occurrences],
        steps=[
            replace(step, at=step.at + person, voiced=tuple((a + person, b + person) for a, b in step.voiced))
            for step in recording.steps
        ],
    )
