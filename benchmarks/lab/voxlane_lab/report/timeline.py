"""A call as the page draws it: both tracks, the owners of the sound, figures at their places, events. Pure.

All places are seconds since the beginning of the call.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from voxlane_lab.attribution import OwnedRun
from voxlane_lab.recording_file import stereo
from voxlane_lab.report.words import ABOUT_THE_TESTER, COUNTS, FLAGS, amount, words_of
from voxlane_lab.values import TICK_S, USER_RATE, Occurrence, Pcm, Recording, StepRecord
from voxlane_lab.waveform import encode_g711

PEAKS_PER_S = 100
LONGEST_TEXT = 160
"""Characters of an event's detail: a server may send pages."""
MOST_EVENTS = 600
"""Events of a call that the page shows; all are in events.jsonl."""
JOIN_S = 0.6
"""Equal events that follow each other within this time are one, with a count."""

REPEATS = {
    "yield_ms": ("mute_ms", "talk_over_ms", "floor_ms"),
    "pause_ms": ("mute_ms",),
    "response_ms": ("first_byte_ms",),
}
"""Where the first figure is drawn, the others would say the same again at the same place; the tables have them."""

Figures = Mapping[str, float | bool | None]
_Played = tuple[Sequence[OwnedRun], int]


def timeline(
    recording: Recording,
    figures: Mapping[int, Figures],
    limits: Mapping[str, float],
    runs: Sequence[OwnedRun],
) -> dict[str, Any]:
    """Return the call for the page. `figures` go by the step's number; `runs` say who owns the sound."""
    rate = recording.agent_rate
    responses = list(dict.fromkeys(run.owner for run in runs))
    return {
        "length": round(max(len(recording.person) / USER_RATE, len(recording.agent) / recording.agent_rate, TICK_S), 3),
        "person": peaks(recording.person, USER_RATE),
        "agent": peaks(recording.agent, recording.agent_rate),
        "responses": [response_words(name) for name in responses],
        "owners": _owners(runs, responses, rate),
        "stale": [_rounded(run.at / rate, run.end / rate) for run in runs if run.stale],
        "held": _held(recording.held),
        "lowered": _lowered(recording),
        "steps": [_step(step, figures.get(step.number, {}), limits, (runs, rate)) for step in recording.steps],
        "events": events(recording.occurrences),
    }


def sound(recording: Recording) -> str:
    """Return the call's sound for the page: the person's track, then the agent's, as μ-law, deflated, in base64."""
    both = stereo(recording)
    return base64.b64encode(zlib.compress(encode_g711(both.T.ravel(), "mulaw"), 9)).decode()


