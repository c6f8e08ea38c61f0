"""From recordings to the result of a run: what was recalled, the figures of calls, the gates of scenarios. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from voxlane_lab import gates
from voxlane_lab.metrics import StepFigures, figures, recall_clips
from voxlane_lab.recall import RecallHeard, spoken_numbers
from voxlane_lab.results import CallResult, RunResult, ScenarioResult
from voxlane_lab.scenario import Gates
from voxlane_lab.summary import summarise
from voxlane_lab.values import Pcm, Recording, StepRecord

RateSound = tuple[Pcm, int]

RECORDED = "recording"
"""The dialect of a call that was recorded elsewhere."""

UNKNOWN = frozenset({"mute_ms", "duck_ms", "skipped_ms", "first_byte_ms", "stale_wire_ms", "late_ms"})
"""Figures that such a recording does not hold."""


def recall_sounds(recording: Recording) -> list[RateSound]:
    """Return what a recogniser must hear, two sounds for each step that recalls: what was counted, and the answer."""
    rate = recording.agent_rate
    return [(sound, rate) for step in _recalling(recording) for sound in recall_clips(recording, step)]


def note_recalled(recording: Recording, texts: Iterator[str]) -> None:
    """Note the numbers in the texts of `recall_sounds`, in the same order."""
    for step in _recalling(recording):
        counted, answered = (spoken_numbers(next(texts)) for _ in range(2))
        recording.recalled[step.number] = (_last(counted), _last(answered))


def judged_call(recording: Recording, *, answer_s: float, sent_sha256: str = "") -> CallResult:
    """Return the figures of a call."""
    heard = {number: RecallHeard(*numbers) for number, numbers in recording.recalled.items()}
    steps = figures(recording, answer_s=answer_s, heard=heard)
    return CallResult(
        repeat=recording.repeat,
        steps=[_knowable(step) for step in steps] if recording.dialect == RECORDED else steps,
        failure=recording.failure,
        late_ms=max(recording.late_ms, default=0.0),
        sent_sha256=sent_sha256,
    )


def judged_scenario(
    name: str, calls: Sequence[CallResult], wanted: Gates, *, description: str = "", seed: int = 0, answer_s: float
) -> ScenarioResult:
    """Return the distributions of all calls of a scenario, and whether its gates are met."""
    summary = summarise(step for call in calls for step in call.steps)
    return ScenarioResult(
        name=name,
        calls=list(calls),
        summary=summary,
        gates=gates.judge(summary, wanted, name=name),
        description=description,
        seed=seed,
        answer_s=answer_s,
    )


def judged_again(result: RunResult, recordings: Mapping[tuple[str, int], Recording]) -> RunResult:
    """Return the result of the same recordings, judged by this version; gates are those of the result."""
    scenarios = []
    for scenario in result.scenarios:
        calls = [
            judged_call(
                recordings[scenario.name, call.repeat], answer_s=scenario.answer_s, sent_sha256=call.sent_sha256
            )
            for call in scenario.calls
        ]
        wanted: Gates = {}
        for gate in scenario.gates:
            limits = wanted.setdefault(gate.metric, {})
            assert isinstance(limits, dict)
            limits[gate.statistic] = gate.limit
        scenarios.append(
            judged_scenario(
                scenario.name,
                calls,
                wanted,
                description=scenario.description,
                seed=scenario.seed,
                answer_s=scenario.answer_s,
            )
        )
    return RunResult(scenarios=scenarios, dialect=result.dialect, url=result.url, virtual=result.virtual)


def _knowable(step: StepFigures) -> StepFigures:
    """Return the figures that a recording can give."""
    return replace(step, values={key: None if key in UNKNOWN else value for key, value in step.values.items()})


def _recalling(recording: Recording) -> list[StepRecord]:
    return [step for step in recording.steps if step.recalls and step.result == "done" and not recording.failure]


def _last(numbers: Sequence[int]) -> int | None:
    return numbers[-1] if numbers else None
