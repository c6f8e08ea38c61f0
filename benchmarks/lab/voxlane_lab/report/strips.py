"""Distributions for the page: where the dots, ticks and limits of a metric lie, in percent of the plot. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voxlane_lab.report.words import FLAGS, amount, interval_words, words_of
from voxlane_lab.summary import distribution, share_of

ROW_PX, FLOOR_PX, ROWS = 8, 27, 4
CLOSE = 1.6
"""Dots that are nearer than this, in percent, lie above each other."""


@dataclass(frozen=True, slots=True)
class Point:
    """A figure of one step of one call."""

    call: str  # the call's place on the page
    repeat: int
    step: str
    value: float


@dataclass(frozen=True, slots=True)
class Dot:
    """A point on the page."""

    call: str
    repeat: int
    label: str
    over: bool
    x: float
    up: int


@dataclass(frozen=True, slots=True)
class Sign:
    """A tick or a limit on the page."""

    kind: str
    text: str
    x: float
    slide: int  # how far its text is moved to the left, in percent of the text's width


@dataclass(frozen=True, slots=True)
class Strip:
    """The distribution of one metric."""

    title: str
    meaning: str
    flag: bool
    dots: list[Dot]
    ticks: list[Sign]
    limits: list[Sign]
    numbers: list[tuple[str, str]]
    near: bool  # whether the plot's zero is written
    far: str  # what is written at the plot's end


def strip(metric: str, points: Sequence[Point], limits: Mapping[str, float]) -> Strip:
    """Return the distribution of a metric; `limits` go by the statistic's name."""
    words, flag = words_of(metric), metric in FLAGS
    values = [point.value for point in points]
    top = _nice(max([*values, *limits.values(), 1.0]) * 1.04)
    lines = [_sign(name, f"limit {amount(metric, value)}", value / top) for name, value in limits.items()]
    ends = [line.x for line in lines]
    return Strip(
        title=words.title,
        meaning=words.meaning,
        flag=flag,
        dots=_dots(metric, points, min(limits.values(), default=math.inf), top),
        ticks=[] if flag or len(values) < 2 else _ticks(values, top),
        limits=[] if flag else lines,
        numbers=_numbers(metric, values),
        near=all(x > 22 for x in ends),
        far=amount(metric, top) if all(x < 72 for x in ends) else "",
    )


def _nice(value: float) -> float:
    """Return a round number that is not smaller."""
    scale = 10.0 ** math.floor(math.log10(value))
    return next(
        float(step * scale) for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * scale >= value * 0.999
    )


def _sign(kind: str, text: str, share: float) -> Sign:
    x = round(share * 100, 2)
    return Sign(kind, text, x, 0 if x < 8 else -100 if x > 92 else -50)


def _ticks(values: Sequence[float], top: float) -> list[Sign]:
    found = distribution(values)
    low, high = _sign("p50", "p50", found.p50 / top), _sign("p95", "p95", found.p95 / top)
    if high.x - low.x < 9:  # the two words would lie on each other
        near_zero = low.x < 6
        low = Sign(low.kind, low.text, low.x, 0 if near_zero else -100)
        high = Sign(high.kind, high.text, high.x, 110 if near_zero else 0)
    return [low, high]


def _dots(metric: str, points: Sequence[Point], limit: float, top: float) -> list[Dot]:
    placed: list[Dot] = []
    for point in sorted(points, key=lambda one: one.value if metric not in FLAGS else one.repeat):
        x = round(point.value / top * 100, 2)
        near = sum(abs(dot.x - x) < CLOSE for dot in placed)
        over = bool(point.value) if metric in FLAGS else point.value > limit
        placed.append(Dot(point.call, point.repeat, _label(metric, point), over, x, _height(near)))
    return placed


def _height(near: int) -> int:
    return FLOOR_PX + ROW_PX * (near % ROWS)


def _label(metric: str, point: Point) -> str:
    said = ("yes" if point.value else "no") if metric in FLAGS else amount(metric, point.value)
    return f"Call {point.repeat}, {point.step}: {said}"


def _numbers(metric: str, values: Sequence[float]) -> list[tuple[str, str]]:
    if metric in FLAGS:
        found = share_of(sum(map(bool, values)), len(values))
        return [("", f"{found.hits} of {found.n}"), ("95 %", interval_words(metric, "share", found.low, found.high))]
    measured = distribution(values)
    bare = {"p50": measured.p50, "p95": measured.p95, "max": measured.max}
    return [
        *((name, amount(metric, value).removesuffix(" ms")) for name, value in bare.items()),
        ("n", str(measured.n)),
    ]
