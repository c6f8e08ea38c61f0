"""The corpus: every sound that the person makes in a call, by name or by words, from seeds, kept in a folder.

Noises and most beds are made when they are asked for. The speech of the shipped scenarios lies in the package. Other
speech is made by `prepare`, with one start of an engine, and kept: one file for each text and voice.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from numpy.random import Generator

from voxlane_lab.errors import LabError, quote
from voxlane_lab.sounds.beds import BEDS, bed_wanted, make_bed, news, television
from voxlane_lab.sounds.intervals import levelled, made_clip, voiced_intervals
from voxlane_lab.sounds.keys import KEYS, TONE_S, key_tones
from voxlane_lab.sounds.noises import NOISES, typing
from voxlane_lab.sounds.shaping import Sound, samples_of, swell
from voxlane_lab.sounds.shipped import shipped
from voxlane_lab.sounds.speech import Wanted, assembled
from voxlane_lab.sounds.tunes import tune
from voxlane_lab.sounds.voices import MODEL, VOICES, OpenVoices, kokoro, voice_named
from voxlane_lab.values import USER_RATE, Clip, Interval, Pcm

CACHE_VARIABLE = "VOXLANE_CACHE"

VERSION = 2
"""Part of every file's name: raise it when the same request gives other samples."""

SPOKEN = {
    "mhm": "Mhm.",
    "uh-huh": "Uh-huh.",
    "yeah": "Yeah.",
    "okay": "Okay.",
    "right": "Right.",
    "hmm": "Hmm.",
}
"""Name and text of the sounds that a voice says.

Kokoro says "Mhm." and "Hmm." alike, with the mouth closed. Its "Mm-hmm." has a vowel: recognisers hear "man" or "no".
"""

LASTING = {"typing": 2.0, "music": 4.0, "television": 4.0}
"""Sounds that last as long as they are asked to, and how long without being asked."""

MOST_S = 600.0
MOST_KEYS = 64

SOUNDS: dict[str, str] = {
    **{
        name: f'"{text}" in the voice that the seed decides; {name}:af_heart names one' for name, text in SPOKEN.items()
    },
    **{name: sentence for name, (sentence, _) in NOISES.items()},
    "typing": "two seconds of a keyboard; typing:5 is five",
    "dtmf": "keys of a telephone: dtmf:123; a comma is a pause of half a second",
    "music": "four seconds of hold music; music:10 is ten",
    "television": "four seconds of a newsreader with music below; television:10 is ten",
}
"""Name and what it is."""


