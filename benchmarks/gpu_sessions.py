"""How many conversations one GPU holds, per policy: sessions within their targets over sessions offered.

    PYTHONPATH=build/gpu python3 benchmarks/gpu_sessions.py               # see gpu_engine.py for build/gpu
    PYTHONPATH=build/gpu python3 benchmarks/gpu_sessions.py --policies deadline --sessions 32,64,96 --seconds 20
    python benchmarks/gpu_sessions.py --pretend --sessions 256,384,448    # without a GPU: the host's limit
    python benchmarks/gpu_sessions.py --dry-run                           # on a CPU, with a tiny chat model

Simulated people (support/sessions/speakers.py) each speak 2 to 5 seconds, are answered by voice, sometimes interrupt,
and go on. For each number of sessions more people join at random times; after a while that does not count, `--seconds`
are measured. The engine is the server's child process; this process stands for server and clients and takes all times.
The policies take turns on one engine, which begins each time with an empty prefix cache.

A session is within its targets if in that time
    each first sound of a reply came within 300 ms of the end of the turn (which is 250 ms after the last sound),
    no listener ran out of sound within a reply,
    each interruption was in force within 25 ms (see gpu_interrupt.py), and
    no request was refused or failed.
Sessions without a turn in that time are not judged. "engine" and "people" are shares of a core that the two processes
used. While a step is under way the engine's thread asks the device again and again, so its share says little. With
--pretend the limit is always the host: a device that takes an H200's time and computes nothing
(support/engines/pretended.py) stands in for the GPU.

A policy with less than 30 % of the sessions within targets twice in a row gets no larger number of sessions.

Time: an engine's start, and 13 s and --seconds for each number of sessions: with three policies twelve minutes at most.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from support.common import table
from support.figures import percentile
from support.people import live
from support.sessions.engine import (
    Engine,
    Options,
    Sound,
    chat_folder,
    parser,
    read_options,
    running,
    spoken,
    steps_of,
)
from support.sessions.speakers import QUESTIONS, Diary, Speaker, Turn

FIRST_AUDIO_S, INTERRUPT_S = 0.3, 0.025
JOIN_S, SETTLE_S = 10.0, 3.0
"""How long people take to join, and how long before counting begins after that. A turn and its reply take some ten
seconds; people who all joined within two seconds would all speak, and want answers, at once."""

TICK_S = 0.004
ENOUGH = 0.3
"""A policy with a smaller share within targets, twice in a row, gets no more sessions."""


@dataclass(frozen=True, slots=True)
class Level:
    """The figures for one number of sessions. Times are milliseconds."""

    sessions: int
    judged: int
    good: int
    turns: int
    turns_per_s: float
    first_audio_p50: float
    first_audio_p95: float
    words_p50: float  # from the end of the turn to its text
    token_p50: float  # from the text to the chat model's first token
    voice_p50: float  # from the first token to the first sound
    underruns: int
    silence: float  # all underruns together
    interrupts: int
    interrupt_p50: float
    interrupt_p99: float
    faults: int
    words_right: float
    engine: float  # share of a core
    people: float
    late: float  # how late this process was at most
    steps: dict[str, float]

    @property
    def share(self) -> float:
        """The share of judged sessions within targets."""
        return self.good / max(1, self.judged)


def judge(diary: Diary, begin: float, end: float) -> bool | None:
    """Return whether a session was within its targets from `begin` to `end`; None if there is nothing to judge."""
    turns = [turn for turn in diary.turns if begin <= turn.ended_s < end - FIRST_AUDIO_S]
    cuts = [waited for sent_s, waited in diary.interrupts if begin <= sent_s < end - INTERRUPT_S]
    slips = [at for at, _ in (*diary.underruns, *diary.faults) if begin <= at < end]
    if not turns and not slips:
        return None
    prompt = all(turn.first_audio_s is not None and _first_audio(turn) <= FIRST_AUDIO_S for turn in turns)
    return prompt and not slips and all(waited is not None and waited <= INTERRUPT_S for waited in cuts)


def _first_audio(turn: Turn) -> float:
    return (turn.first_audio_s or 0.0) - turn.ended_s


def _ms(values: Sequence[float], share: float) -> float:
    return round(1e3 * percentile(values, share), 1) if values else 0.0


def level_of(
    speakers: Sequence[Speaker],
    begin: float,
    end: float,
    shares: tuple[float, float, float],
    steps: dict[str, float],
) -> Level:
    """Return the figures from `begin` to `end`."""
    diaries = [speaker.diary for speaker in speakers]
    verdicts = [verdict for diary in diaries if (verdict := judge(diary, begin, end)) is not None]
    turns = [turn for diary in diaries for turn in diary.turns if begin <= turn.ended_s < end - FIRST_AUDIO_S]
    # A turn that still waits has waited at least this long.
    audio = [end - turn.ended_s if turn.first_audio_s is None else _first_audio(turn) for turn in turns]
    words = [turn.words_s - turn.ended_s for turn in turns if turn.words_s]
    tokens = [turn.first_token_s - turn.words_s for turn in turns if turn.first_token_s and turn.words_s]
    voices = [turn.first_audio_s - turn.first_token_s for turn in turns if turn.first_audio_s and turn.first_token_s]
    dry = [silence for diary in diaries for at, silence in diary.underruns if begin <= at < end]
    cuts = [waited or end - at for diary in diaries for at, waited in diary.interrupts if begin <= at < end]
    right = [turn.words_right for turn in turns if turn.words_s]
    return Level(
        sessions=len(speakers),
        judged=len(verdicts),
        good=sum(verdicts),
        turns=len(turns),
        turns_per_s=round(len(turns) / (end - begin - FIRST_AUDIO_S), 1),
        first_audio_p50=_ms(audio, 0.5),
        first_audio_p95=_ms(audio, 0.95),
        words_p50=_ms(words, 0.5),
        token_p50=_ms(tokens, 0.5),
        voice_p50=_ms(voices, 0.5),
        underruns=len(dry),
        silence=round(1e3 * sum(dry), 1),
        interrupts=len(cuts),
        interrupt_p50=_ms(cuts, 0.5),
        interrupt_p99=_ms(cuts, 0.99),
        faults=sum(begin <= at < end for diary in diaries for at, _ in diary.faults),
        words_right=round(sum(right) / max(1, len(right)), 3),
        engine=shares[0],
        people=shares[1],
        late=shares[2],
        steps=steps,
    )


class Crowd:
    """The people who talk to one engine, and the clock that drives them."""

    def __init__(self, engine: Engine, sounds: list[Sound], join_s: float) -> None:
        self.speakers: list[Speaker] = []
        self._engine = engine
        self._sounds = sounds
        self._join_s = join_s
        self._random = random.Random(5)

    def join(self, count: int) -> None:
        """Let people join until there are so many."""
        now = time.monotonic()
        for number in range(len(self.speakers), count):
            begins_s = now + self._random.uniform(0.1, self._join_s)
            self.speakers.append(Speaker(self._engine, f"s{number}", self._sounds, number, begins_s))

    async def live(self, seconds: float) -> float:
        """Run the people for some seconds; return how late their clock was at most."""

        def tick(now: float) -> None:
            for speaker in self.speakers:
                speaker.tick(now)

        return await live(tick, seconds, TICK_S)

    async def measure(self, count: int, seconds: float) -> Level:
        """Return the figures for so many sessions."""
        self.join(count)
        await self.live(self._join_s + SETTLE_S)
        self._engine.stats.clear()
        begin = time.monotonic()
        engine_s, own_s = self._engine.cpu_s(), time.process_time()
        late = await self.live(seconds)
        end = time.monotonic()
        engine = round((self._engine.cpu_s() - engine_s) / (end - begin), 2)
        people = round((time.process_time() - own_s) / (end - begin), 2)
        shares = (engine, people, round(1e3 * late, 1))
        return level_of(self.speakers, begin, end, shares, steps_of(self._engine.stats))

    def hang_up(self) -> None:
        """End all sessions."""
        for speaker in self.speakers:
            speaker.hang_up()


async def ramp(
    engine: Engine, sounds: list[Sound], counts: Sequence[int], seconds: float, join_s: float = JOIN_S
) -> list[Level]:
    """Measure ever more sessions on an engine until too few are within targets."""
    crowd = Crowd(engine, sounds, join_s)
    levels: list[Level] = []
    for count in counts:
        level = await crowd.measure(count, seconds)
        levels.append(level)
        print(engine.config.policy, json.dumps(asdict(level)), flush=True)
        if len(levels) > 1 and max(one.share for one in levels[-2:]) < ENOUGH:
            break
    crowd.hang_up()
    return levels


async def measure(options: Options, folder: Path, counts: Sequence[int]) -> dict[str, list[Level]]:
    """Measure each policy, one after the other on one engine."""
    found: dict[str, list[Level]] = {}
    try:
        async with running(options.engine(options.policies[0], folder)) as engine:
            sounds = await spoken(engine, QUESTIONS)
            gc.collect()
            gc.freeze()
            for policy in options.policies:
                await engine.switch(policy)
                found[policy] = await ramp(engine, sounds, counts, options.seconds, 0.5 if options.dry else JOIN_S)
    except RuntimeError as error:  # print the figures so far
        print(f"FAILED: {error}", flush=True)
    return found


def summary(found: dict[str, list[Level]], where: str) -> None:
    """Print the table."""
    rows = [
        [
            *(policy, str(level.sessions), f"{level.good} of {level.judged}", f"{level.share:.0%}"),
            f"{level.turns_per_s:.1f}",
            f"{level.first_audio_p50:.0f} / {level.first_audio_p95:.0f}",
            f"{level.words_p50:.0f} + {level.token_p50:.0f} + {level.voice_p50:.0f}",
            str(level.underruns),
            f"{level.interrupt_p50:.1f} / {level.interrupt_p99:.1f}",
            str(level.faults),
            f"{level.steps['step_ms']:.1f} / {level.steps['longest_step_ms']:.0f}",
            *(f"{level.engine:.2f}", f"{level.people:.2f}", f"{level.words_right:.0%}"),
        ]
        for policy, levels in found.items()
        for level in levels
    ]
    header = [
        "policy",
        "sessions",
        "within",
        "share",
        "turns/s",
        "first audio p50/p95",
        "words+token+voice",
        "underruns",
    ]
    header += ["interrupt p50/p99", "faults", "step mean/max", "engine", "people", "words right"]
    table(f"conversations on {where}, milliseconds", header, rows)


def main() -> None:
    """Measure and print the table."""
    commands = parser(__doc__, 20.0)
    commands.add_argument("--pretend", action="store_true", help="on a CPU, with a device that computes nothing")
    commands.add_argument("--sessions", default="", help="comma-separated (16,32,64,96,128,192,256)")
    chosen = commands.parse_args()
    options = read_options(chosen, "gpu_sessions")
    counts = [int(one) for one in (chosen.sessions or ("2" if options.dry else "16,32,64,96,128,192,256")).split(",")]
    with chat_folder(options) as folder:
        found = asyncio.run(measure(options, folder, counts))
    if options.json:
        told = {
            "shape": options.shape,
            "seconds": options.seconds,
            "levels": {policy: [asdict(one) for one in levels] for policy, levels in found.items()},
        }
        Path(options.json).write_text(json.dumps(told, indent=1), encoding="utf-8")
    summary(found, "a pretended GPU" if options.pretended else f"one GPU ({options.shape})")


if __name__ == "__main__":
    main()
