"""Draw a barge-in as a timeline: what the loudspeaker played, what the server said, and when."""

from __future__ import annotations

from lane_picture import Lane

from voxlane.server.client import Event

WIDTH, HEIGHT, LEFT, RIGHT = 920, 390, 110, 24
INK, FAINT, PAPER, RULE = "#23303f", "#6b7785", "#fbfaf7", "#e4e1d9"
OUTPUT, CUT = "#4a6a94", "#b5300b"
BEFORE_S, AFTER_S = 1.0, 2.5
ROWS = {"microphone": 72, "loudspeaker": 122, "state": 172, "words": 212, "voice heard": 250}
ENGINE = {"hear": ("listens", 290), "decode": ("thinks", 312), "say": ("speaks", 334)}
TONES = {"hear": "#b5300b", "decode": "#a9bdd8", "prefill": "#4a6a94", "say": "#4a6a94"}


Levels = list[tuple[float, float]]


def draw(events: list[tuple[float, Event]], said: Levels, output: Levels, lanes: list[Lane], where: str) -> str:
    """Return the picture of the first interruption in some events."""
    cut = next(at for at, event in events if event.name == "interrupted")
    hold = max((at for at, event in events if event.name == "hold" and at <= cut), default=cut)
    report = next(event for at, event in events if event.name == "barge_in" and at >= hold)
    onset = hold - report["hold_ms"] / 1e3
    begin, end = onset - BEFORE_S, onset + AFTER_S

    def x(at: float) -> float:
        return LEFT + (min(max(at, begin), end) - begin) * (WIDTH - LEFT - RIGHT) / (end - begin)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="{PAPER}"/>',
        _text(20, 28, "A person interrupts", 17, INK, 600),
        _text(20, 46, f"one session, {where}; milliseconds from the first sound of the interrupting word"),
    ]
    for tick in range(int(-BEFORE_S * 1000), int(AFTER_S * 1000) + 1, 500):
        at = x(onset + tick / 1e3)
        parts.append(f'<path d="M{at:.1f} 58V352" stroke="{RULE}"/>')
        parts.append(_text(at, 370, str(tick), anchor="middle"))
    for name, y in [*ROWS.items(), *((f"engine {name}", y - 6) for name, y in ENGINE.values())]:
        parts.append(_text(LEFT - 10, y + 14, name, anchor="end"))
    for levels, middle, colour in ((said, 82, CUT), (output, 132, OUTPUT)):
        for at, level in levels:
            if begin <= at <= end and level > 0:
                height = min(40.0, level / 32768 * 60)
                box = f'x="{x(at):.1f}" y="{middle - height / 2:.1f}" width="4" height="{height:.1f}"'
                parts.append(f'<rect {box} fill="{colour}"/>')
    states = [(at, event["name"]) for at, event in events if event.name == "state"]
    for (at, name), (until, _) in zip(states, [*states[1:], (end, "")], strict=False):
        if until > begin and at < end:
            left, right = x(at), x(until)
            colour = CUT if name == "held" else "#a9bdd8"
            width = max(1.0, right - left - 1)
            parts.append(f'<rect x="{left:.1f}" y="172" width="{width:.1f}" height="20" rx="3" fill="{colour}"/>')
            if right - left > 50:
                parts.append(_text(left + 5, 186, name, 11, INK))
    shown = -100.0
    for at, event in events:
        if event.name == "user_words" and onset <= at <= end and x(at) - shown > 90:
            shown = x(at)
            parts.append(_text(shown, 226, (event["settled"] + event["tail"])[-18:], 11, INK))
    for at, label in (
        (onset, "first sound"),
        (hold, f"hold {1e3 * (hold - onset):.0f}"),
        (cut, f"interrupted {1e3 * (cut - onset):.0f}"),
    ):
        parts.append(f'<path d="M{x(at):.1f} 58V352" stroke="{CUT}" stroke-dasharray="3 3"/>')
        anchor, nudge = ("end", -4) if label == "first sound" else ("start", 4)
        parts.append(_text(x(at) + nudge, 264 if "hold" not in label else 250, label, 11, CUT, 600, anchor))
    for lane in lanes:
        listens = any(what == "hear" for what, _, _ in lane.spans)
        for what, start_ms, stop_ms in lane.spans:
            if what in TONES and start_ms / 1e3 < end and stop_ms / 1e3 > begin:
                kind = "hear" if listens else "say" if what == "say" else "decode"
                left, right = x(start_ms / 1e3), x(stop_ms / 1e3)
                box = f'x="{left:.1f}" y="{ENGINE[kind][1]}" width="{max(0.8, right - left):.1f}" height="14"'
                parts.append(f'<rect {box} fill="{TONES["hear" if listens else what]}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(
    x: float, y: float, words: str, size: int = 12, fill: str = FAINT, weight: int = 400, anchor: str = "start"
) -> str:
    safe = words.replace("&", "&amp;").replace("<", "&lt;")
    style = f'font-size="{size}" fill="{fill}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y}" {style}>{safe}</text>'
