"""From the end of a spoken question to the first frame of the spoken answer, through a real server in real time.

The server's own voice speaks the questions, which are sent as a microphone sends them. The client takes the times; the
parts are the server's report: when it ended the turn, and had the words, a token, a sample, a frame. With 1 and with 4
sessions; the default models; no peer, but a bar.

Time: a minute and a half, most of it in real time.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from contextlib import AsyncExitStack

import numpy as np
from numpy.typing import NDArray
from support.command_line import command_line
from support.common import machine, table
from support.conversation import Person, person, server, spoken
from support.figures import percentile

QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue in the morning?",
    "Can you tell me something about the moon?",
    "How do I make a good cup of tea?",
    "What should I cook for dinner tonight?",
)
ROUNDS = 2
SESSIONS = (1, 4)
BAR_MS = 900.0
PARTS = ("turn_end_ms", "words_ms", "first_token_ms", "first_sample_ms", "first_frame_ms")


async def converse(
    somebody: Person, offset: int, clips: list[NDArray[np.int16]], rounds: int = ROUNDS
) -> list[dict[str, float]]:
    """Ask every question and return the times of each turn."""
    found = []
    await asyncio.sleep(0.5 + 0.7 * offset)
    for turn in range(rounds * len(clips)):
        since = len(somebody.events)
        somebody.speak(clips[(turn + offset) % len(clips)])
        first = await somebody.wait("audio", since, 30.0)
        if first is None:
            print(f"no answer to question {turn}", file=sys.stderr)
            continue
        await somebody.client.stop()
        report = await somebody.wait("latency", since, 5.0)
        times = {"voice_to_voice_ms": (first[0] - somebody.stopped_s) * 1e3}
        if report is not None:
            times |= {part: float(report[1][part]) for part in PARTS}
        found.append(times)
        await asyncio.sleep(0.5)
    return found


async def measure(
    url: str, sessions: int, clips: list[NDArray[np.int16]], rounds: int = ROUNDS
) -> list[dict[str, float]]:
    """Return the turns of several people who talk at the same time."""
    async with AsyncExitStack() as stack:
        people = [await stack.enter_async_context(person(url, max_tokens=60)) for _ in range(sessions)]
        talks = (converse(somebody, offset, clips, rounds) for offset, somebody in enumerate(people))
        results = await asyncio.gather(*talks)
    return [turn for result in results for turn in result]


def report(results: dict[int, list[dict[str, float]]], what: str) -> None:
    """Print the table of turns by the number of sessions."""
    rows = []
    for name in ("voice_to_voice_ms", *PARTS):
        cells = [name.removesuffix("_ms").replace("_", " ")]
        for turns in results.values():
            values = [turn[name] for turn in turns if name in turn]
            cells += [f"{statistics.median(values):.0f}", f"{percentile(values, 0.95):.0f}"]
        rows.append(cells)
    header = ["", *(f"{label}, {count} session{'s' * (count > 1)}" for count in results for label in ("p50", "p95"))]
    table(f"voice to voice, {what}: milliseconds from the last sound of the question", header, rows)


def main() -> None:
    """Measure and print the table."""
    command_line(__doc__).parse_args()
    with server() as url:
        clips = [spoken(url, question) for question in QUESTIONS]
        results = {sessions: asyncio.run(measure(url, sessions, clips)) for sessions in SESSIONS}
    report(results, machine())
    median = statistics.median(turn["voice_to_voice_ms"] for turn in results[1])
    print(f"  bar: {BAR_MS:.0f} ms with one session: {'met' if median <= BAR_MS else 'missed'}")


if __name__ == "__main__":
    main()
