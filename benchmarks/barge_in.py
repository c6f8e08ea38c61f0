"""Interruptions through a real server in real time: how soon a reply stops, and whether only words stop it.

People let the assistant talk and interrupt it at random moments. The client takes the time from the first sample of the
interrupting word that it sent until `duck` or `hold` came, and until `interrupted` came. Then the same people cough,
click and say "mhm"; a reply that ends for such a sound is a false interruption. The default models; 1, 4 and 8
sessions; 40 interruptions with each, and 50 other sounds. There is no peer, but there are bars. Writes barge_in.json
and docs/img/barge-in.svg.

Time: six minutes, most of it in real time.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from support.command_line import command_line
from support.common import machine, table
from support.conversation import RATE, Person, person, server, spoken
from support.figures import percentile
from support.pictures.barge_in import draw
from support.pictures.lane import Lane, read

from voxlane.codecs.pcm import quantise

Sound = NDArray[np.int16]

INTERRUPTIONS = (
    "Stop, that is enough.",
    "No, I meant something else.",
    "Wait a moment, please.",
    "What about the weather tomorrow?",
    "Sorry, can you repeat that?",
)
BACKCHANNELS = ("Mm-hmm.", "Yeah.", "Right.", "Okay.", "Uh-huh.")
PROMPT = "Tell me a long story about a ship that sails around the world."
SESSIONS = (1, 4, 8)
PER_COUNT = 40  # barge-ins with each number of sessions: about a hundred in all
FALSE_CLIPS = 50
HOLD_BAR_MS, MISSED_BAR, FALSE_BAR = 80.0, 0.02, 0.10
RESULT = Path("barge_in.json")
PICTURE = Path(__file__).parent.parent / "docs" / "img" / "barge-in.svg"


@dataclass(frozen=True)
class Attempt:
    """One sound that was made while the assistant talked; -1: did not happen."""

    kind: str
    hold_ms: float  # until the reply was lowered or held
    commit_ms: float
    release_ms: float
    quiet_ms: float  # until the loudspeaker fell silent
    stale_frames: int  # audio of the old epoch after `interrupted`


def noises() -> dict[str, Sound]:
    """Return sounds that are not words."""
    chance = np.random.default_rng(1)

    def burst(seconds: float, decay: float) -> NDArray[np.float64]:
        time = np.arange(int(seconds * RATE)) / RATE
        return chance.normal(0, 0.3, len(time)) * np.exp(-time / decay)

    cough = np.convolve(burst(0.25, 0.06), np.ones(6) / 3, "same")
    made = {
        "cough": np.concatenate([cough, np.zeros(RATE // 8), cough * 0.7]),
        "click": burst(0.01, 0.002) * 2,
        "typing": np.concatenate([np.concatenate([burst(0.012, 0.003) * 1.5, np.zeros(RATE // 9)]) for _ in range(5)]),
        "knock": np.sin(2 * np.pi * 140 * np.arange(RATE // 8) / RATE) * np.exp(-np.arange(RATE // 8) / 300) * 0.8,
        "breath": np.convolve(burst(0.6, 0.3), np.ones(12) / 8, "same") * 0.5,
    }
    return {name: quantise(sound) for name, sound in made.items()}


async def attempt(somebody: Person, kind: str, sound: Sound, delay_s: float) -> Attempt | None:
    """Make a sound while the assistant talks, and return what happened; None if the reply was over before."""
    since = len(somebody.events)
    await somebody.client.say(PROMPT)
    assert await somebody.wait("audio", since, 60.0) is not None, "no reply"
    await asyncio.sleep(delay_s)
    sent_all = any(event.name == "audio_done" for _, event in somebody.events[since:])
    since = len(somebody.events)
    if sent_all and not somebody.player.queued:  # played to its last sample: there is nothing to interrupt
        return None
    somebody.speak(sound)
    meant = kind == "words"
    ended = await somebody.wait("interrupted" if meant else "release", since, 4.0)
    await asyncio.sleep(0.4 if meant else 0.8)
    first = {name: at for at, event in reversed(somebody.events[since:]) if (name := event.name)}
    begin = somebody.began_s

    def after(name: str) -> float:
        return (first[name] - begin) * 1e3 if name in first else -1.0

    cut = next(
        (
            (place, e["epoch"])
            for place, (_, e) in enumerate(somebody.events)
            if e.name == "interrupted" and place >= since
        ),
        None,
    )
    stale = sum(1 for _, e in somebody.events[cut[0] :] if e.name == "audio" and e["epoch"] <= cut[1]) if cut else 0
    # The last moment before the verdict at which anything was heard.
    loud = [at for at, level in somebody.output if begin < at and level > 300 and (ended is None or at < ended[0])]
    quiet = (max(loud, default=begin) - begin) * 1e3
    acted = min((ms for ms in (after("duck"), after("hold")) if ms >= 0), default=-1.0)
    result = Attempt(kind, acted, after("interrupted"), after("release"), quiet, stale)
    await somebody.client.stop()
    await asyncio.sleep(0.8)
    return result


async def sitting(
    url: str, sounds: list[tuple[str, Sound]], chance: random.Random, people: list[Person]
) -> list[Attempt]:
    """Return the attempts of one place, each in a new conversation: a second one in it would get a short reply."""
    await asyncio.sleep(chance.uniform(0.2, 1.0))
    found = []
    for kind, sound in sounds:
        one = None
        while one is None:
            async with person(url, max_tokens=200, temperature=0.0) as somebody:
                one = await attempt(somebody, kind, sound, chance.uniform(0.3, 1.5))
            if one is None:
                print("  a reply was over before it could be interrupted: again")
        people.append(somebody)
        found.append(one)
    return found


async def measure(
    url: str, sessions: int, sounds: list[tuple[str, Sound]], seed: int
) -> tuple[list[Attempt], list[Person]]:
    """Divide the sounds among the sessions; return all attempts, and the people who made them."""
    chance, people = random.Random(seed), list[Person]()
    results = await asyncio.gather(
        *(sitting(url, sounds[place::sessions], chance, people) for place in range(sessions))
    )
    return [one for result in results for one in result], people


def late_work(somebody: Person, lanes: list[Lane]) -> list[tuple[int, float]]:
    """Return, for every hold, how many steps of the reply began after it, and how much later the last of them ended."""
    found = []
    for at, event in somebody.events:
        if event.name == "hold":
            ends = [t for t, e in somebody.events if e.name in ("interrupted", "release") and t > at]
            hold_ms, over_ms = at * 1e3, min(ends, default=at) * 1e3  # both processes' clocks are the machine's
            spans = {
                (start, stop)
                for lane in lanes
                for what, start, stop in lane.spans
                if lane.name.startswith("high") and what in ("prefill", "decode", "say") and hold_ms < start < over_ms
            }
            found.append((len(spans), max((stop - hold_ms for _, stop in spans), default=0.0)))
    return found


def percentiles(values: list[float]) -> list[str]:
    """Return p50, p95 and p99 as text."""
    return [f"{percentile(values or [float('nan')], share):.0f}" for share in (0.5, 0.95, 0.99)]


def measure_meant(words: list[tuple[str, Sound]], url: str, count: int) -> tuple[list[Attempt], list[Person]]:
    """Interrupt with words in so many sessions."""
    return asyncio.run(measure(url, count, [words[place % len(words)] for place in range(PER_COUNT)], count))


def report_meant(meant: dict[int, list[Attempt]]) -> float:
    """Print the table of interruptions; return the 95th percentile of holds with one session."""
    rows = []
    for count, attempts in meant.items():
        done = [one for one in attempts if one.commit_ms >= 0]
        rows.append(
            [
                str(count),
                *percentiles([one.hold_ms for one in attempts if one.hold_ms >= 0]),
                percentiles([one.quiet_ms for one in done])[1],
                *percentiles([one.commit_ms for one in done]),
                f"{len(attempts) - len(done)} of {len(attempts)}",
                str(sum(one.stale_frames for one in attempts)),
            ]
        )
    header = ["sessions", "hold p50", "p95", "p99", "quiet p95", "commit p50", "p95", "p99", "missed", "stale frames"]
    table(f"barge-in, {machine()}: milliseconds from the first sample of the interrupting word", header, rows)
    return float(rows[0][2])


def report_late(late: list[tuple[int, float]]) -> None:
    """Print how much the engine worked for replies on hold."""
    if not late:
        print("  engine: no reply was held")
        return
    steps, longest = max(count for count, _ in late), max(ms for _, ms in late)
    print(
        f"  engine, {len(late)} holds: at most {steps} steps of the held reply began after the client was told, "
        f"the last of them ended {longest:.0f} ms later"
    )


def report_bars(hold_ms: float, everyone: list[Attempt], false: list[Attempt]) -> None:
    """Print the false interruptions, and whether each bar is met."""
    wrong = [one for one in false if one.commit_ms >= 0]
    by_kind = {kind: sum(1 for one in wrong if one.kind == kind) for kind in {one.kind for one in wrong}}
    print(f"  false interruptions: {len(wrong)} of {len(false)} {by_kind or ''}")
    missed = sum(1 for one in everyone if one.commit_ms < 0) / len(everyone)
    bars = {
        f"hold p95 ≤ {HOLD_BAR_MS:.0f} ms with one session": hold_ms <= HOLD_BAR_MS,
        f"missed ≤ {MISSED_BAR:.0%}": missed <= MISSED_BAR,
        f"false ≤ {FALSE_BAR:.0%}": len(wrong) <= FALSE_BAR * len(false),
        "no stale frame": not sum(one.stale_frames for one in everyone),
    }
    print("  bars: " + "; ".join(f"{bar}: {'met' if met else 'missed'}" for bar, met in bars.items()))


def main() -> None:
    """Measure, print the tables, write the files."""
    command_line(__doc__).parse_args()
    meant: dict[int, list[Attempt]] = {}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with server("--trace", str(trace)) as url:
            words = [("words", spoken(url, text)) for text in INTERRUPTIONS]
            meant[1], people = measure_meant(words, url, 1)
        lanes = read(trace)
    last = people[-1]
    PICTURE.write_text(draw(last.events, last.input, last.output, lanes, machine()), encoding="utf-8")
    late = [work for somebody in people for work in late_work(somebody, lanes)]
    with server() as url:
        for count in SESSIONS[1:]:
            meant[count], _ = measure_meant(words, url, count)
        nothing = [*noises().items(), *((text, spoken(url, text)) for text in BACKCHANNELS)]
        clips = [nothing[place % len(nothing)] for place in range(FALSE_CLIPS)]
        false, _ = asyncio.run(measure(url, 2, clips, 99))
    hold_ms = report_meant(meant)
    report_late(late)
    report_bars(hold_ms, [one for attempts in meant.values() for one in attempts], false)
    document = {
        "machine": machine(),
        "meant": {k: [asdict(o) for o in v] for k, v in meant.items()},
        "false": [asdict(o) for o in false],
    }
    RESULT.write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
