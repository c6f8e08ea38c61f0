"""Words wrong in nine conditions, the time to the final words and the CPU time, for each model that listens.

Sixty turns in ten voices and two recordings go through the whole listening job, voice detection included. Whisper
listens twice: with windows of 30 s, and with the short ones that a CPU uses. Names are heard with and without
`hot_words`.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from unittest import mock

import numpy as np
from support.common import THREADS, engine, interleaved, machine, spread, table
from support.ears import corpus
from support.ears.corpus import RATE, VOICES, Sound
from support.ears.sentences import NAMED, RECORDINGS, TURNS
from support.speech import clip, hear_live, pieces, recording, run, text_of

from voxlane.engine.api import Append, EndInput, ListenParams, Submit
from voxlane.engine.loop.core import Core
from voxlane.engine.models.whisper import Whisper

LEAD_S, TRAIL_S = 0.3, 0.5
"""Silence around each turn."""

FEW_TURNS = 12
"""Turns for Whisper with windows of 30 s, which take ten times as long."""

_NUMBERS = {"1": "one", "2": "two", "3": "three", "4": "four", "10": "ten", "20": "twenty"}
_SPELLINGS = {"mr": "mister", "dr": "doctor", "ltd": "limited", "ok": "okay", "whilst": "while"}


@cache
def _crowd() -> Sound:
    return corpus.babble(20.0)


CONDITIONS: dict[str, Callable[[Sound, int], Sound]] = {
    "clean": lambda sound, seed: sound,
    "8 kHz": lambda sound, seed: corpus.narrow(sound),
    "mu-law telephone": lambda sound, seed: corpus.telephone(sound),
    "white noise, 10 dB": lambda sound, seed: corpus.mixed(sound, corpus.white(len(sound) / RATE, seed), 10.0),
    "babble, 10 dB": lambda sound, seed: corpus.mixed(sound, np.roll(_crowd(), 7919 * seed), 10.0),
    "reverberant": lambda sound, seed: corpus.room(sound, seed, decay_s=0.8, direct=0.6),
    "clipped": lambda sound, seed: corpus.clipped(sound),
    "-35 dBFS": lambda sound, seed: corpus.at_level(sound, -35.0),
    "-60 dBFS": lambda sound, seed: corpus.at_level(sound, -60.0),
}
"""What happens to a turn before it is heard, from its sound and a seed."""


@dataclass(frozen=True, slots=True)
class Listener:
    """An engine that listens."""

    name: str
    core: Core
    turns: int  # how many it hears per condition


def report(turns: int = len(TURNS), few: int = FEW_TURNS, conditions: Sequence[str] = tuple(CONDITIONS)) -> None:
    """Print the tables. With sixty turns this takes a quarter of an hour on two idle cores."""
    print(f"words, {machine()}")
    listeners = list(_listeners(turns, min(few, turns)))
    heard = ", ".join(f"{one.name}: {one.turns}" for one in listeners)
    for title, count in ((f"turns ({heard})", wrong_in), ("recordings", wrong_in_recordings)):
        rows = []
        for name in conditions:
            rows.append([name, *(_percent(*count(one, CONDITIONS[name])) for one in listeners)])
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
        table(f"Words wrong in {title}, %", ["", *(one.name for one in listeners)], rows)
    quick = [listeners[0], listeners[-1]]
    table("Time and CPU", ["", *(one.name for one in quick)], _costs(quick))
    _report_names(listeners[-1].core, turns)


def wrong_in(listener: Listener, change: Callable[[Sound, int], Sound]) -> tuple[int, int]:
    """Return how many words of the turns are wrong in a condition, and of how many."""
    wrong = words = 0
    for number, text in enumerate(TURNS[: listener.turns]):
        sound = change(corpus.say(text, VOICES[number % len(VOICES)]).sound, number)
        wrong += errors(text, hear(listener.core, sound))
        words += len(plain(text))
    return wrong, words


def wrong_in_recordings(listener: Listener, change: Callable[[Sound, int], Sound]) -> tuple[int, int]:
    """Return how many words of the recordings are wrong in a condition, and of how many."""
    wrong = 0
    for seed, (name, text) in enumerate(RECORDINGS.items()):
        wrong += errors(text, hear(listener.core, change(recording(name), seed)))
    return wrong, sum(len(plain(text)) for text in RECORDINGS.values())


def hear(core: Core, sound: Sound, hot_words: tuple[str, ...] = ()) -> str:
    """Return what an engine hears in a turn with silence around it."""
    turn = np.concatenate([corpus.silence(LEAD_S), sound, corpus.silence(TRAIL_S)])
    core.handle([Submit("turn", "asr", listen=ListenParams(partials=False, hot_words=hot_words))])
    core.handle([*(Append("turn", audio=piece) for piece in pieces(turn, 10.0)), EndInput("turn")])
    return text_of(run(core))


def plain(text: str) -> list[str]:
    """Return the words of a text without case and punctuation, in one spelling."""
    found = re.sub(r"[^a-z0-9' ]", " ", text.lower().replace("’", "'")).split()
    return [_SPELLINGS.get(word, _NUMBERS.get(word, word)) for word in found]


def errors(said: str, heard: str) -> int:
    """Return how many words must be changed, added or dropped to make what was heard of what was said."""
    before = list(range(len(plain(heard)) + 1))
    for row, word in enumerate(plain(said), 1):
        after = [row]
        for column, found in enumerate(plain(heard), 1):
            after.append(min(before[column] + 1, after[-1] + 1, before[column - 1] + (word != found)))
        before = after
    return before[-1]


@contextmanager
def _long_windows() -> Iterator[None]:
    with mock.patch.object(Whisper, "use_short_windows"):
        yield


def _listeners(turns: int, few: int) -> Iterator[Listener]:
    yield Listener("moonshine-tiny-en", engine(model="", asr_model="moonshine-tiny-en").core, turns)
    if few:
        with _long_windows():
            yield Listener("whisper-tiny-en, 30 s", engine(model="", asr_model="whisper-tiny-en").core, few)
    yield Listener("whisper-tiny-en", engine(model="", asr_model="whisper-tiny-en").core, turns)


def _costs(listeners: Sequence[Listener]) -> list[list[str]]:
    whole, live = clip("two_cities.wav", 0.0, 3.0), clip("two_cities.wav", 0.0, 9.0)
    at_once = interleaved(5, *(lambda core=one.core: _seconds(core, whole) for one in listeners))
    spent = interleaved(3, *(lambda core=one.core: _cpu_share(core, live) for one in listeners))
    return [
        [f"3 s turn at once, ms on {THREADS} threads", *(spread([1e3 * one for one in times]) for times in at_once)],
        ["CPU seconds per second of live speech", *(spread(shares, 2) for shares in spent)],
    ]


def _seconds(core: Core, sound: Sound) -> float:
    begin = time.perf_counter()
    hear(core, sound)
    return time.perf_counter() - begin


def _cpu_share(core: Core, sound: Sound) -> float:
    begin = time.process_time()
    hear_live(core, sound)
    return (time.process_time() - begin) / (len(sound) / RATE)


def _report_names(core: Core, turns: int) -> None:
    names = tuple(name for _, name in NAMED)
    rows = []
    for title, expected in (("no hot words", ()), ("all twelve names expected", names)):
        right = wrong = invented = strayed = 0
        for number, (text, name) in enumerate(NAMED):
            heard = hear(core, corpus.say(text, VOICES[3 * number % len(VOICES)]).sound, expected)
            right += name.lower() in heard.lower()
            wrong += errors(text, heard)
        for number, text in enumerate(TURNS[:turns]):
            sound = CONDITIONS["babble, 10 dB"](corpus.say(text, VOICES[number % len(VOICES)]).sound, number)
            heard = hear(core, sound, expected)
            invented += any(name.lower() in heard.lower() for name in names)
            strayed += errors(text, heard)
        total, usual = (sum(len(plain(text)) for text in texts) for texts in ([t for t, _ in NAMED], TURNS[:turns]))
        rows.append(
            [title, f"{right} of {len(NAMED)}", _percent(wrong, total), _percent(strayed, usual), str(invented)]
        )
    header = ["", "names right", "words wrong, %", "turns without them in babble: words wrong, %", "names invented"]
    table("Names", header, rows)


def _percent(wrong: int, words: int) -> str:
    return f"{100 * wrong / max(1, words):.1f}"


if __name__ == "__main__":
    report()
