"""Draw conversations within their targets over conversations offered, a line for each policy."""

from __future__ import annotations

from typing import Any

from support.pictures.drawing import BLUE, FAINT, INK, RED, RULE, sheet, text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 920, 440, 64, 150, 76, 52  # pixels
TONES = {"deadline": RED, "priority": BLUE, "fcfs": "#9a9587"}
LABEL_GAP = 16  # between two lines' names

Levels = dict[str, list[dict[str, Any]]]


def held(level: dict[str, Any]) -> float:
    """Return how many of the offered sessions were within targets, scaled from those that were judged."""
    return float(level["sessions"] * level["good"] / max(1, level["judged"]))


def draw(levels: Levels, where: str) -> str:
    """Return the picture."""
    most = max(int(level["sessions"]) for found in levels.values() for level in found)
    tick = next(size for size in (1, 2, 5, 10, 20, 32, 64, 128, 256) if most / size <= 8)

    def x(sessions: float) -> float:
        return LEFT + sessions * (WIDTH - LEFT - RIGHT) / most

    def y(sessions: float) -> float:
        return HEIGHT - BOTTOM - sessions * (HEIGHT - TOP - BOTTOM) / most

    parts = [
        text(20, 28, "Conversations within their targets", size=17, fill=INK, weight=600),
        text(20, 46, f"{where}; first sound of a reply in 300 ms, no gap in it, interruptions in force in 25 ms"),
    ]
    for sessions in range(0, most + 1, tick):
        at, up = x(sessions), y(sessions)
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}M{LEFT} {up:.1f}H{WIDTH - RIGHT}" stroke="{RULE}"/>')
        parts += [text(at, HEIGHT - BOTTOM + 18, str(sessions), anchor="middle")]
        parts += [text(LEFT - 8, up + 4, str(sessions), anchor="end")]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "sessions offered", anchor="middle"))
    parts.append(f'<path d="M{x(0)} {y(0)}L{x(most)} {y(most)}" stroke="{FAINT}" stroke-dasharray="3 4"/>')
    labels = {"all of them": (x(most) + 8, y(most) + 4, FAINT)}
    for policy, found in levels.items():
        points = [(x(level["sessions"]), y(held(level))) for level in found]
        path = "L".join(f"{at:.1f} {up:.1f}" for at, up in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{TONES[policy]}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{at:.1f}" cy="{up:.1f}" r="3.5" fill="{TONES[policy]}"/>' for at, up in points]
        labels[policy] = (points[-1][0] + 8, points[-1][1] + 4, TONES[policy])
    return sheet(WIDTH, HEIGHT, [*parts, *names(labels)])


def names(labels: dict[str, tuple[float, float, str]]) -> list[str]:
    """Return the names of the lines, moved apart where they would overlap."""
    parts: list[str] = []
    last = float(TOP - LABEL_GAP)
    for name, (at, up, tone) in sorted(labels.items(), key=lambda label: label[1][1]):
        last = max(up, last + LABEL_GAP)
        parts.append(text(at, last, name, size=13, fill=tone, weight=600))
    return parts
