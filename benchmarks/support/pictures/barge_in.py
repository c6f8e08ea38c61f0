"""Draw a barge-in as a timeline: the microphone, the loudspeaker, the server's messages and the engine's work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from support.pictures.drawing import BLUE, INK, PALE, PAPER, RED, RULE, sheet, text
from support.pictures.lane import Lane

from voxlane.server.client import Event

WIDTH, HEIGHT, LEFT, RIGHT = 920, 390, 110, 24
BEFORE_S, AFTER_S = 1.0, 2.5
ROWS = {"microphone": 72, "loudspeaker": 122, "state": 172, "words": 212, "moments": 250}
ENGINE = {"hear": ("listens", 290), "decode": ("thinks", 312), "say": ("speaks", 334)}
TONES = {"hear": RED, "decode": PALE, "prefill": BLUE, "say": BLUE}

Levels = list[tuple[float, float]]
Events = list[tuple[float, Event]]


@dataclass(frozen=True, slots=True)
class Span:
    """The time that is drawn, in seconds of the client's clock."""

    onset: float  # the first sound of the interrupting word
    duck: float  # when the reply was lowered; `hold` if it was not
    hold: float
    cut: float

    @classmethod
    def of(cls, events: Events) -> Span:
        """Return the time around the first interruption in the events."""
        cut = next(at for at, event in events if event.name == "interrupted")
        hold = max((at for at, event in events if event.name == "hold" and at <= cut), default=cut)
        told, report = next((at, event) for at, event in events if event.name == "barge_in" and event["committed"])
        onset = told - report["verdict_ms"] / 1e3
        duck = min((at for at, event in events if event.name == "duck" and onset <= at <= hold), default=hold)
        return cls(onset, duck, hold, cut)

    @property
    def begin(self) -> float:
        """When it begins."""
        return self.onset - BEFORE_S

    @property
    def end(self) -> float:
        """When it ends."""
        return self.onset + AFTER_S

    def x(self, at: float) -> float:
        """Return the x coordinate of a moment."""
        share = (min(max(at, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def draw(events: Events, said: Levels, output: Levels, lanes: list[Lane], where: str) -> str:
    """Return the picture of the first interruption in the events."""
    span = Span.of(events)
    parts = [
        text(20, 28, "A person interrupts", size=17, fill=INK, weight=600),
        text(20, 46, f"one session, {where}; milliseconds from the first sound of the interrupting word"),
    ]
    for tick in range(int(-BEFORE_S * 1000), int(AFTER_S * 1000) + 1, 500):
        at = span.x(span.onset + tick / 1e3)
        parts.append(f'<path d="M{at:.1f} 58V352" stroke="{RULE}"/>')
        parts.append(text(at, 370, str(tick), anchor="middle"))
    for name, y in [*ROWS.items(), *((f"engine {name}", y - 6) for name, y in ENGINE.values())]:
        parts.append(text(LEFT - 10, y + 14, name, anchor="end"))
    parts += [*_levels(span, said, 82, RED), *_levels(span, output, 132, BLUE)]
    parts += [*_states(span, events), *_words(span, events), *_moments(span), *_engine(span, lanes)]
    return sheet(WIDTH, HEIGHT, parts)


def _levels(span: Span, levels: Levels, middle: int, colour: str) -> Iterator[str]:
    for at, level in levels:
        if span.begin <= at <= span.end and level > 0:
            height = min(40.0, level / 32768 * 60)
            box = f'x="{span.x(at):.1f}" y="{middle - height / 2:.1f}" width="4" height="{height:.1f}"'
            yield f'<rect {box} fill="{colour}"/>'


def _states(span: Span, events: Events) -> Iterator[str]:
    states = [(at, event["name"]) for at, event in events if event.name == "state"]
    for (at, name), (until, _) in zip(states, [*states[1:], (span.end, "")], strict=False):
        if until > span.begin and at < span.end:
            left, right = span.x(at), span.x(until)
            colour = RED if name == "held" else PALE
            width = max(1.0, right - left - 1)
            yield f'<rect x="{left:.1f}" y="172" width="{width:.1f}" height="20" rx="3" fill="{colour}"/>'
            if right - left > 50:
                yield text(left + 5, 186, name, size=11, fill=PAPER if name == "held" else INK)


def _words(span: Span, events: Events) -> Iterator[str]:
    place, shown = -100.0, ""
    for at, event in events:
        if event.name != "user_words" or not span.onset <= at <= span.end:
            continue
        words = _end_of(event["settled"] + event["tail"])
        if words != shown and span.x(at) - place > 110:
            place, shown = span.x(at), words
            yield text(place + 4, 226, words, size=11, fill=INK)


def _end_of(words: str, most: int = 18) -> str:
    """Return the last whole words that fit."""
    if len(words) <= most:
        return words
    return f"… {words[-most:].partition(' ')[2]}"


def _moments(span: Span) -> Iterator[str]:
    moments = [(span.onset, ""), (span.duck, "duck"), (span.hold, "hold"), (span.cut, "interrupted")]
    for at, name in moments[:1] + moments[1 + (span.duck == span.hold) :]:
        yield f'<path d="M{span.x(at):.1f} 58V352" stroke="{RED}" stroke-dasharray="3 3"/>'
        label = f"{name} {1e3 * (at - span.onset):.0f}" if name else "first sound"
        anchor, nudge = ("start", 4) if name else ("end", -4)
        yield text(span.x(at) + nudge, 264, label, size=11, fill=RED, weight=600, anchor=anchor)


def _engine(span: Span, lanes: list[Lane]) -> Iterator[str]:
    for lane in lanes:
        listens = any(what == "hear" for what, _, _ in lane.spans)
        for what, start_ms, stop_ms in lane.spans:
            if what in TONES and start_ms / 1e3 < span.end and stop_ms / 1e3 > span.begin:
                kind = "hear" if listens else "say" if what == "say" else "decode"
                left, right = span.x(start_ms / 1e3), span.x(stop_ms / 1e3)
                box = f'x="{left:.1f}" y="{ENGINE[kind][1]}" width="{max(0.8, right - left):.1f}" height="14"'
                yield f'<rect {box} fill="{TONES["hear" if listens else what]}"/>'
