"""The assistant's own voice in the microphone: how often it holds or ends its own reply, and what it misses.

The microphone's sound is made: replies through a path, delayed anew for each reply, and a person. Only the ear and the
echo guard's canceller run, without a server, so a hold does not stop the echo: before and after are both too many.
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
from support.common import table
from support.ears import corpus
from support.ears.corpus import RATE, Sound

from voxlane.server.conversation.hearing.ear import Ear, Hearing, Onset
from voxlane.server.conversation.hearing.echo import EchoCanceller

PATHS = {"plain": lambda sound: sound, "room": corpus.room, "mu-law": corpus.telephone}
DELAYS_S = (0.02, 0.1, 0.3, 0.6)
JITTER_S = 0.08  # a reply's delay differs from another's by up to so much
ASSISTANT = corpus.VOICES[0]
LOUD, QUIET = -20.0, -35.0  # dB of full scale; the assistant is played at -23
MEANT_S = 0.6  # a voice of this length may end the reply
WITHIN_S = 0.6  # an interruption that is not noticed by then is missed
PIECE = 320

INTERRUPTIONS = (
    "Wait, stop.", "No, I meant the other one.", "Can you say that again?", "Actually, I want to know about trains.",
    "Hold on a second.", "What time is it?", "Sorry, which platform was that?", "Please tell me something else.",
)  # fmt: skip


def echo_of(sound: Sound, path: str, db: float, delay_s: float) -> Sound:
    """Return what comes back of a sound."""
    back = PATHS[path](sound) * 10 ** (db / 20)
    return np.concatenate([np.zeros(round(delay_s * RATE), np.float32), back])[: len(sound)].astype(np.float32)


def conversation(seconds: float, path: str, db: float, delay_s: float, seed: int) -> tuple[Sound, Sound]:
    """Return replies with pauses between them, and the echo of each."""
    chance = random.Random(seed)
    played: list[Sound] = []
    heard: list[Sound] = []
    while sum(map(len, played)) < seconds * RATE:
        story = corpus.say(chance.choice(corpus.STORIES), ASSISTANT).sound
        pause = np.zeros(round((0.8 + chance.choice((0.2, 1.5, 3.0))) * RATE), np.float32)
        played.append(np.concatenate([story, pause]))
        heard.append(echo_of(played[-1], path, db, delay_s + chance.uniform(0, JITTER_S)))
    return np.concatenate(played), np.concatenate(heard)


def with_background(sound: Sound) -> Sound:
    """Return a sound with a microphone's noise."""
    return sound + np.resize(corpus.silence(30.0), len(sound))


def pcm(sound: Sound) -> bytes:
    """Return a sound as PCM16."""
    return np.round(np.clip(sound, -1, 0.9999) * 32768).astype("<i2").tobytes()


def ear_of(level: float | None) -> Ear:
    """Return an ear that has heard a person of this level for a while, or none."""
    ear = Ear()
    if level is not None:
        ear.feed(pcm(with_background(corpus.at_level(corpus.talk(8.0, corpus.VOICES[1], 5), level))))
        ear.feed(pcm(corpus.silence(1.0)))
        ear.rest()
    return ear


@dataclass(slots=True)
class Heard:
    """What an ear made of a sound."""

    holds: list[float]  # seconds
    ends: int = 0  # voices so long that they may end a reply
    cpu_s: float = 0.0


