"""What the page shows, in words: made of a run's result and its calls. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from voxlane_lab.gates import GateResult, GateVerdict
from voxlane_lab.recording_file import call_folder
from voxlane_lab.report.strips import Point, Strip, strip
from voxlane_lab.report.timeline import (
    Figures,
    figure_text,
    is_over,
    shortened,
)
from voxlane_lab.report.words import (
    ABOUT_THE_TESTER,
    FLAGS,
    MEANINGS,
    RESULTS,
    STATISTICS,
    WORDS,
    interval_words,
    statistic_amount,
    words_of,
)
from voxlane_lab.results import CallResult, RunResult, ScenarioResult, exit_code, why_not_measurable
from voxlane_lab.summary import FlagShare, distribution, share_of
from voxlane_lab.values import USER_RATE, Recording

Calls = Mapping[tuple[str, int], Recording]
"""The recordings, by scenario and repeat."""

HEADLINES = ("yield_ms", "response_ms", "false_stop", "stale_ms")
"""The figures that are shown large."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A line of the gate table, in words."""

    title: str
    how: str
    code: str
    limit: str
    measured: str
    n: int
    interval: str
    verdict: GateVerdict
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chip:
    """A few words with a tone: good, bad or none."""

    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class StepView:
    """A step of the person."""

    number: int
    name: str
    means: str
    begins: str
    result: str
    chips: list[Chip]


@dataclass(slots=True)
class CallSection:
    """A call on the page."""

    id: str
    repeat: int
    failure: str
    steps: list[StepView]
    chips: list[Chip]
    badness: int  # how many figures are above their limits
    recording: Recording | None
    figures: Mapping[int, Figures]
    limits: Mapping[str, float]
    file: str  # the sound beside the page; "": there is none
    open: bool = False
    data: int | None = None  # its number among the drawn calls
    length: float = 0.0
    owners: list[str] = field(default_factory=list)
    has_stale: bool = False
    has_held: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    events_left: int = 0
    texts: list[tuple[str, str]] = field(default_factory=list)
    sound_words: str = ""


@dataclass(slots=True)
class ScenarioSection:
    """A scenario on the page."""

    name: str
    description: str
    verdict: GateVerdict
    line: str  # the verdict in a few words
    gates: list[Gate]
    calls: list[CallSection]
    strips: list[Strip]
    zeros: str


@dataclass(frozen=True, slots=True)
class Tile:
    """One of the figures that are shown large."""

    title: str
    value: str
    unit: str
    note: str


@dataclass(slots=True)
class Page:
    """All of it."""

    title: str
    lead: str
    facts: list[tuple[str, str, bool]]
    verdict: GateVerdict
    verdict_line: str
    reasons: list[str]
    notices: list[str]
    scenarios: list[ScenarioSection]
    tiles: list[Tile] = field(default_factory=list)
    sound_line: str = ""


def call_section(
    place: str,
    repeat: int,
    failure: str,
    recording: Recording | None,
    figures: Mapping[int, Figures],
    steps: Sequence[StepView],
    limits: Mapping[str, float],
    file: str,
) -> CallSection:
    """Return a call with its chips; what is drawn of it is added by `draw`."""
    over = [
        (metric, value)
        for one in figures.values()
        for metric, value in one.items()
        if value is not None and is_over(metric, value, limits)
    ]
    chips = [Chip(figure_text(metric, value), "bad") for metric, value in over[:4]]
    if failure:
        chips.insert(0, Chip("the call failed", "bad"))
    elif not over and limits:
        chips.append(Chip("within all limits", "good"))
    chips += [Chip(step.result.rstrip(".").lower()) for step in steps if step.result][:2]
    return CallSection(
        place, repeat, shortened(failure, 400), list(steps), chips, len(over) + 9 * bool(failure), recording, figures,
        limits, file,
    )  # fmt: skip


def step_chips(figures: Figures, limits: Mapping[str, float]) -> list[Chip]:
    """Return the figures of a step as chips; flags that are not set say nothing."""
    known = [*(name for name in WORDS if name in figures), *(name for name in figures if name not in WORDS)]
    chips = []
    for metric in known:
        value = figures[metric]
        if value is None or metric in ABOUT_THE_TESTER or (metric in FLAGS and not value):
            continue
        chips.append(Chip(figure_text(metric, value), "bad" if is_over(metric, value, limits) else ""))
    return chips


