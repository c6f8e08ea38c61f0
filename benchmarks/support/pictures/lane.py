"""Read an engine's trace, and draw which requests were in which step while a critical request came."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from support.pictures.drawing import BLUE, FAINT, INK, PALE, RED, RULE, sheet, text

from voxlane.engine.loop.trace import REQUESTS

WIDTH, LEFT, RIGHT, TOP, LANE, BAR = 920, 86, 24, 92, 19, 13  # pixels
BEFORE_MS, AFTER_MS, TICK_MS = 500.0, 350.0, 250  # shown around the critical request
TONES = {"prefill": BLUE, "decode": PALE, "queued": "#d9d6cd"}  # queued: paused too
CRITICAL = {"prefill": RED, "decode": "#f0894a", "queued": "#f3c9ae"}


@dataclass(slots=True)
class Lane:
    """One request: its name in the trace, and its spans as (what, start, stop) in milliseconds."""

    name: str
    spans: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def critical(self) -> bool:
        """Whether the request was critical."""
        return self.name.startswith("critical")

    @property
    def arrival(self) -> float:
        """When the request arrived."""
        return min(start for _, start, _ in self.spans)


def read(path: Path) -> list[Lane]:
    """Return the lanes of a trace, critical ones first, then in order of arrival; the file may lack its end."""
    text = path.read_text(encoding="utf-8").rstrip()
    events = json.loads(text if text.endswith("]") else text.rstrip(",") + "]")
    lanes: dict[int, Lane] = {}
    for event in events:
        if event["pid"] != REQUESTS or not event["tid"]:
            continue
        if event["ph"] == "M":
            lanes[event["tid"]] = Lane(event["args"]["name"])
        else:
            start = event["ts"] / 1e3
            lanes[event["tid"]].spans.append((event["name"].split()[0], start, start + event["dur"] / 1e3))
    return sorted(lanes.values(), key=lambda lane: (not lane.critical, lane.arrival))


def draw(lanes: list[Lane], where: str) -> str:
    """Return the picture."""
    critical = lanes[0]
    if not critical.critical:
        raise SystemExit("there is no critical request in this trace")
    first_token = max(stop for what, _, stop in critical.spans if what == "prefill")
    begin = max(min(lane.arrival for lane in lanes), critical.arrival - BEFORE_MS)
    end = max(stop for _, _, stop in critical.spans) + AFTER_MS
    scale = (WIDTH - LEFT - RIGHT) / (end - begin)
    shown = [lane for lane in lanes if any(start < end and stop > begin for _, start, stop in lane.spans)]
    bottom = TOP + LANE * len(shown) + 4

    def x(at: float) -> float:
        return LEFT + (min(max(at, begin), end) - begin) * scale

    seen = {_kind(what) for lane in shown for what, start, stop in lane.spans if x(stop) - x(start) > 1}
    parts = [
        text(20, 30, "A critical request comes into a full engine", size=17, fill=INK, weight=600),
        text(20, 50, f"{len(lanes) - 1} requests, {where}"),
        *legend(500, 26, seen),
    ]
    for tick in range(0, int(end - begin) + 1, TICK_MS):
        at = x(begin + tick)
        parts.append(f'<path d="M{at:.1f} {TOP - 4}V{bottom}" stroke="{RULE}"/>')
        parts.append(text(at, bottom + 16, str(tick), anchor="middle"))
    parts.append(text(LEFT, bottom + 34, "milliseconds; a gap is a step that the request was not in"))
    for row, lane in enumerate(shown):
        y = TOP + row * LANE
        name = "critical" if lane.critical else f"request {row}"
        tones = CRITICAL if lane.critical else TONES
        ink = CRITICAL["prefill"] if lane.critical else FAINT
        parts.append(text(LEFT - 8, y + BAR - 2, name, anchor="end", fill=ink, weight=600 if lane.critical else 400))
        for what, start, stop in lane.spans:
            left, right = x(start), x(stop)
            if right - left > 0.1:
                thin = _kind(what) == "queued"
                box = f'x="{left:.1f}" y="{y + (5 if thin else 0)}" height="{3 if thin else BAR}"'
                width = right - left if thin else max(right - left - 1, 0.8)
                parts.append(f'<rect {box} width="{width:.1f}" fill="{tones[_kind(what)]}"/>')
    wait = f"first token after {first_token - critical.arrival:.0f} ms"
    for at, label, anchor, nudge in ((critical.arrival, "arrives", "end", -5), (first_token, wait, "start", 5)):
        dash = f'stroke="{CRITICAL["prefill"]}" stroke-dasharray="3 3"'
        parts.append(f'<path d="M{x(at):.1f} {TOP - 18}V{bottom}" {dash}/>')
        parts.append(text(x(at) + nudge, TOP - 10, label, anchor=anchor, fill=CRITICAL["prefill"], weight=600))
    return sheet(WIDTH, bottom + 46, parts)


def _kind(what: str) -> str:
    return what if what in ("prefill", "decode") else "queued"


def legend(left: float, y: float, seen: set[str]) -> list[str]:
    """Return the meaning of the visible colours."""
    parts: list[str] = []
    for line, (tones, who) in enumerate(((TONES, "others:"), (CRITICAL, "critical:"))):
        at = y + line * 20
        parts.append(text(left + 60, at, who, anchor="end"))
        for index, (what, fill) in enumerate((what, fill) for what, fill in tones.items() if what in seen):
            place, thin = left + 70 + index * 88, what == "queued"
            box = f'y="{at - (6 if thin else 10)}" width="14" height="{3 if thin else 12}"'
            parts += [f'<rect x="{place}" {box} fill="{fill}"/>', text(place + 20, at, what)]
    return parts
