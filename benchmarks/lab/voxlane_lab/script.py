"""What the person does next: steps that wait for a state of the card, then are spoken tick by tick. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from voxlane_lab.person import PlannedStep, TriggerMoment
from voxlane_lab.scenario import Scenario
from voxlane_lab.values import TICK_S, USER_TICK, Clip, Occurrence, Pcm, StepRecord, StepResult

BRIDGE_S = 0.7  # a shorter pause does not end a stretch of the agent's speech
SETTLES_S = 0.5  # nothing begins before, unless the agent speaks first
QUIET_S = 2.5  # the call ends after so much silence behind the last answer
LISTENS_S = 12.0  # the call ends when the last answer was heard for so long


@dataclass(frozen=True, slots=True)
class Card:
    """The state of the card in a tick."""

    tick: int
    audible: bool  # whether the loudspeaker makes a sound
    response: str | None  # the response that it plays
    left_s: float | None  # what is left of a response that was wholly sent
    calling_tool: bool
    names_responses: bool


class Script:
    """The steps of one person."""

    def __init__(self, scenario: Scenario, planned: Sequence[PlannedStep], clips: Sequence[Clip]) -> None:
        self.occurrences: list[Occurrence] = []
        self.over = False
        self._scenario = scenario
        self._planned = planned
        self._clips = clips
        self._records: list[StepRecord] = []
        self._begun_at: list[int] = []  # the tick of each record
        self._waits_from = -1  # the tick since which the next step waits
        self._clip: Clip | None = None  # what is being said
        self._clip_from = 0  # the tick of its beginning
        self._audible_from: int | None = None  # the tick at which the agent's speech began
        self._last_audible = 0
        self._ever_audible = False
        self._response: str | None = None

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return len(self._planned)

    @property
    def done(self) -> int:
        """How many steps have begun or were given up."""
        return len(self._records)

    def speak(self, card: Card) -> Pcm:
        """Return what the person says in this tick."""
        if self._waits_from < 0:
            self._waits_from = self._last_audible = card.tick
        self._listen(card)
        if self._clip is None:
            self._consider(card)
        return self._frame(card)

    def records(self, late_ms: Sequence[float], limit_ms: float) -> list[StepRecord]:
        """Return what became of each step; a step in which the tester was late is not measured."""
        ends = [*self._begun_at[1:], len(late_ms)][: len(self._records)]
        found = []
        for record, begin, end in zip(self._records, self._begun_at, ends, strict=True):
            worst = max(late_ms[begin:end], default=0.0)
            late = record.result == "done" and worst > limit_ms
            found.append(replace(record, late_ms=round(worst, 3), result="late" if late else record.result))
        return found + [self._record(number, "not_reached") for number in range(len(found), self.steps)]

    def _listen(self, card: Card) -> None:
        """Note how long the agent has been heard or silent."""
        if not card.audible:
            return
        silent_s = (card.tick - self._last_audible) * TICK_S
        other = card.response is not None and card.response != self._response
        if self._audible_from is None or silent_s > BRIDGE_S or other:
            self._audible_from = card.tick
        self._response = card.response
        self._last_audible, self._ever_audible = card.tick, True

    def _consider(self, card: Card) -> None:
        """Begin the next step if its moment has come; give it up if it does not come."""
        if self.done == self.steps:
            self._end(card)
            return
        planned = self._planned[self.done]
        if not card.names_responses and self._needs_names(planned.moment):
            self._give_up("not_in_dialect", card)
        elif self._is_due(planned.moment, card):
            self._begin(card)
        elif (card.tick - self._waits_from) * TICK_S > planned.moment.when.within_s:
            self._give_up("nothing_to_interrupt", card)

    @staticmethod
    def _needs_names(moment: TriggerMoment) -> bool:
        return moment.when.agent == "calling_tool" or moment.when.agent_left_s is not None

    def _is_due(self, moment: TriggerMoment, card: Card) -> bool:
        when = moment.when
        waited_s = (card.tick - self._waits_from) * TICK_S
        if self._scenario.greets and not self._ever_audible:
            return False
        silent_s = (card.tick - self._last_audible) * TICK_S
        quiet_s = (card.tick - max(self._last_audible, self._waits_from)) * TICK_S
        speaking = card.audible or (self._ever_audible and silent_s <= BRIDGE_S)
        audible_s = (card.tick - self._audible_from) * TICK_S if self._audible_from is not None and speaking else -1.0
        states = {"audible": card.audible, "silent": not speaking, "calling_tool": card.calling_tool, None: True}
        return (
            (self._ever_audible or waited_s >= SETTLES_S)
            and (when.after_s is None or waited_s >= when.after_s)
            and (moment.audible_s is None or (card.audible and audible_s >= moment.audible_s))
            and (moment.silent_s is None or (not self._awaits_answer(card) and quiet_s >= moment.silent_s))
            and (when.agent_left_s is None or (card.left_s is not None and 0 < card.left_s <= when.agent_left_s))
            and states[when.agent]
        )

    def _awaits_answer(self, card: Card) -> bool:
        """Return whether the answer to the step before may still come."""
        if not self._records or not self._records[-1].expects_answer or self._records[-1].result != "done":
            return False
        waited_s = (card.tick - self._waits_from) * TICK_S
        return not self._heard_since and waited_s < self._scenario.answer_s

    @property
    def _heard_since(self) -> bool:
        """Whether the agent began to speak after the step before."""
        return self._audible_from is not None and self._audible_from > self._waits_from

    def _begin(self, card: Card) -> None:
        self._clip, self._clip_from = self._clips[self.done], card.tick
        at = card.tick * USER_TICK
        record = replace(
            self._record(self.done, "done"),
            at=at,
            voiced=tuple((at + first, at + last) for first, last in self._clip.voiced),
            response=card.response or "",
            audible=card.audible,
        )
        self.occurrences.append(Occurrence(card.tick * TICK_S, "card", "step", record.name))
        self._add(record, card)

    def _give_up(self, result: StepResult, card: Card) -> None:
        self._add(self._record(self.done, result), card)
        self._waits_from = card.tick

    def _add(self, record: StepRecord, card: Card) -> None:
        self._records.append(record)
        self._begun_at.append(card.tick)

    def _record(self, number: int, result: StepResult) -> StepRecord:
        planned = self._planned[number]
        step = planned.step
        answered = step.answered and step.means != "nothing"
        return StepRecord(number, planned.name, step.means, result, expects_answer=answered, recalls=step.recalls)

    def _frame(self, card: Card) -> Pcm:
        """Return the clip's sound in this tick."""
        out = np.zeros(USER_TICK, np.int16)
        clip = self._clip
        if clip is None:
            return out
        at = (card.tick - self._clip_from) * USER_TICK
        part = clip.pcm[at : at + USER_TICK]
        out[: len(part)] = part
        self._note_old(card, clip, at)
        if at + USER_TICK >= len(clip.pcm):
            self._clip, self._waits_from = None, card.tick
        return out

    def _note_old(self, card: Card, clip: Clip, at: int) -> None:
        """Note what is played when the first voiced sample is spoken."""
        if clip.voiced and at <= clip.voiced[0][0] < at + USER_TICK:
            self._records[-1] = replace(self._records[-1], response=card.response or "", audible=card.audible)

    def _end(self, card: Card) -> None:
        """End the call when the last answer was heard, or does not come."""
        waited_s = (card.tick - self._waits_from) * TICK_S
        silent_s = (card.tick - max(self._last_audible, self._waits_from)) * TICK_S
        patience_s = QUIET_S if self._heard_since or not self._records[-1].expects_answer else self._scenario.answer_s
        self.over = silent_s >= patience_s or waited_s >= self._scenario.answer_s + LISTENS_S