def begins(recording: Recording | None, number: int) -> str:
    """Return when a step begins, as 8.00 s; "–": it was not said."""
    steps = recording.steps if recording is not None else []
    found = next((step for step in steps if step.number == number and step.voiced), None)
    return f"{found.first / USER_RATE:.2f} s" if found else "–"


def tiles_of(scenarios: Sequence[ScenarioSection]) -> list[Tile]:
    """Return the figures that say most of a voice server, over all scenarios."""
    tiles = []
    for metric in HEADLINES:
        values = [
            float(value)
            for one in scenarios
            for call in one.calls
            for figures in call.figures.values()
            if (value := figures.get(metric)) is not None
        ]
        if values:
            tiles.append(_tile(metric, values))
    return tiles


def _tile(metric: str, values: Sequence[float]) -> Tile:
    title, cases = words_of(metric).title, f"{len(values)} case{'s' * (len(values) != 1)}"
    if metric in FLAGS:
        found = share_of(sum(map(bool, values)), len(values))
        return Tile(title, str(found.hits), f"of {found.n}", interval_note(found))
    measured = distribution(values)
    if metric == "stale_ms":
        return Tile(title, f"{round(measured.max):,}", "ms", f"at most, in {cases}")
    return Tile(title, f"{round(measured.p50):,}", "ms", f"p50 · p95 {round(measured.p95):,} ms · {cases}")


def interval_note(share: FlagShare) -> str:
    """Return the interval of a share as a note."""
    return f"95 % interval {interval_words('', 'share', share.low, share.high)}"


def strips_of(
    calls: Sequence[CallSection], names: Mapping[int, str], gated: Mapping[str, Mapping[str, float]]
) -> tuple[list[Strip], str]:
    """Return the distributions of a scenario, and the metrics that are zero in every case, in words."""
    strips, zeros = [], []
    measured = {metric for call in calls for one in call.figures.values() for metric in one} - ABOUT_THE_TESTER
    for metric in [*(name for name in WORDS if name in measured), *sorted(measured - WORDS.keys())]:
        points = [
            Point(call.id, call.repeat, shortened(names.get(number, ""), 40), float(value))
            for call in calls
            for number, one in sorted(call.figures.items())
            if (value := one.get(metric)) is not None
        ]
        if not points:
            continue
        limits = gated.get(metric, {})
        if not limits and not any(point.value for point in points):
            zeros.append(words_of(metric).title.lower())
        else:
            strips.append(strip(metric, points, limits))
    return strips, ", ".join(zeros)


def page_of(result: RunResult, calls: Calls) -> Page:
    """Return the page of a run. A call without a recording has its figures and no picture."""
    scenarios = [_scenario(number, one, calls) for number, one in enumerate(result.scenarios)]
    one = result.scenarios[0] if len(result.scenarios) == 1 else None
    verdict, line, reasons = verdict_words(result)
    return Page(
        title=one.name if one else f"{len(scenarios)} scenarios",
        lead=one.description if one else "",
        facts=_facts(result),
        verdict=verdict,
        verdict_line=line,
        reasons=reasons,
        notices=_notices(result),
        scenarios=scenarios,
        tiles=tiles_of(scenarios),
    )


def verdict_words(result: RunResult) -> tuple[GateVerdict, str, list[str]]:
    """Return the verdict on a run, in a line, and the reasons for it."""
    gates = result.gates
    missed = [(name, gate) for name, gate in gates if gate.verdict == "missed"]
    unmeasured = sum(gate.verdict == "not_measurable" for _, gate in gates)
    match exit_code(result):
        case 0:
            judged = len(gates) - unmeasured
            line = f"All {judged} gates are met" if judged > 1 else "The gate is met"
            return "met", line, [f"{unmeasured} could not be measured."] if unmeasured else []
        case 1:
            are = "is" if len(missed) == 1 else "are"
            more = [f"And {len(missed) - 3} more."] if len(missed) > 3 else []
            several = len(result.scenarios) > 1
            reasons = [_missed_words(name if several else "", gate) for name, gate in missed[:3]]
            return "missed", f"{len(missed)} of {len(gates)} gates {are} missed", reasons + more
    return "not_measurable", "This run says nothing about the server", [shortened(why_not_measurable(result), 400)]


def _missed_words(scenario: str, gate: GateResult) -> str:
    found = statistic_amount(gate.metric, gate.statistic, gate.value or 0.0)
    limit = statistic_amount(gate.metric, gate.statistic, gate.limit)
    how = STATISTICS.get(gate.statistic, gate.statistic)
    return f"{f'{scenario}: ' if scenario else ''}{words_of(gate.metric).title}, {how}: {found}; limit {limit}."