def listen(ear: Ear, heard: Sound, played: Sound, canceller: EchoCanceller | None) -> Heard:
    """Return what an ear makes of a microphone's sound while the assistant speaks."""
    ear.guarded = True
    found, begin, sound = Heard([]), ear.heard, pcm(heard)
    began = time.process_time()
    for at in range(0, len(heard) // PIECE * PIECE, PIECE):
        piece = sound[2 * at : 2 * (at + PIECE)]
        if canceller is not None:
            now = played[at : at + PIECE]
            piece = canceller.hear(piece, now if now.any() else None)
        found.holds += [(event.heard - begin) / RATE for event in ear.feed(piece) if isinstance(event, Onset)]
        if ear.hearing is Hearing.VOICED and ear.voiced_for >= MEANT_S * RATE:
            found.ends += 1
            ear.rest()
        elif ear.silence(ear.heard) > RATE // 2:
            ear.rest()
    found.cpu_s = time.process_time() - began
    return found


def own_voice(seconds: float, path: str, db: float) -> list[str]:
    """Return how often the assistant holds or ends its own replies, before and after: four conversations."""
    before, after, minutes = Heard([]), Heard([]), 0.0
    for seed, (delay_s, level) in enumerate(zip(DELAYS_S, (None, LOUD, QUIET, None), strict=True)):
        played, echo = conversation(seconds, path, db, delay_s, seed)
        heard = with_background(echo)
        minutes += len(heard) / RATE / 60
        for total, canceller in ((before, None), (after, EchoCanceller())):
            once = listen(ear_of(level), heard, played, canceller)
            total.holds += once.holds
            total.ends += once.ends
    rates = [f"{len(before.holds) / minutes:.1f}", f"{len(after.holds) / minutes:.1f}"]
    return [path, f"{db:.0f}", f"{minutes:.1f}", *rates, str(before.ends), str(after.ends)]


@dataclass(frozen=True, slots=True)
class Interruption:
    """One person who cuts in: at which second, how loud, over which echo."""

    number: int
    level: float
    path: str
    db: float | None  # None: headphones
    early: bool  # within the second in which the delay of a reply is not known again yet

    def hold_ms(self, *, guarded: bool) -> float | None:
        """Return the time from the first voiced sound to the hold; None if it was missed."""
        chance = random.Random(self.number)
        first, second = (corpus.say(corpus.STORIES[(self.number + n) % 8], ASSISTANT).sound for n in (0, 1))
        first = np.concatenate([first[: 4 * RATE], np.zeros(2 * RATE, np.float32)])
        played = np.concatenate([first, second])
        delay_s = chance.choice(DELAYS_S)
        delays = (delay_s + chance.uniform(0, JITTER_S), delay_s + chance.uniform(0, JITTER_S))
        echo = np.zeros(len(played), np.float32)
        if self.db is not None:
            parts = zip((first, second), delays, strict=True)
            echo = np.concatenate([echo_of(sound, self.path, self.db, delay) for sound, delay in parts])
        voice = corpus.VOICES[1 + self.number % 9]
        person = corpus.at_level(corpus.say(INTERRUPTIONS[self.number % 8], voice).sound, self.level)
        start = len(first) + round((chance.uniform(0.1, 0.8) if self.early else chance.uniform(1.5, 4.0)) * RATE)
        person = person[: len(played) - start]
        heard = with_background(echo)
        heard[start : start + len(person)] += person
        frames = person[: len(person) // 160 * 160].reshape(-1, 160)
        loud = 10 * np.log10((frames**2).mean(axis=1) + 1e-12) > self.level - 15
        voiced_s = start / RATE + 0.01 * int(np.argmax(loud))
        holds = listen(ear_of(self.level), heard, played, EchoCanceller() if guarded else None).holds
        times = [at - voiced_s for at in holds if -0.03 <= at - voiced_s <= WITHIN_S]
        return times[0] * 1e3 if times else None


def interruptions(count: int, path: str, db: float | None, level: float, *, early: bool, guarded: bool) -> list[str]:
    """Return how many interruptions were missed, and how soon the others held the reply."""
    times = [Interruption(n, level, path, db, early).hold_ms(guarded=guarded) for n in range(count)]
    found = sorted(one for one in times if one is not None)
    median, p95 = (f"{np.quantile(found, part):.0f}" if found else "-" for part in (0.5, 0.95))
    what = "headphones" if db is None else f"{path} {db:.0f}"
    person = f"{level:.0f}{', at the beginning' if early else ''}"
    return [what, person, "after" if guarded else "before", str(count), str(times.count(None)), median, p95]


def costs(seconds: float = 20.0) -> list[list[str]]:
    """Return the milliseconds of CPU that a second of sound costs: the ear alone, and with the guard."""
    played = corpus.talk(seconds, ASSISTANT)
    echo, silence = with_background(echo_of(played, "room", -20, 0.1)), with_background(np.zeros_like(played))
    nothing = np.zeros_like(played)
    rows = []
    for name, heard, reference in (
        ("nothing is played", silence, nothing),
        ("headphones", silence, played),
        ("an echo at -20 dB", echo, played),
    ):
        alone = listen(Ear(), heard, reference, None).cpu_s
        guarded = listen(Ear(), heard, reference, EchoCanceller()).cpu_s
        rows.append([name, f"{alone * 1e3 / seconds:.1f}", f"{guarded * 1e3 / seconds:.1f}"])
    return rows


def report(seconds: float = 150.0, count: int = 20) -> None:
    """Print the tables; the rows of the first two are computed on all cores."""
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        own = [pool.submit(own_voice, seconds, path, db) for path in PATHS for db in (-6, -12, -20, -30, -40)]
        cut_ins = [
            partial(interruptions, count, "plain", None, level, early=False, guarded=guarded)
            for level, guarded in ((LOUD, False), (LOUD, True), (QUIET, False), (QUIET, True))
        ]
        cut_ins += [
            partial(interruptions, count, path, db, level, early=early, guarded=True)
            for path, db in (("plain", -12), ("room", -12), ("mu-law", -12), ("room", -20), ("room", -30))
            for level, early in ((LOUD, False), (LOUD, True), (QUIET, False), (QUIET, True))
        ]
        cuts = [pool.submit(cut_in) for cut_in in cut_ins]
        table(
            "The assistant's own voice, delayed by 20 to 600 ms; nobody, a loud and a quiet person spoke before",
            ["path", "dB", "minutes", "holds/min before", "after", "ended itself before", "after"],
            [row.result() for row in own],
        )
        table(
            "Interruptions; ms from the first voiced sound to the hold",
            ["echo", "person dBFS", "guard", "n", "missed", "median", "p95"],
            [row.result() for row in cuts],
        )
    table("CPU, ms per second of sound", ["", "ear alone", "with the guard"], costs())
