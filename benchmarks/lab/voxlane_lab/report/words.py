"""The metrics, statistics and verdicts in words, as people read them in a report. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from voxlane_lab.definitions import METRICS
from voxlane_lab.values import Meaning, StepResult

Anchor = Literal["first", "last", "none"]
"""From which voiced sample of the step a duration counts; none: it is an amount, not a stretch of time."""


@dataclass(frozen=True, slots=True)
class MetricWords:
    """A metric in words."""

    title: str
    meaning: str
    short: str  # beside its place in a call
    anchor: Anchor = "none"


WORDS: dict[str, MetricWords] = {
    "yield_ms": MetricWords(
        "Time to yield", "from the person's first sound to the last of the old response", "yields after", "first"
    ),
    "mute_ms": MetricWords(
        "Time to silence", "from the person's first sound to a loudspeaker that plays nothing", "silent after", "first"
    ),
    "duck_ms": MetricWords(
        "Time to lower", "from the person's first sound to a lowered voice", "lowered after", "first"
    ),
    "pause_ms": MetricWords("Pause", "silence in a response that should have gone on", "paused for"),
    "skipped_ms": MetricWords(
        "Skipped sound", "sound of the response that was lost over a murmur or a noise", "skipped"
    ),
    "repeated_ms": MetricWords("Repeated sound", "sound of the response that was played twice", "repeated"),
    "false_stop": MetricWords("False stops", "the agent stopped for a sound that means nothing", "false stop"),
    "missed": MetricWords("Missed interruptions", "the agent went on though it was told to stop", "not stopped"),
    "talk_over_ms": MetricWords("Talking over", "both audible after the person began to interrupt", "talks over for"),
    "response_ms": MetricWords(
        "Time to answer", "from the person's last sound to the first of the new response", "answers after", "last"
    ),
    "first_byte_ms": MetricWords(
        "Time to first sound on the wire",
        "from the person's last sound to its arrival",
        "first sound arrives after",
        "last",
    ),
    "cut_off": MetricWords("Cut off", "the agent answered before the person had finished", "cut off"),
    "split_turns": MetricWords("Split turns", "responses to one turn with a pause in it", "responses"),
    "stale_ms": MetricWords("Stale sound at the ear", "sound of the old response after it had yielded", "stale"),
    "stale_wire_ms": MetricWords(
        "Stale sound on the wire", "sound of the old response that came after its end", "stale on the wire"
    ),
    "answered_twice": MetricWords("Answered twice", "a second answer that was not asked for", "answered twice"),
    "unanswered": MetricWords("Unanswered", "no answer came", "unanswered"),
    "unasked": MetricWords("Unasked answers", "the agent answered a sound that means nothing", "unasked answer"),
    "memory_wrong": MetricWords("Wrong memory", "the agent does not know what was heard of it", "memory wrong"),
    "history_extra_words": MetricWords(
        "Remembered and not heard", "numbers that the server's history keeps beyond those played", "unheard words kept"
    ),
    "history_missing_words": MetricWords(
        "Heard and not remembered", "numbers that were played and that the history does not keep", "heard words lost"
    ),
    "floor_ms": MetricWords(
        "Double talk", "from the person's first sound until one of the two speaks", "one speaks after", "first"
    ),
}
FLAGS = frozenset(name for name, metric in METRICS.items() if metric.kind == "flag")
ABOUT_THE_TESTER = frozenset({"late_ms"})
"""Figures that say nothing of the server: the page does not show them beside the others."""

STATISTICS = {
    "p50": "in half of the cases",
    "p95": "in 95 of 100 cases",
    "max": "in the worst case",
    "min": "in the best case",
    "mean": "on average",
    "share": "share of cases",
}
MEANINGS: dict[Meaning, str] = {
    "turn": "a turn",
    "stop": "an interruption",
    "nothing": "must change nothing",
}
RESULTS: dict[StepResult, str] = {
    "done": "",
    "nothing_to_interrupt": "There was nothing to interrupt.",
    "not_in_dialect": "The dialect cannot do this.",
    "late": "The tester was late: this step is not judged.",
    "not_reached": "The call ended before.",
}


def words_of(metric: str) -> MetricWords:
    """Return a metric in words; one that is not known goes by its name."""
    return WORDS.get(metric) or MetricWords(metric, "", metric)


COUNTS = frozenset(name for name, metric in METRICS.items() if metric.kind == "count")


def amount(metric: str, value: float) -> str:
    """Return a figure of one step with its unit."""
    if metric.endswith("_ms"):
        return f"{round(value):,} ms"
    return f"{value:g}"


def statistic_amount(metric: str, statistic: str, value: float) -> str:
    """Return a figure of a whole run with its unit."""
    return f"{value * 100:.3g} %" if statistic == "share" else amount(metric, value)


def interval_words(metric: str, statistic: str, low: float | None, high: float | None) -> str:
    """Return an interval as 1–24 %; "–": there is none."""
    if low is None or high is None:
        return "–"
    if statistic == "share":
        return f"{low * 100:.0f}–{high * 100:.0f} %"
    return f"{amount(metric, low).removesuffix(' ms')}–{amount(metric, high)}"