def shown_address(url: str) -> str:
    """Return an address without a name, a password and a query: those may be secrets."""
    if url.startswith("planted:"):
        return url
    try:
        parts = urlsplit(url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    except ValueError:
        return "an address that cannot be shown"


def _facts(result: RunResult) -> list[tuple[str, str, bool]]:
    calls = sum(len(one.calls) for one in result.scenarios)
    seeds = sorted({one.seed for one in result.scenarios})
    return [
        ("Server", shown_address(result.url) or "not named", True),
        ("Dialect", result.dialect or "not named", False),
        ("Calls", str(calls), False),
        ("Clock", "virtual" if result.virtual else "real time", False),
        ("Seed" if len(seeds) == 1 else "Seeds", ", ".join(map(str, seeds[:6])), False),
    ]


def _notices(result: RunResult) -> list[str]:
    """Return what a reader must know before the figures."""
    counts: Counter[str] = Counter()
    for one in result.scenarios:
        counts.update(step.result for call in one.calls for step in call.steps)
    steps = sum(counts.values())
    said = {
        "late": "the tester was late: they are not judged",
        "nothing_to_interrupt": "there was nothing to interrupt",
        "not_in_dialect": "the dialect cannot do what the scenario asks",
        "not_reached": "the call ended before",
    }
    found = [f"{counts[kind]} of {steps} steps: {words}." for kind, words in said.items() if counts[kind]]
    return [" ".join(found)] if found else []


def _scenario(number: int, result: ScenarioResult, recordings: Calls) -> ScenarioSection:
    gated: dict[str, dict[str, float]] = {}
    for gate in result.gates:
        gated.setdefault(gate.metric, {})[gate.statistic] = gate.limit
    limits = {metric: min(by_statistic.values()) for metric, by_statistic in gated.items()}
    calls = [
        _call(f"call-{number}-{one.repeat}", result.name, one, recordings.get((result.name, one.repeat)), limits)
        for one in result.calls
    ]
    names = {step.number: step.name for one in result.calls for step in one.steps}
    strips, zeros = strips_of(calls, names, gated)
    verdict, line = _scenario_words(result)
    return ScenarioSection(result.name, result.description, verdict, line, _gates(result.gates), calls, strips, zeros)


def _scenario_words(result: ScenarioResult) -> tuple[GateVerdict, str]:
    """Return the verdict on a scenario, and what is behind it."""
    if any(call.failure for call in result.calls):
        return "not_measurable", "a call could not be held"
    missed = [gate for gate in result.gates if gate.verdict == "missed"]
    if missed:
        return "missed", " ".join(_missed_words("", gate) for gate in missed[:3])
    met = sum(gate.verdict == "met" for gate in result.gates)
    return (
        ("met", f"{met} of {len(result.gates)} gates measured") if met else ("not_measurable", "no gate was measured")
    )


def _gates(gates: Sequence[GateResult]) -> list[Gate]:
    """Return the lines of the gate table, in the order in which the metrics are described."""
    order = {metric: number for number, metric in enumerate(WORDS)}
    return [_gate(gate) for gate in sorted(gates, key=lambda one: order.get(one.metric, len(order)))]


def _gate(gate: GateResult) -> Gate:
    return Gate(
        title=words_of(gate.metric).title,
        how=STATISTICS.get(gate.statistic, gate.statistic),
        code=f"{gate.metric}.{gate.statistic}",
        limit=statistic_amount(gate.metric, gate.statistic, gate.limit),
        measured="–" if gate.value is None else statistic_amount(gate.metric, gate.statistic, gate.value),
        n=gate.n,
        interval=interval_words(gate.metric, gate.statistic, gate.low, gate.high),
        verdict=gate.verdict,
        note=gate.reason,
    )


def _call(
    place: str, scenario: str, result: CallResult, recording: Recording | None, limits: Mapping[str, float]
) -> CallSection:
    figures: dict[int, Figures] = {step.number: step.values for step in result.steps}
    steps = [
        StepView(
            number=step.number,
            name=shortened(step.name, 80) or f"step {step.number + 1}",
            means=MEANINGS[step.means],
            begins=begins(recording, step.number),
            result=RESULTS[step.result],
            chips=step_chips(step.values, limits),
        )
        for step in result.steps
    ]
    file = f"calls/{call_folder(scenario, result.repeat)}/call.wav" if recording is not None else ""
    return call_section(place, result.repeat + 1, result.failure, recording, figures, steps, limits, file)
