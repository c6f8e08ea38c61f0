"""The figures of every step of a call, and what each of them means. Pure.

u_on and u_off are the first voiced sample of a step and the place behind its last, known from how the clip was made.
*Old* is the response that sounds at u_on; a *new* response is one whose first sound arrives after u_on. Audible is a
frame of 10 ms above -50 dB of full scale of what the loudspeaker played. A figure is None where a step does not
measure it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from voxlane_lab.attribution import (
    GAP_S,
    Mask,
    OwnedRun,
    agent_place,
    audible,
    first_silence,
    of_owner,
    old_response,
    owned,
    spoken,
)
from voxlane_lab.definitions import METRICS, Metric, Value
from voxlane_lab.recall import RecallHeard, memory, spoken_numbers
from voxlane_lab.values import TICK_S, USER_RATE, Arrival, Meaning, Pcm, Recording, StepRecord, StepResult

MISSED_S = 3.0  # an old response that sounds so long after u_off has missed the interruption
TOO_SOON_S = 1.0  # an old response that ends by itself sooner after u_on says nothing about the server
LONG_STEP_S = 2.0  # in a step this long, an old response that sounds up to u_off has not yielded to it
GOES_ON_S = 3.0  # an old response that plays so long after a sound that means nothing was not stopped by it
ENDING_S = 0.15  # silence of its own at the end of a response that ended by itself
PAUSE_S = 0.3  # silence of the person inside a step
SECOND_S = 0.3  # a second response that is audible for so long is a second answer
CLEAR_S = 0.3  # a clear so soon behind the last sample belongs to it
SHORT_OF_S = 0.5  # a call may end so much before an answer's time is over


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The figures of one step."""

    number: int
    name: str
    means: Meaning
    result: StepResult
    values: dict[str, Value] = field(default_factory=dict)  # by the names of METRICS


def figures(
    recording: Recording, *, answer_s: float, heard: Mapping[int, RecallHeard] | None = None
) -> list[StepFigures]:
    """Return the figures of each step; `heard` has what a recogniser heard, by the step's number."""
    call = _HeardCall(recording)
    found = []
    for step in recording.steps:
        values: dict[str, Value] = dict.fromkeys(METRICS)
        values["late_ms"] = step.late_ms
        if step.result == "done" and step.voiced and not recording.failure:
            values |= _Judge(call, step, answer_s).values()
            if step.recalls and heard and step.number in heard:
                values |= memory(recording, call.old(_counted_step(call, step) or step), heard[step.number])
        found.append(StepFigures(step.number, step.name, step.means, step.result, values))
    return found


def recall_clips(recording: Recording, step: StepRecord) -> tuple[Pcm, Pcm]:
    """Return the sound of a step that recalls, at the agent's rate: what was counted and played, and the answer.

    What was counted is the response that the step interrupts, or the one that the last step before interrupted.
    """
    call = _HeardCall(recording)
    counting = _counted_step(call, step)
    old = call.old(counting) if counting else None
    end = call.place(step.last) if counting is step else call.place(step.first)
    counted = call.cut([run for run in of_owner(call.runs, old) if old and run.at < end]) if old else call.cut([])
    judge = _Judge(call, step, 0.0)
    answer = judge.answer
    runs = [run for run in of_owner(call.runs, answer.owner) if run.at < judge.next_any] if answer else []
    return counted, call.cut(runs)


@dataclass(frozen=True, slots=True)
class _Response:
    """When a response came and was heard, on the agent's track."""

    owner: str
    arrives: int  # the place of its first sound's arrival
    begins: int | None  # its first audible sample
    sounds: int  # audible samples


