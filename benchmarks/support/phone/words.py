"""Words wrong over a telephone line, beside the same speech at 16 kHz, for both models that listen.

Sixty turns in ten voices and two recordings of people go through `LineMicrophone`: 300 to 3,400 Hz, 8 kHz, mu-law,
packets of 20 ms. Noise is white and 10 dB below the speech in the band of the line; packets are lost in bursts of 1.5
on average. Every lost share has two draws.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from support.common import engine, machine, table
from support.ears import corpus
from support.ears.corpus import RATE, VOICES, Sound
from support.ears.sentences import RECORDINGS, TURNS
from support.ears.words import errors, hear, plain
from support.speech import recording

from voxlane.codecs.g711 import encode_mulaw
from voxlane.engine.audio.torchaudio_import import functional
from voxlane.engine.loop.core import Core
from voxlane.server.phone.line_microphone import LineMicrophone
from voxlane.server.protocols.dialect import AudioFormat
from voxlane.server.protocols.phone.line_events import Media

MODELS = ("moonshine-tiny-en", "whisper-tiny-en")
LINE_RATE, PACKET = 8_000, 160
SNR_DB = 10.0
BURST = 1.5  # packets


@dataclass(frozen=True, slots=True)
class Condition:
    """What happens to a turn before it is heard."""

    name: str
    line: bool = True  # over a telephone line; False: 16 kHz as it is
    snr_db: float | None = None
    lost: float = 0.0  # share of the packets
    draws: int = 1

    def heard(self, sound: Sound, seed: int) -> Sound:
        """Return what the recogniser is given."""
        if not self.line:
            return sound if self.snr_db is None else _noisy(sound, self.snr_db, seed)
        band = on_line(sound)
        return through_line(band if self.snr_db is None else _noisy(band, self.snr_db, seed), self.lost, seed)


CONDITIONS = (
    Condition("16 kHz", line=False),
    Condition("16 kHz, noise", line=False, snr_db=SNR_DB),
    Condition("line"),
    Condition("line, 2 % lost", lost=0.02, draws=2),
    Condition("line, noise", snr_db=SNR_DB),
    Condition("line, noise, 2 % lost", snr_db=SNR_DB, lost=0.02, draws=2),
    Condition("line, noise, 10 % lost", snr_db=SNR_DB, lost=0.1, draws=2),
)


def on_line(sound: Sound) -> Sound:
    """Return a clip as a telephone takes it: 8 kHz, without the lowest tones."""
    narrow = torch.from_numpy(corpus.resample(sound, RATE, LINE_RATE))
    result: Sound = functional.highpass_biquad(narrow, LINE_RATE, 300.0).numpy()
    return result


def through_line(band: Sound, lost: float, seed: int) -> Sound:
    """Return what `LineMicrophone` makes of a clip of which packets are lost."""
    data = encode_mulaw(band)
    microphone, out = LineMicrophone(AudioFormat("mulaw", LINE_RATE)), bytearray()
    starts = range(0, len(data) - PACKET + 1, PACKET)
    for number, (start, gone) in enumerate(zip(starts, losses(lost, seed), strict=False)):
        if not gone:
            media = Media(data[start : start + PACKET], at_ms=20 * number)
            out += b"".join(microphone.push(media, 0.02 * number))
    return np.frombuffer(bytes(out), "<i2").astype(np.float32) / np.float32(32768)


def losses(share: float, seed: int) -> Iterator[bool]:
    """Yield whether each packet is lost, in bursts."""
    chance, lost = np.random.default_rng(seed), False
    begins = share / BURST / (1 - share)
    while True:
        lost = bool(chance.random() < (1 - 1 / BURST if lost else begins))
        yield lost


def _noisy(sound: Sound, snr_db: float, seed: int) -> Sound:
    return corpus.mixed(sound, corpus.white(len(sound) / RATE + 1, seed)[: len(sound)], snr_db)


def clips() -> Iterator[tuple[str, Sound, bool]]:
    """Yield the text and the sound of every clip, and whether a person spoke it."""
    for number, text in enumerate(TURNS):
        yield text, corpus.say(text, VOICES[number % len(VOICES)]).sound, False
    for name, text in RECORDINGS.items():
        yield text, recording(name), True


def wrong(core: Core, condition: Condition) -> dict[bool, tuple[int, int]]:
    """Return how many words are wrong and of how many: in the turns (False), and in people's recordings (True)."""
    found = {False: (0, 0), True: (0, 0)}
    for number, (text, sound, person) in enumerate(clips()):
        for draw in range(condition.draws):
            mistakes = errors(text, hear(core, condition.heard(sound, 1000 * draw + number)))
            found[person] = (found[person][0] + mistakes, found[person][1] + len(plain(text)))
    return found


def report(models: tuple[str, ...] = MODELS, hears: Callable[[str], Core] | None = None) -> None:
    """Print the table."""
    rows = [[condition.name] for condition in CONDITIONS]
    header = [""]
    for model in models:
        core = hears(model) if hears else engine(model="", asr_model=model).core
        header += [model, "people"]
        for row, condition in zip(rows, CONDITIONS, strict=True):
            found = wrong(core, condition)
            row += [f"{100 * mistakes / words:.1f}" for mistakes, words in (found[False], found[True])]
            print(f"  {model}, {condition.name}: {row[-2]} and {row[-1]} %", file=sys.stderr, flush=True)
    table(f"words wrong over a line, {machine()}: %, of sixty turns in ten voices, and of two people", header, rows)
