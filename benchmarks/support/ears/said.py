"""Said right: what a recogniser hears of names with and without their pronunciations, and of numbers and codes.

The voice is Kokoro, the recogniser Moonshine. A word is right if the transcript contains one of the spellings
that the recogniser may use. In one voice (af_heart) it heard "Seahop in" for Siobhan and "Shivan" with the
respelling, "Niam" and "Neve", "Jokwan" and "Joaquin", "Zocchital" and "Sochiel".
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from support.common import engine, table
from support.ears.corpus import RATE, VOICES, Sound, at_level, resample
from support.speech import hear_whole

from voxlane.engine.loop.core import Core
from voxlane.engine.models.kokoro import Kokoro
from voxlane.engine.text.normalise.pronunciations import pronunciations_of
from voxlane.engine.weights import store

_SIOBHAN = ("siobhan", "shavon", "chevon", "shivon", "shavaughn", "shivan", "shavan")
_NIAMH = ("neve", "neeve", "neave", "neev")
NAMES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("I am going to meet Siobhan tomorrow.", "Siobhan = shiv-awn", _SIOBHAN),
    ("I am going to meet Siobhan tomorrow.", "Siobhan = /ʃɪˈvɔːn/", _SIOBHAN),
    ("My daughter Niamh likes music.", "Niamh = neev", _NIAMH),
    ("My daughter Niamh likes music.", "Niamh = /niːv/", _NIAMH),
    ("Please ask Joaquin about it.", "Joaquin = /wɑˈkiːn/", ("joaquin", "wakin", "waquin")),
    (
        "The nurse is called Xochitl.",
        "Xochitl = /ˈsoʊtʃiːl/",
        ("sochil", "so chill", "sochi", "social", "sochiel", "sociel"),
    ),
)
FORMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("In an emergency call 911.", ("9-1-1", "911", "nine one one")),
    ("There are 911 people here.", ("911", "nine hundred")),
    ("Our number is 0800 123456.", ("0800", "zero eight zero zero")),
    ("He lives at 221B Baker Street.", ("221 b", "221b", "two twenty-one b", "221-b")),
    ("The total is €1.150,50.", ("1,150", "one thousand one hundred")),
    ("Take plan A, not plan B.", ("plan a", "plan eh")),
    ("Your order is #A-4711.", ("4711", "four seven one one", "4-7-1-1", "47-11")),
    ("Open the file /etc/hosts now.", ("slash",)),
)


@cache
def _voice() -> Kokoro:
    return Kokoro(Path(store.resolve("kokoro-82m")), threads=1)


@cache
def _ears() -> Core:
    return engine(model="", asr_model="moonshine-tiny-en", threads=1).core


def spoken(text: str, voice: str, *entries: str) -> Sound:
    """Return a text in a voice, names as the entries say."""
    model = _voice()
    clause = model.synthesise(model.prepare(text, voice=voice, names=pronunciations_of(entries)), voice=voice)
    return at_level(resample(clause.samples, model.sample_rate, RATE), -23.0)


def heard(text: str, voice: str, *entries: str) -> str:
    """Return what the recogniser hears."""
    return hear_whole(_ears(), spoken(text, voice, *entries))[1].strip()


def report(voices: tuple[str, ...] = VOICES[:4]) -> None:
    """Print what is heard of names, without and with their entries, and of written forms."""
    rows = []
    for text, entry, spellings in NAMES:
        plain, named = ([heard(text, voice, *entries) for voice in voices] for entries in ((), (entry,)))
        right = [sum(any(one in words.lower() for one in spellings) for words in those) for those in (plain, named)]
        rows.append((entry, f"{right[0]} of {len(voices)}", plain[0], f"{right[1]} of {len(voices)}", named[0]))
    table("Names", ("entry", "without", "heard", "with", "heard"), rows)
    forms = []
    for text, spellings in FORMS:
        those = [heard(text, voice) for voice in voices]
        right_ones = sum(any(one in words.lower() for one in spellings) for words in those)
        forms.append((text, f"{right_ones} of {len(voices)}", those[0]))
    table("Written forms", ("written", "right", "heard"), forms)