class _HeardCall:
    """A recording, with the owners of its sound."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.rate = recording.agent_rate
        self.runs = owned(recording)
        self.audible: Mask = audible(recording)
        self.steps = spoken(recording)

    def place(self, person_place: int) -> int:
        """Return the place in the agent's track of a place in the person's."""
        return agent_place(self.recording, person_place)

    def at(self, seconds: float) -> int:
        """Return the place in the agent's track of a time."""
        return round(seconds * self.rate)

    def ms(self, samples: float) -> float:
        """Return samples of the agent's track in milliseconds."""
        return round(samples * 1000 / self.rate, 3)

    def old(self, step: StepRecord) -> str | None:
        """Return the response that a step meets."""
        return old_response(self.recording, step, self.runs, self.audible)

    def sounding(self, runs: Sequence[OwnedRun]) -> Mask:
        """Return where runs are audible."""
        mask = np.zeros(len(self.audible), np.bool_)
        for run in runs:
            mask[run.at : run.end] = self.audible[run.at : run.end]
        return mask

    def cut(self, runs: Sequence[OwnedRun]) -> Pcm:
        """Return the played sound of runs, with silence for what lies between."""
        if not runs:
            return np.zeros(0, np.int16)
        begin = runs[0].at
        sound = np.zeros(max(run.end for run in runs) - begin, np.int16)
        for run in runs:
            sound[run.at - begin : run.end - begin] = self.recording.agent[run.at : run.end]
        return sound

    @cached_property
    def responses(self) -> list[_Response]:
        """All responses, in the order of their first sound."""
        arrivals: dict[str, int] = {}
        for arrival in self.recording.arrivals:
            if arrival.response and arrival.samples and not arrival.late:
                arrivals.setdefault(arrival.response, self.at(arrival.at_s))
        for run in self.runs:
            if run.owner not in arrivals:
                arrivals[run.owner] = self._arrival(run)
        found = []
        for owner, arrives in arrivals.items():
            places = np.flatnonzero(self.sounding(of_owner(self.runs, owner)))
            found.append(_Response(owner, arrives, int(places[0]) if len(places) else None, len(places)))
        return sorted(found, key=lambda one: (one.arrives, one.owner))

    def _arrival(self, run: OwnedRun) -> int:
        """Return when the first sample of a run without a name arrived; at the latest when it was played."""
        for arrival in self.recording.arrivals:
            if not arrival.response and arrival.offset <= run.source < arrival.offset + arrival.samples:
                return min(run.at, self.at(arrival.at_s))
        return run.at

    def dropped(self, old: str) -> bool:
        """Return whether received sound at the end of a response was never played."""
        mine = of_owner(self.runs, old)
        end = mine[-1].source + mine[-1].end - mine[-1].at
        if old in self.recording.received:
            return len(self.recording.received[old]) > end
        later = [run.source for run in self.runs if run.at > mine[-1].at]
        following = later[0] if later else len(self.recording.received.get("", ()))
        return following > end and not self._was_played(end)

    def _was_played(self, source: int) -> bool:
        """Return whether a place of sound without a name was played: silence between responses is no one's."""
        return any(run.offset <= source < run.offset + run.samples for run in self.recording.runs if not run.response)