def peaks(pcm: Pcm, rate: int) -> str:
    """Return the loudest sample of each 10 ms, a byte each, in base64. Quiet sound is drawn a little larger."""
    frame = rate // PEAKS_PER_S
    frames = np.zeros(-(-len(pcm) // frame) * frame, np.float32)
    frames[: len(pcm)] = np.abs(pcm.astype(np.float32))
    loudest = frames.reshape(-1, frame).max(axis=1) if len(frames) else frames
    scale = max(float(loudest.max(initial=0.0)), 3_000.0)  # noise alone is not drawn as if it were a voice
    return base64.b64encode(np.rint((loudest / scale) ** 0.75 * 255).astype(np.uint8).tobytes()).decode()


def events(occurrences: Iterable[Occurrence], most: int | None = MOST_EVENTS) -> list[dict[str, Any]]:
    """Return the events; equal ones that follow each other closely on one side are one, with a count."""
    done: list[dict[str, Any]] = []
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for one in occurrences:
        before = last.get((one.side, one.name))
        if before is not None and one.at_s - before["to"] <= JOIN_S and one.side != "card":
            before["to"], before["count"] = round(one.at_s, 3), before["count"] + 1
            continue
        event = {
            "at": round(one.at_s, 3),
            "to": round(one.at_s, 3),
            "side": one.side,
            "name": shortened(one.name, 60),
            "detail": shortened(one.detail),
            "count": 1,
        }
        last[one.side, one.name] = event
        done.append(event)
    return done[:most]


def shortened(text: str, most: int = LONGEST_TEXT) -> str:
    """Return a text of bounded length."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _rounded(first: float, last: float) -> list[float]:
    return [round(first, 3), round(last, 3)]


def response_words(name: str) -> str:
    """Return what a response is called on the page."""
    return f"response {name}" if name.isdecimal() else shortened(name, 40) or "response"


def _owners(runs: Sequence[OwnedRun], responses: list[str], rate: int) -> list[dict[str, Any]]:
    """Return the runs as spans; those of one response that touch are one."""
    spans: list[dict[str, Any]] = []
    for run in runs:
        owner = responses.index(run.owner)
        if spans and spans[-1]["owner"] == owner and run.at / rate - spans[-1]["to"] < TICK_S / 2:
            spans[-1]["to"] = round(run.end / rate, 4)
        else:
            spans.append({"from": round(run.at / rate, 4), "to": round(run.end / rate, 4), "owner": owner})
    return spans


def _held(held: Sequence[bool]) -> list[list[float]]:
    spans, at = [], 0
    for is_held, ticks in groupby(held):
        count = len(list(ticks))
        if is_held:
            spans.append(_rounded(at * TICK_S, (at + count) * TICK_S))
        at += count
    return spans


def _lowered(recording: Recording) -> list[list[float]]:
    """Return from each "lowered" to the event that ends it."""
    spans: list[list[float]] = []
    begun: float | None = None
    for one in recording.occurrences:
        if one.name == "lowered" and begun is None:
            begun = one.at_s
        elif begun is not None and one.name in ("release", "clear", "raised", "interrupted"):
            spans.append(_rounded(begun, one.at_s))
            begun = None
    if begun is not None:
        spans.append(_rounded(begun, len(recording.agent) / recording.agent_rate))
    return spans


def _step(step: StepRecord, figures: Figures, limits: Mapping[str, float], played: _Played) -> dict[str, Any]:
    return {
        "number": step.number,
        "name": shortened(step.name, 60) or str(step.number + 1),
        "voiced": [_rounded(first / USER_RATE, last / USER_RATE) for first, last in step.voiced],
        "marks": [] if not step.voiced else list(_marks(step, figures, limits, played)),
    }


def _marks(
    step: StepRecord, figures: Figures, limits: Mapping[str, float], played: _Played
) -> Iterator[dict[str, Any]]:
    """Yield the figures of a step that have something to show, each with its place."""
    hidden = {*ABOUT_THE_TESTER, *(name for main, others in REPEATS.items() if figures.get(main) for name in others)}
    for metric, value in figures.items():
        words = words_of(metric)
        if value is None or metric in hidden or (words.anchor == "none" and not value):
            continue
        if metric == "split_turns" and value == 1:
            continue
        first, last = _place(metric, float(value), step, played)
        yield {
            "from": round(first, 3),
            "to": None if last is None else round(last, 3),
            "text": figure_text(metric, value),
            "title": f"{words.title}: {words.meaning}" if words.meaning else words.title,
            "bad": is_over(metric, value, limits),
        }


def _place(metric: str, value: float, step: StepRecord, played: _Played) -> tuple[float, float | None]:
    """Return where a figure of a step is drawn: from, to; None: it is a point."""
    runs, rate = played
    match words_of(metric).anchor:
        case "first":
            return step.first / USER_RATE, step.first / USER_RATE + value / 1000
        case "last":
            return step.last / USER_RATE, step.last / USER_RATE + value / 1000
    after = [run for run in runs if run.end / rate > step.first / USER_RATE]
    if metric == "stale_ms" and (stale := [run for run in after if run.stale]):
        return stale[0].at / rate, stale[-1].end / rate
    if metric == "pause_ms":
        for one, other in pairwise(after):
            if one.owner == other.owner and abs((other.at - one.end) / rate * 1000 - value) < 1:
                return one.end / rate, other.at / rate
    return step.first / USER_RATE, None


def figure_text(metric: str, value: float | bool) -> str:
    """Return a figure in a few words."""
    short = words_of(metric).short
    if metric in FLAGS:
        return short if value else f"{short}: no"
    return f"{amount(metric, value)} {short}" if metric in COUNTS else f"{short} {amount(metric, value)}"


def is_over(metric: str, value: float | bool, limits: Mapping[str, float]) -> bool:
    """Return whether one figure is above the smallest limit of its metric. A flag that is set is, where it is gated."""
    if metric not in limits:
        return False
    return bool(value) if metric in FLAGS else float(value) > limits[metric]
