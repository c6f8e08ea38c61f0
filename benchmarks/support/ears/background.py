"""What an ear makes of a television or a crowd behind the person: false turns, false holds, and what it misses.

The ear gets the sound of conversations of about 75 s: a person speaks, a bed of other voices goes on all the time. A
stand-in for the floor ends a turn after 0.6 s of silence and says when the assistant speaks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from math import inf

import numpy as np
from support.common import table
from support.ears.corpus import RATE, VOICES, Sound, at_level, babble, loudness, room, say, silence, white
from support.speech import recording

from voxlane.server.conversation.hearing.ear import Confirmed, Ear, Hearing, Onset, Silent

PERSON_DB = -26.0
PIECE = RATE // 50
END_S, RELEASE_S, TAKE_S, LONGEST_S = 0.6, 0.5, 1.1, 15.0

TEXTS = (
    "What will the weather be like tomorrow?",
    "Please set a timer for ten minutes.",
    "No, that is not what I meant.",
    "Tell me more about the second one.",
    "How far is it to the station from here?",
    "I would like to book a table for four people.",
)


@dataclass(frozen=True, slots=True)
class Said:
    """Where the person speaks in a conversation, in samples; `guarded`: while the assistant speaks."""

    start: int
    end: int
    guarded: bool


@dataclass(slots=True)
class Scene:
    """A conversation as the microphone hears it."""

    sound: Sound
    said: list[Said]
    guarded: list[tuple[int, int]]  # where the assistant speaks

    @property
    def alone_s(self) -> tuple[float, float]:
        """Seconds in which only the bed is heard: while the assistant is silent, and while it speaks."""
        speaks = sum(end - start for start, end in self.guarded) / RATE
        said = {guarded: sum(one.end - one.start for one in self.said if one.guarded is guarded) for guarded in (0, 1)}
        return len(self.sound) / RATE - speaks - said[0] / RATE, speaks - said[1] / RATE


@dataclass(slots=True)
class Tally:
    """What an ear made of scenes."""

    turns: int = 0  # false
    holds: int = 0  # false
    takes: int = 0  # holds that then ended the reply
    said: int = 0
    missed: int = 0
    cut_in: int = 0
    cut_missed: int = 0
    late_ms: list[float] = field(default_factory=list)  # from the voice to the hold
    unended: int = 0  # turns that had not ended 2 s after the person's last sound
    alone_s: list[float] = field(default_factory=lambda: [0.0, 0.0])


def scene(voice: str, bed: Sound | None, bed_db: float, *, level: float = PERSON_DB, softer: float = 0.0) -> Scene:
    """Return a conversation with a bed `bed_db` relative to the person, who later is `softer` by so many dB."""
    said: list[Said] = []
    guarded: list[tuple[int, int]] = []
    parts: list[Sound] = []

    def add(sound: Sound) -> int:
        parts.append(sound)
        return sum(map(len, parts))

    def speak(text: str, db: float, while_assistant: bool) -> None:
        clip = at_level(say(text, voice).sound, db)
        loud = np.flatnonzero(np.abs(clip) > 0.03 * np.abs(clip).max())
        begin = sum(map(len, parts))
        add(clip)
        said.append(Said(begin + int(loud[0]), begin + int(loud[-1]), while_assistant))

    add(np.zeros(RATE, np.float32))
    for number, text in enumerate(TEXTS):
        db = level - (softer if number >= 2 else 0.0)
        if number in (3, 5):
            begin = add(np.zeros(RATE, np.float32))
            add(np.zeros(8 * RATE, np.float32))
            speak(text, db, while_assistant=True)
            guarded.append((begin, said[-1].end))
            add(np.zeros(4 * RATE, np.float32))
        else:
            speak(text, db, while_assistant=False)
            add(np.zeros((3 if number == 0 else 9) * RATE, np.float32))
    whole = np.concatenate(parts)
    whole += np.resize(silence(10.0), len(whole))
    if bed is not None:
        whole += at_level(np.resize(bed, len(whole)), level + bed_db)
    return Scene(np.clip(whole, -1, 1), said, guarded)


def listen(ear: Ear, scene: Scene, tally: Tally) -> None:
    """Play a scene to an ear."""
    data = np.round(scene.sound * 32767).astype("<i2").tobytes()
    heard: set[int] = set()
    ended: set[int] = set()
    begun = 0
    for at in range(0, len(scene.sound), PIECE):
        speaks = any(start <= at < end for start, end in scene.guarded)
        ear.guarded = speaks and not (ear.hearing is Hearing.VOICED and ear.voiced_for > TAKE_S * RATE)
        for event in ear.feed(data[2 * at : 2 * (at + PIECE)]):
            if not isinstance(event, Onset | Confirmed):
                continue
            own = next((n for n, one in enumerate(scene.said) if _touches(one, event.heard)), None)
            if own is None:
                tally.holds += isinstance(event, Onset) and speaks
                tally.turns += isinstance(event, Confirmed) and not speaks
                tally.takes += isinstance(event, Confirmed) and speaks
            elif isinstance(event, Onset) and scene.said[own].guarded and speaks:
                tally.late_ms.append(max(0.0, (event.heard - scene.said[own].start) / RATE * 1e3))
            if isinstance(event, Confirmed):
                begun = event.at
        if ear.hearing is Hearing.VOICED:
            heard |= {n for n, one in enumerate(scene.said) if one.start <= at < one.end + RATE // 5}
        pause = ear.silence(ear.heard) / RATE
        if pause >= (RELEASE_S if ear.guarded else END_S) or (
            ear.hearing is Hearing.VOICED and ear.heard - begun > LONGEST_S * RATE
        ):
            ear.rest()
        for number, one in enumerate(scene.said):
            if one.end < at <= one.end + 2 * RATE and ear.hearing is Hearing.QUIET:
                ended.add(number)
    tally.said += sum(not one.guarded for one in scene.said)
    tally.cut_in += sum(one.guarded for one in scene.said)
    missed = [one for number, one in enumerate(scene.said) if number not in heard]
    tally.missed += sum(not one.guarded for one in missed)
    tally.cut_missed += sum(one.guarded for one in missed)
    tally.unended += len(scene.said) - len(ended)
    for index, seconds in enumerate(scene.alone_s):
        tally.alone_s[index] += seconds


def _touches(said: Said, at: int) -> bool:
    return said.start - RATE // 10 <= at <= said.end + RATE // 2


@cache
def television() -> Sound:
    """Return 82 s of recordings as a loudspeaker in a room gives them."""
    names = ("two_cities.wav", "endgame_nagg_nell.wav", "beckett.wav")
    return np.concatenate([room(at_level(recording(name), -23.0), seed=3) for name in names])


def crowd() -> Sound:
    """Return eight voices at once."""
    return babble(20.0)


def figures(tally: Tally) -> list[str]:
    """Return the cells of a row."""
    late = sorted(tally.late_ms) or [inf]
    turns, holds = (60 / seconds if seconds else 0.0 for seconds in tally.alone_s)
    return [
        f"{tally.turns * turns:.1f}",
        f"{tally.holds * holds:.1f}",
        f"{tally.takes * holds:.1f}",
        f"{tally.unended}",
        f"{tally.missed} of {tally.said}",
        f"{tally.cut_missed} of {tally.cut_in}",
        f"{late[len(late) // 2]:.0f} / {late[int(0.95 * len(late))]:.0f}",
    ]


HEADER = ("false turns/min", "false holds/min", "kept/min", "not ended", "missed", "cut in: missed", "hold ms 50/95 %")


def _row(name: str, scenes: list[Scene]) -> list[str]:
    tally = Tally()
    for one in scenes:
        listen(Ear(), one, tally)
    return [name, *figures(tally)]


def _noisy(clip: Sound, noise: Sound | None, snr_db: float, level: float) -> Sound:
    """Return 2 s of background, a clip at this level, and 1 s of background."""
    whole = np.concatenate([np.zeros(2 * RATE, np.float32), at_level(clip, level), np.zeros(RATE, np.float32)])
    behind = np.resize(silence(10.0), len(whole))
    if noise is not None:
        behind = at_level(np.resize(noise, len(whole)), level - snr_db)
    return whole + behind


def detect(clips: list[Sound], noise: Sound | None, snr_db: float, level: float) -> list[str]:
    """Return how soon an ear that knows nobody finds the beginning and the end of clips."""
    onset, confirmed, end = list[float](), list[float](), list[float]()
    for clip in clips:
        frames = np.square(clip[: len(clip) // 160 * 160].reshape(-1, 160)).mean(axis=1)
        loud = np.flatnonzero(10 * np.log10(frames + 1e-12) > loudness(clip) - 20)
        first, last = 2 * RATE + 160 * int(loud[0]), 2 * RATE + 160 * int(loud[-1] + 1)
        sound = np.round(np.clip(_noisy(clip, noise, snr_db, level), -1, 1) * 32767).astype("<i2").tobytes()
        events = Ear().feed(sound)
        speech = next((event for event in events if isinstance(event, Confirmed)), None)
        if speech is None:
            continue
        confirmed.append((speech.heard - first) / RATE * 1e3)
        onset += [(one.heard - first) / RATE * 1e3 for one in events if isinstance(one, Onset) and one.at == speech.at]
        end += [(one.since - last) / RATE * 1e3 for one in events if isinstance(one, Silent)][-1:]
    times = [
        f"{np.percentile(all_, 50):.0f} / {np.percentile(all_, 95):.0f}" if all_ else "-"
        for all_ in (onset, confirmed, end)
    ]
    return [*times, f"{len(clips) - len(confirmed)} of {len(clips)}"]


def report(voices: int = 6) -> None:
    """Print the tables."""
    people = VOICES[:voices]
    beds = {"television": television(), "crowd": crowd()}
    rows: list[list[str]] = []
    for kind, bed in beds.items():
        for db in (-10.0, -15.0, -20.0, -25.0):
            scenes = [scene(voice, np.roll(bed, 7 * n * RATE), db) for n, voice in enumerate(people)]
            rows.append(_row(f"{kind} {db:.0f} dB", scenes))
    table("Other voices behind a person of -26 dBFS", ("bed", *HEADER), rows)
    rows = []
    for level in (-20.0, -30.0, -40.0, -50.0, -60.0):
        rows.append(_row(f"quiet, {level:.0f} dBFS", [scene(voice, None, 0.0, level=level) for voice in people]))
    hiss = white(10.0)
    for level in (-20.0, -40.0, -60.0):
        scenes = [scene(voice, hiss, -15.0, level=level) for voice in people]
        rows.append(_row(f"white noise -15 dB, {level:.0f} dBFS", scenes))
    for softer in (6.0, 10.0):
        scenes = [scene(voice, None, 0.0, softer=softer) for voice in people]
        rows.append(_row(f"quiet, then {softer:.0f} dB softer", scenes))
        scenes = [
            scene(voice, np.roll(television(), 7 * n * RATE), -20.0, softer=softer) for n, voice in enumerate(people)
        ]
        rows.append(_row(f"television -20 dB, then {softer:.0f} dB softer", scenes))
    table("Persons heard and missed", ("person", *HEADER), rows)
    clips = [say(text, voice).sound for voice in people for text in TEXTS]
    rows = []
    for name, level, noise, snr_db in [
        *((f"quiet, {level:.0f} dBFS", level, None, 0.0) for level in (-20.0, -30.0, -40.0, -50.0, -60.0)),
        *((f"-25 dBFS, white noise {snr_db:.0f} dB below", -25.0, hiss, snr_db) for snr_db in (20.0, 10.0)),
    ]:
        rows.append([name, *detect(clips, noise, snr_db, level)])
    header = ("person", "to Onset", "to Confirmed", "last sound to Silent.since", "missed")
    table("Detection, ms of sound, 50 / 95 %; nobody is known", header, rows)