class _Judge:
    """The figures of one step."""

    def __init__(self, call: _HeardCall, step: StepRecord, answer_s: float) -> None:
        self._call = call
        self._step = step
        self._answer = call.at(answer_s)
        self._u_on, self._u_off = call.place(step.first), call.place(step.last)
        self._old = call.old(step)
        later = [other for other in call.steps if other.first > step.first]
        self.next_any = call.place(later[0].first) if later else len(call.recording.agent)
        asked = [call.place(other.first) for other in later if other.means != "nothing"]
        self._next_asked = asked[0] if asked else None
        self._runs = of_owner(call.runs, self._old) if self._old else []

    def values(self) -> dict[str, Value]:
        """Return the figures that this step measures."""
        found: dict[str, Value] = {}
        if self._old and self._step.means == "stop":
            found |= self._yielding() | {"mute_ms": self._mute(), "duck_ms": self._duck(), "floor_ms": self._floor()}
            found |= {"stale_ms": self._stale(), "stale_wire_ms": self._stale_wire()}
        if self._old and self._step.means == "nothing":
            found |= self._going_on() | {"mute_ms": self._mute(), "duck_ms": self._duck()}
        if self._step.means == "nothing" and not self._old:
            found["unasked"] = self._unasked()
        if self._step.means != "nothing":
            found |= self._answering()
        return found

    # ---- the old response, when the person interrupts

    @cached_property
    def _stopped(self) -> int:
        """The place behind old's last sample before its first silence."""
        count = first_silence(self._runs, self._u_on, self._call.rate)
        return self._runs[count - 1].end if count else self._u_on

    @cached_property
    def _by_itself(self) -> bool | None:
        """Whether old ended by itself at the end of its last run; None: it looks so, and the dialect does not say."""
        assert self._old is not None
        call, end = self._call, self._runs[-1].end
        if call.dropped(self._old):
            return False
        events = [(one, call.at(one.at_s)) for one in call.recording.occurrences if one.side == "card"]
        if any(one.name == "finished" and one.detail == self._old and at < self._u_on for one, at in events):
            return True
        first, last = max(self._u_on, end - 2 * call.at(TICK_S)), end + call.at(CLEAR_S)
        if any(one.name == "clear" and first <= at <= last for one, at in events):
            return False
        quiet = call.audible[max(self._runs[-1].at, end - call.at(ENDING_S)) : end]
        return None if len(quiet) >= call.at(ENDING_S) and not quiet.any() else False

    def _yielding(self) -> dict[str, Value]:
        call = self._call
        mask = call.sounding(self._runs)
        voiced = np.zeros(len(mask), np.bool_)
        for first, last in self._step.voiced:
            voiced[call.place(first) : call.place(last)] = True
        heard = np.flatnonzero(mask[self._u_on : self._stopped])
        silent_at = self._u_on + (int(heard[-1]) + 1 if len(heard) else 0)
        missed = self._missed(silent_at)
        through = self._u_off - self._u_on >= call.at(LONG_STEP_S) and self._stopped >= self._u_off - call.at(TICK_S)
        measured = missed is False and not through
        return {
            "missed": missed,
            "yield_ms": call.ms(silent_at - self._u_on) if measured else None,
            "talk_over_ms": call.ms(int((mask & voiced).sum())),
        }

    def _missed(self, silent_at: int) -> bool | None:
        if silent_at > self._u_off + self._call.at(MISSED_S):
            return True
        if self._stopped < self._runs[-1].end or self._by_itself is False:
            return False
        return True if self._stopped - self._u_on >= self._call.at(TOO_SOON_S) else None

    def _mute(self) -> float | None:
        """Return when the first tick plays nothing of old."""
        tick, latest = self._call.at(TICK_S), self._u_off + self._call.at(GOES_ON_S)
        for number, run in enumerate(self._runs):
            last = number + 1 == len(self._runs)
            begin = max(-(-run.end // tick), -(-self._u_on // tick)) * tick
            if run.end <= self._u_on and (last or self._runs[number + 1].at <= self._u_on):
                continue
            if begin >= min(self.next_any, latest) or (last and self._by_itself is not False):
                return None
            if last or self._runs[number + 1].at >= begin + tick:
                return self._call.ms(begin - self._u_on)
        return None

    def _duck(self) -> float | None:
        for one in self._call.recording.occurrences:
            if (one.side, one.name) == ("card", "lowered") and self._u_on <= self._call.at(one.at_s) < self.next_any:
                return self._call.ms(self._call.at(one.at_s) - self._u_on)
        return None

    def _floor(self) -> float | None:
        call, gap = self._call, self._call.at(GAP_S)
        both = call.audible[self._u_on :].copy()
        voiced = np.zeros(len(both), np.bool_)
        for first, last in self._step.voiced:
            voiced[call.place(first) - self._u_on : call.place(last) - self._u_on] = True
        places = np.flatnonzero(both & voiced)
        if not len(places):
            return 0.0
        breaks = np.flatnonzero(np.diff(places) > gap)
        last_place = int(places[breaks[0]] if len(breaks) else places[-1])
        return call.ms(last_place + 1)

    def _stale(self) -> float:
        stale = [run for run in self._runs if run.stale and run.at >= self._stopped]
        return self._call.ms(int(self._call.sounding(stale).sum()))

    def _stale_wire(self) -> float | None:
        call = self._call
        mine: list[Arrival] = [one for one in call.recording.arrivals if one.response == self._old]
        if not mine:
            return None
        return call.ms(sum(one.samples for one in mine if one.late and call.at(one.at_s) >= self._u_on))

    # ---- the old response, when the person's sound means nothing

    def _jumps(self) -> list[int]:
        """Return by how much old's place jumps, after u_on and before the next step."""
        found = []
        for one, other in pairwise(self._runs):
            if self._u_on <= other.at < self.next_any and one.offset is not None and other.offset is not None:
                found.append(other.offset - one.offset - (one.end - one.at))
        return [jump for jump in found if jump]

    def _going_on(self) -> dict[str, Value]:
        stopped = self._false_stop()
        if stopped:
            return {"false_stop": True}
        call, jumps = self._call, self._jumps()
        pauses = [other.at - one.end for one, other in pairwise(self._runs) if self._u_on <= other.at < self.next_any]
        return {
            "false_stop": stopped,
            "pause_ms": call.ms(max(pauses, default=0)),
            "skipped_ms": call.ms(sum(jump for jump in jumps if jump > 0)),
            "repeated_ms": call.ms(-sum(jump for jump in jumps if jump < 0)),
        }

    def _false_stop(self) -> bool | None:
        call = self._call
        mine = [run for run in self._runs if run.at < self.next_any]
        for one, other in pairwise(mine):
            if other.at > self._u_on and other.at - one.end > self._answer:
                return True
        end = mine[-1].end
        tick = call.at(TICK_S)
        if end > self._u_off + call.at(GOES_ON_S) or end >= min(self.next_any, len(call.audible)) - tick:
            return False
        if len(mine) < len(self._runs):
            return False
        by_itself = self._by_itself
        return None if by_itself is None else not by_itself

    # ---- the answer

    @property
    def _new(self) -> list[_Response]:
        """The new responses that begin before the next turn or stop."""
        until = self._next_asked if self._next_asked is not None else len(self._call.audible) + 1
        return [
            one
            for one in self._call.responses
            if one.owner != self._old and self._u_on <= one.arrives and (one.begins or one.arrives) < until
        ]

    @property
    def answer(self) -> _Response | None:
        """The first new response that becomes audible after u_off."""
        found = [one for one in self._new if one.begins is not None and one.begins >= self._u_off]
        return min(found, key=lambda one: one.begins or 0, default=None)

    def _answering(self) -> dict[str, Value]:
        call, new, answer = self._call, self._new, self.answer
        found: dict[str, Value] = {"answered_twice": self._answered_twice(new)}
        if self._has_pause():
            early = [
                one for one in new if min(one.arrives, one.arrives if one.begins is None else one.begins) < self._u_off
            ]
            found["cut_off"] = bool(early)
            found["split_turns"] = sum((one.begins or one.arrives) < self.next_any for one in new)
        if not self._step.expects_answer:
            return found
        if answer is not None and answer.begins is not None and answer.begins - self._u_off <= self._answer:
            found["response_ms"] = call.ms(answer.begins - self._u_off)
            found["first_byte_ms"] = call.ms(answer.arrives - self._u_off)
        found["unanswered"] = self._unanswered(new)
        return found

    def _has_pause(self) -> bool:
        voiced = self._step.voiced
        return any(b[0] - a[1] >= PAUSE_S * USER_RATE for a, b in pairwise(voiced))

    def _unanswered(self, new: Sequence[_Response]) -> bool | None:
        until = self._u_off + self._answer
        if any(one.begins is not None and one.begins <= until for one in new):
            return False
        if self._next_asked is not None:
            return True if self._next_asked >= until else None
        return True if len(self._call.audible) >= until - self._call.at(SHORT_OF_S) else None

    def _answered_twice(self, new: Sequence[_Response]) -> bool:
        after = [one for one in new if one.begins is not None and self._u_off <= one.begins < self.next_any]
        after.sort(key=lambda one: one.begins or 0)
        return any(one.sounds >= self._call.at(SECOND_S) for one in after[1:])

    def _unasked(self) -> bool | None:
        asked = [step for step in self._call.steps if step.first < self._step.first and step.means != "nothing"]
        if asked and asked[-1].expects_answer and not self._is_answered(asked[-1]):
            return None
        begun = [one for one in self._new if one.begins is not None and one.begins < self.next_any]
        return any(one.sounds >= self._call.at(SECOND_S) for one in begun)

    def _is_answered(self, step: StepRecord) -> bool:
        since = self._call.place(step.first)
        return any(one.begins is not None and since <= one.begins < self._u_on for one in self._call.responses)


def _counted_step(call: _HeardCall, step: StepRecord) -> StepRecord | None:
    """Return the step that interrupted the counting: the step itself, or the last stop before it."""
    before = [one for one in call.steps if one.first <= step.first and one.means == "stop"]
    return next((one for one in reversed(before) if call.old(one) is not None), None)


__all__ = [
    "METRICS",
    "Metric",
    "RecallHeard",
    "StepFigures",
    "figures",
    "recall_clips",
    "spoken_numbers",
]
