"""The tables and bars of gpu_tts.py, whose page explains the columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from support.common import table
from support.figures import in_shares
from support.tts import peers as tts_peers
from support.tts.load import Heard
from support.tts.mixed import Barged

FIRST_BARS_MS = {10.0: 50.0, 20.0: 80.0}
STREAMS_BAR = 64
BARRED = "1.7b"
HEADER = (
    "voice",
    "load",
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
    """The figures of one load of one voice."""

    size: str
    load: str
    streams: int
    open: float
    heard: Heard
    steps: dict[str, float]
    engine_cpu: float
    listeners_cpu: float
    barged: Barged | None = None


def summary(rows: Sequence[Row], peers: dict[str, list[tts_peers.Figure]]) -> None:
    """Print the tables."""
    cells = [
        [
            *(row.size, row.load, f"{row.open:.1f}", str(row.heard.asked)),
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
    barged = [(row, row.barged) for row in rows if row.barged is not None]
    if barged:
        header = ["voice", "load", "cut in", "silence", "gone", "packets after", "words", "tokens/s", "heard"]
        lines = [
            [
                *(row.size, row.load, str(one.cuts), in_shares(one.silence_ms), in_shares(one.gone_ms), str(one.late)),
                *(in_shares(one.words_ms), f"{one.tokens_per_s:.0f}", f"{one.heard_share:.0%}"),
            ]
            for row, one in barged
        ]
        table("barge-in under load, milliseconds from Pause, p50 / p95 / p99", header, lines)
    if peers:
        header = ["voice", "peer", "streams", "at a time", "first", "frame", "× real"]
        lines = [[size, *cells] for size, figures in peers.items() for cells in tts_peers.rows(figures)]
        table("peers, one at a time, milliseconds", header, lines)


def bars(rows: Sequence[Row], failed: Sequence[str] = ()) -> list[str]:
    """Return the bars and whether they are met; a size with a failure does not meet those for streams."""
    lines = []
    for rate, bar in FIRST_BARS_MS.items():
        for row in rows:
            if row.size == BARRED and row.load == f"{rate:g}/s":
                found = row.heard.first_ms.get("p95", float("inf")) if not row.heard.unserved else float("inf")
                lines.append(f"{row.size} at {rate:g} requests a second: p95 {found:.1f} ms (< {bar:g}): {found < bar}")
    for size in dict.fromkeys(row.size for row in rows):
        levels = sorted(
            (row for row in rows if row.size == size and "listeners" in row.load), key=lambda row: row.streams
        )
        fine = [row.streams for row in itertools.takewhile(lambda row: _kept_up(row.heard), levels)]
        most = fine[-1] if fine and size not in failed else 0
        lines.append(f"{size}: {most} listeners without an underrun (>= {STREAMS_BAR}): {most >= STREAMS_BAR}")
    return lines


def _kept_up(heard: Heard) -> bool:
    """Return whether all requests were served, and there were listeners and no underruns."""
    return heard.listeners > 0 and not heard.unserved and not heard.underruns