class Corpus:
    """Makes clips and beds, and keeps those that take long."""

    def __init__(self, folder: Path | None = None, open_voices: OpenVoices = kokoro) -> None:
        self._folder = folder or default_folder()
        self._open_voices = open_voices
        self._shipped = shipped() if open_voices is kokoro else {}  # Kokoro's
        self._clips: dict[Wanted, Clip] = {}

    async def prepare(
        self, wanted: Iterable[Wanted], progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        """Make the speech that is not here yet; nothing is started if all of it is."""
        missing = [one for one in dict.fromkeys(wanted) if self._find(one) is None]
        if not missing:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LabError(f"cannot keep sounds in {self._folder}: {error.strerror}") from None
        progress(0, len(missing))
        async with self._open_voices() as say:
            for number, one in enumerate(missing, 1):
                if self._find(one) is None:  # another process may have made it meanwhile
                    self._keep(one, assembled(one, await say(one.words, one.voice)))
                progress(number, len(missing))

    def speech(self, wanted: Wanted) -> Clip:
        """Return prepared speech."""
        clip = self._find(wanted)
        if clip is None:
            raise LabError(f"{quote(wanted.words)} by {wanted.voice} is not prepared: `voxlane-lab sounds` makes it")
        return clip

    def sound(self, name: str, seed: int) -> Clip:
        """Return a sound of SOUNDS."""
        kind, argument = _named(name)
        wanted = sound_wanted(name, seed)
        if kind == "dtmf":
            return _keys(name, argument)
        if kind == "television":
            assert wanted is not None
            count = samples_of(_seconds(kind, argument))
            return _lasting(name, television(_chance(name, seed), count, self.speech(wanted)))
        if wanted is not None:
            clip = self.speech(wanted)
            return Clip(name, clip.pcm, clip.voiced, clip.words)
        if kind == "music":
            return _lasting(name, tune(_chance(name, seed), samples_of(_seconds(kind, argument))))
        if kind == "typing":
            return made_clip(name, typing(_chance(name, seed), _seconds(kind, argument)))
        return made_clip(name, NOISES[kind][1](_chance(name, seed)))

    def bed(self, name: str, samples: int, seed: int) -> Pcm:
        """Return so many samples of a bed of BEDS."""
        speech = [self.speech(one) for one in bed_wanted(name)]
        return make_bed(name, samples, _chance(name, seed), speech)

    def _find(self, wanted: Wanted) -> Clip | None:
        if wanted not in self._clips:
            small = self._shipped.get(self.name(wanted))
            if small is not None:
                clip: Clip | None = Clip("speech", small.sound(), small.voiced, wanted.words)
            else:
                clip = _read(self._path(wanted), wanted)
            if clip is None:
                return None
            self._remember(wanted, clip)
        return self._clips[wanted]

    def _remember(self, wanted: Wanted, clip: Clip) -> None:
        clip.pcm.setflags(write=False)  # all calls share it
        self._clips[wanted] = clip

    def _keep(self, wanted: Wanted, clip: Clip) -> None:
        """Write a clip under another name and rename it: a file of its own name is always whole."""
        path = self._path(wanted)
        handle, part = tempfile.mkstemp(prefix=f"{path.stem}.", suffix=".part", dir=self._folder)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez_compressed(file, pcm=clip.pcm, voiced=np.array(clip.voiced, np.int64).reshape(-1, 2))
            os.replace(part, path)
        except OSError as error:
            raise LabError(f"cannot keep sounds in {self._folder}: {error.strerror}") from None
        finally:
            Path(part).unlink(missing_ok=True)
        self._remember(wanted, clip)

    def _path(self, wanted: Wanted) -> Path:
        return self._folder / f"{self.name(wanted)}.npz"

    @staticmethod
    def name(wanted: Wanted) -> str:
        """Return the name of a clip: a hash of all that decides its samples."""
        key = json.dumps([VERSION, MODEL, USER_RATE, wanted.voice, wanted.texts, wanted.pauses])
        return hashlib.sha256(key.encode()).hexdigest()[:32]


def default_folder() -> Path:
    """Return the folder of the user's cache that sounds are kept in."""
    return Path(os.environ.get(CACHE_VARIABLE) or _user_cache()) / "lab"


def _user_cache() -> Path:
    """Return voxlane's folder among the user's caches."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "voxlane/voxlane/Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/voxlane"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "voxlane"


def sound_wanted(name: str, seed: int) -> Wanted | None:
    """Return the speech that a sound is made of, None if it needs none; raise LabError for an unknown sound."""
    kind, argument = _named(name)
    if kind in SPOKEN:
        return Wanted((SPOKEN[kind],), voice_named(argument or "any", seed))
    if kind == "television":
        return news(seed)
    return None


def standard() -> list[Wanted]:
    """Return all speech that sounds and beds can need: every spoken sound in every voice, café and television."""
    sounds = [Wanted((text,), voice) for text in SPOKEN.values() for voice in VOICES]
    readers = [news(seed) for seed in range(len(VOICES))]
    return list(dict.fromkeys([*sounds, *readers, *(one for name in BEDS for one in bed_wanted(name))]))


def _named(name: str) -> tuple[str, str]:
    """Return the kind of a sound and what stands behind the colon, both checked."""
    kind, _, argument = name.partition(":")
    if kind not in SOUNDS:
        raise LabError(f"there is no sound {quote(name)}: use one of {', '.join(SOUNDS)}")
    if kind == "dtmf" and not (argument.strip(",") and set(argument) <= {*KEYS, ","} and len(argument) <= MOST_KEYS):
        raise LabError(f"{quote(name)}: write the keys as dtmf:123, {MOST_KEYS} at most of 0 to 9, *, # and A to D")
    if kind in LASTING:
        _seconds(kind, argument)
    elif argument and kind not in SPOKEN and kind != "dtmf":
        raise LabError(f"{quote(name)}: {kind} takes nothing behind a colon")
    return kind, argument


def _seconds(kind: str, argument: str) -> float:
    try:
        seconds = float(argument) if argument else LASTING[kind]
    except ValueError:
        seconds = 0.0
    if not 0.3 <= seconds <= MOST_S:  # also refuses nan
        raise LabError(f"{kind}: write how long it lasts as {kind}:5, from 0.3 to {MOST_S:g} seconds")
    return seconds


def _keys(name: str, keys: str) -> Clip:
    """Return the tones of keys; where they sound is known."""
    voiced: list[Interval] = []
    place = 0
    for key in keys:
        if key != ",":
            voiced.append((place, place + samples_of(TONE_S)))
        place += len(key_tones(key))
    sound = key_tones(keys)
    return Clip(name, levelled(sound, tuple(voiced)), tuple(voiced))


def _lasting(name: str, sound: Sound) -> Clip:
    """Return a sound that was cut out of a longer one: it begins and ends softly, and is voiced throughout."""
    soft = sound * swell(len(sound), 0.02, 0.05)
    inside = voiced_intervals(soft, len(soft) / USER_RATE)
    return made_clip(name, soft, inside)


def _chance(name: str, seed: int) -> Generator:
    """Return a generator of random numbers for this name and this seed."""
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])


def _read(path: Path, wanted: Wanted) -> Clip | None:
    """Return a kept clip; None if there is none, or if the file is damaged and must be made again."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as kept:
            pcm, voiced = kept["pcm"], kept["voiced"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error):
        return None
    if pcm.dtype != np.int16 or pcm.ndim != 1 or voiced.ndim != 2 or not len(voiced):
        return None
    return Clip("speech", pcm, tuple((int(first), int(end)) for first, end in voiced), wanted.words)
