"""The tables and bars of gpu_tts.py, whose page explains the columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from support.common import table
from support.figures import in_shares
from support.tts import peers as tts_peers
from support.tts.load import Heard

STREAMS_BAR = 64
HEADER = (
    "voice",
    "listeners",
    "open",
    "asked",
    "first",
    "frame",
    "× real",
    "underruns",
    "left",
    "step",
    "rows",
    "engine",
    "own",
)


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of so many listeners of one voice."""

    size: str
    listeners: int
    open: float
    heard: Heard
    steps: dict[str, float]
    engine_cpu: float
    listeners_cpu: float


def summary(rows: Sequence[Row], peers: dict[str, list[tts_peers.Figure]]) -> None:
    """Print the tables."""
    cells = [
        [
            *(row.size, str(row.listeners), f"{row.open:.1f}", str(row.heard.asked)),
            *(in_shares(row.heard.first_ms), in_shares(row.heard.frame_ms)),
            f"{row.heard.pace_p50:.1f}, {row.heard.pace_min:.1f}" if row.heard.paces else "",
            f"{row.heard.underruns} ({row.heard.dry} of {row.heard.listeners})",
            " / ".join(f"{left:.0f}" for left in row.heard.left_ms.values()),
            f"{row.steps['step_ms']:.1f}, {row.steps['longest_step_ms']:.1f}",
            f"{row.steps['rows']:.1f}",
            *(f"{row.engine_cpu:.2f}", f"{row.listeners_cpu:.2f}"),
        ]
        for row in rows
    ]
    table("codec-frame voices (Qwen3-TTS shapes, random weights), milliseconds p50 / p95 / p99", HEADER, cells)
    if peers:
        header = ["voice", "peer", "streams", "at a time", "first", "frame", "× real"]
        lines = [[size, *cells] for size, figures in peers.items() for cells in tts_peers.rows(figures)]
        table("peers, one at a time, milliseconds", header, lines)


def bars(rows: Sequence[Row], failed: Sequence[str] = ()) -> list[str]:
    """Return the bars and whether they are met; a size with a failure does not meet those for streams."""
    lines = []
    for size in dict.fromkeys(row.size for row in rows):
        levels = sorted((row for row in rows if row.size == size), key=lambda row: row.listeners)
        fine = [row.listeners for row in itertools.takewhile(lambda row: _kept_up(row.heard), levels)]
        most = fine[-1] if fine and size not in failed else 0
        lines.append(f"{size}: {most} listeners without an underrun (>= {STREAMS_BAR}): {most >= STREAMS_BAR}")
    return lines


def _kept_up(heard: Heard) -> bool:
    """Return whether all requests were served, and there were listeners and no underruns."""
    return heard.listeners > 0 and not heard.unserved and not heard.underruns
