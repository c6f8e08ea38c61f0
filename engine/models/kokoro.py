"""Kokoro 82M: finer English speech at 24 kHz, for machines with cores to spare.

One network from phonemes to samples; a voice is a table of styles, picked by the length of the clause. It has no noise
of its own, so a seed changes nothing. Its phonemes are English: voices of other languages speak English with an accent.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import onnxruntime

from voxlane.engine.errors import WeightsError
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

MODEL_FILE, VOICES_FILE = "kokoro-v1.0.int8.onnx", "voices.bin"

VOICES = (
    "af_alloy", "af_aoede", "af_bella", "af_heart", "af_jessica", "af_kore", "af_nicole", "af_nova", "af_river",
    "af_sarah", "af_sky", "am_adam", "am_echo", "am_eric", "am_fenrir", "am_liam", "am_michael", "am_onyx", "am_puck",
    "am_santa", "bf_alice", "bf_emma", "bf_isabella", "bf_lily", "bm_daniel", "bm_fable", "bm_george", "bm_lewis",
    "ef_dora", "em_alex", "em_santa", "ff_siwis", "hf_alpha", "hf_beta", "hm_omega", "hm_psi", "if_sara", "im_nicola",
    "jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo", "pf_dora", "pm_alex", "pm_santa", "zf_xiaobei",
    "zf_xiaoni", "zf_xiaoxiao", "zf_xiaoyi", "zm_yunjian", "zm_yunxi", "zm_yunxia", "zm_yunyang",
)  # fmt: skip
"""In the order of their tables in the file. First letter: a American, b British, then e f h i j p z for Spanish,
French, Hindi, Italian, Japanese, Portuguese and Chinese; second: f female, m male."""

MAX_PHONEMES = 510
"""The network's positions, less a pad at both ends; also the rows of a voice's table."""

STYLE = 256
FRAME_SAMPLES = 600
"""A predicted duration counts 25 ms."""

_DURATIONS = "/encoder/Clip_output_0"  # [1, phonemes + 2], whole numbers from 1


class Kokoro:
    """A loaded Kokoro."""

    name = "kokoro-82m"
    sample_rate = 24_000
    voices = VOICES
    default_voice = "af_heart"

    def __init__(self, folder: Path, threads: int = 1, phonemiser: Phonemiser | None = None) -> None:
        """Open the model's two files, or raise WeightsError."""
        table = folder / VOICES_FILE
        shape = (len(VOICES), MAX_PHONEMES, STYLE)
        if not table.is_file() or table.stat().st_size != 4 * np.prod(shape):
            raise WeightsError(table, f"must hold {len(VOICES)} voices of {MAX_PHONEMES} x {STYLE} float32")
        model = folder / MODEL_FILE
        if not model.is_file():
            raise WeightsError(model, "there is no such file")
        self._styles = np.memmap(table, np.dtype("<f4"), "r", shape=shape)
        self._model, self._threads = model, threads
        self._session: onnxruntime.InferenceSession | None = None
        self._opening = threading.Lock()
        self.wake()
        self._phonemiser = phonemiser or Phonemiser()

    def warm_up(self) -> None:
        """Load the American lexicon and say a word."""
        self._phonemiser.warm_up()
        self.synthesise(self.prepare("Ready."))

    def rest(self) -> None:
        """Close the session and so end its threads; the next clause opens it again."""
        self._session = None

    def wake(self) -> onnxruntime.InferenceSession:
        """Return the session; open it if it is closed."""
        with self._opening:  # it may run in a thread
            if self._session is None:
                self._session = open_session(self._model.read_bytes(), self._model, self._threads, _DURATIONS)
            return self._session

    def prepare(self, text: str, *, voice: str | None = None, names: Pronunciations = NO_PRONUNCIATIONS) -> Prepared:
        """Return the clause as phonemes; see Synthesiser."""
        return self._phonemiser.prepare(text, MAX_PHONEMES, british=self._known(voice).startswith("b"), names=names)

    def synthesise(
        self, prepared: Prepared, *, voice: str | None = None, speed: float = 1.0, seed: int = 0
    ) -> SynthesisedClause:
        """Return the clause's sound; every seed gives the same."""
        styles = self._styles[VOICES.index(self._known(voice))]
        check_speed(speed)
        if not prepared.ids:
            return SILENCE
        samples, durations = self.wake().run(
            None,
            {
                "tokens": np.asarray([prepared.ids], np.int64),
                "style": styles[prepared.phonemes - 1][None],
                "speed": np.asarray([speed], np.float32),
            },
        )
        return finish(prepared, samples, durations[0], frame_samples=FRAME_SAMPLES, rate=self.sample_rate, speed=speed)

    def _known(self, voice: str | None) -> str:
        voice = voice or self.default_voice
        if voice not in VOICES:
            raise SynthesisError(f"there is no voice {voice!r:.40}: Kokoro has {', '.join(VOICES)}")
        return voice
