"""hibari: English speech at 24 kHz from 6 million parameters. The default voice.

The network predicts, for every 12.5 ms, the spectra of a pulse train, of noise and of the rest; hibari's own signal
processing adds them up into samples. It synthesises one clause at a time, independent of the clauses around it.

Every voice is a model of its own. "heart" comes with the package; the others count only if their file is already in
hibari's cache (HIBARI_HOME) with the right hash: nothing is downloaded here.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import hibari.dsp
import hibari.voices
import numpy as np
import onnxruntime

from voxlane.engine.errors import WeightsError
from voxlane.engine.models.hibari.noise import ClauseNoise, first_row, noise_table
from voxlane.engine.models.synthesis import (
    SILENCE,
    Phonemiser,
    Prepared,
    SynthesisedClause,
    SynthesisError,
    check_speed,
    finish,
    open_session,
)
from voxlane.engine.text.normalise.pronunciations import NO_PRONUNCIATIONS, Pronunciations

MAX_PHONEMES = 400
"""About 400 characters; hibari cuts there itself. A clause of that length is 18 s of speech and takes 100 MB, at half
speed 220 MB; one of 312 characters is still understood word for word."""

FRAME_SAMPLES = 600
"""A predicted duration counts 25 ms, two of the network's spectra."""

_DURATIONS = "/Clip_output_0"  # [phonemes + 2], whole numbers from 1


class Hibari:
    """A loaded hibari."""

    name = "hibari"
    sample_rate: int = hibari.dsp.SR
    default_voice: str = hibari.voices.DEFAULT

    def __init__(self, threads: int = 1, phonemiser: Phonemiser | None = None) -> None:
        self._threads = threads
        self._phonemiser = phonemiser or Phonemiser()
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        self._opening = threading.Lock()
        self.noise = noise_table()
        self.voices = tuple(voice for voice in hibari.voices.VOICES if _is_whole(voice))

    def warm_up(self) -> None:
        """Load the default voice and its lexicon, and say a word with it."""
        self.warm_up_reading()
        self.synthesise(self.prepare("Ready."))

    def warm_up_reading(self) -> None:
        """Load the lexicon only, for a runner that has the network elsewhere."""
        self._phonemiser.warm_up()

    def prepare(self, text: str, *, voice: str | None = None, names: Pronunciations = NO_PRONUNCIATIONS) -> Prepared:
        """Return the clause as phonemes; see Synthesiser."""
        voice = self._known(voice)
        return self._phonemiser.prepare(text, MAX_PHONEMES, british=hibari.voices.VOICES[voice]["british"], names=names)

    def synthesise(
        self, prepared: Prepared, *, voice: str | None = None, speed: float = 1.0, seed: int = 0
    ) -> SynthesisedClause:
        """Return the clause's sound; `seed` decides its noise, in breath and consonants."""
        session = self._session(self._known(voice))
        check_speed(speed)
        if not prepared.ids:
            return SILENCE
        *spectra, pitch, durations = session.run(
            None, {"ids": np.asarray([prepared.ids], np.int64), "speed": np.asarray([speed], np.float32)}
        )
        noise = ClauseNoise(self.noise, first_row(seed))
        samples = hibari.dsp.synth(*(spectrum[0] for spectrum in spectra), pitch[0], noise)
        return finish(prepared, samples, durations, frame_samples=FRAME_SAMPLES, rate=self.sample_rate, speed=speed)

    def rest(self) -> None:
        """Close the sessions and so end their threads; the next clause opens them again."""
        self._sessions.clear()

    def wake(self) -> None:
        """Open the session of the default voice."""
        self._session(self._known(None))

    def file(self, voice: str | None = None) -> Path:
        """Return the ONNX file of a voice; SynthesisError if there is none, WeightsError if it is another."""
        voice = self._known(voice)
        path = self._path(voice)
        if not _is_whole(voice):
            raise WeightsError(path, f"not the file of hibari's voice {voice}: its sha256 is another")
        return path

    def _known(self, voice: str | None) -> str:
        voice = voice or self.default_voice
        if voice in self.voices:  # without a look at the disk for each clause, which takes 45 µs
            return voice
        if voice not in hibari.voices.VOICES:
            raise SynthesisError(f"there is no voice {voice!r:.40}: hibari has {', '.join(self.voices)}")
        self._path(voice)
        return voice

    def _path(self, voice: str) -> Path:
        path = _file(voice)
        if path is None:
            raise SynthesisError(f"voice {voice} is not on this machine: hibari has {', '.join(self.voices)}")
        return path

    def _session(self, voice: str) -> onnxruntime.InferenceSession:
        with self._opening:  # `wake` may run in a thread
            if voice not in self._sessions:
                path = self.file(voice)
                self._sessions[voice] = open_session(path.read_bytes(), path, self._threads, _DURATIONS)
            return self._sessions[voice]


def _is_whole(voice: str) -> bool:
    path = _file(voice)
    if path is None:
        return False
    wanted: str = hibari.voices.VOICES[voice]["sha256"]
    return hashlib.sha256(path.read_bytes()).hexdigest() == wanted


def _file(voice: str) -> Path | None:
    """Return the path of a voice's file, or None if it would have to be downloaded."""
    entry = hibari.voices.VOICES[voice]
    folder = hibari.voices.ASSETS if entry.get("bundled") else hibari.voices.cache_dir()
    path = Path(os.fspath(folder)) / entry["file"]
    return path if path.is_file() else None
