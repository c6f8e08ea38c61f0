"""What every clause-wise voice shares: a clause in, its samples and its words' times out, in one forward pass.

Text becomes spoken words (engine/text/normalise), words become phonemes (hibari's grapheme-to-phoneme library), and
each phoneme keeps the stretch of source it came from, so that the durations a network predicts are the times of words.

Sessions of ONNX Runtime are opened here, with a given thread count and no spinning, so that a voice takes no more of
the machine than the engine allows.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Protocol

import hibari.g2p
import hibari.g2p.oov
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_errors

from voxlane.engine.errors import WeightsError
from voxlane.engine.models.phonemes import WordReader
from voxlane.engine.text.normalise.pronunciations import NO_PRONUNCIATIONS, Pronunciations
from voxlane.engine.text.normalise.reader import spoken_words

Samples = NDArray[np.float32]

MIN_SPEED, MAX_SPEED = 0.5, 2.0
"""Speeds at which both voices stay intelligible."""

MAX_SOURCE_CHARS = 4000
"""Longer text is refused before it becomes phonemes: no clause comes near."""

LEAD_S = 0.03
"""Silence kept before the first sound. The networks were trained on clips that begin with 0.3 s of silence, for which a
listener would wait in every reply."""

_AHEAD_S = 0.05
"""How much earlier a sound is heard than its predicted time. The loudness of both networks' speech agrees best with the
words' predicted times when these are moved forward by 40 to 60 ms, at speeds from 0.7 to 1.5."""

_AUDIBLE = 10 ** (-45 / 20)  # of the loudest 10 ms: consonants are some 35 dB below, what surrounds the words 55
_PAD = 0
RUN_ERRORS = (
    runtime_errors.Fail,
    runtime_errors.InvalidArgument,
    runtime_errors.InvalidGraph,
    runtime_errors.InvalidProtobuf,
    runtime_errors.NotImplemented,
    runtime_errors.RuntimeException,
    runtime_errors.EPFail,
)
"""What ONNX Runtime raises; all of it derives from Exception directly."""


class SynthesisError(ValueError):
    """A clause cannot be spoken as asked: str() is one line without the text itself."""


class ClauseTooLong(SynthesisError):
    """A clause is too long for one forward pass; cut it."""


@dataclass(frozen=True, slots=True)
class WordPlace:
    """A stretch of source and its phonemes: a range of Prepared.ids, empty if it has no sound."""

    source_start: int
    source_end: int
    first: int
    last: int  # exclusive


@dataclass(frozen=True, slots=True)
class Prepared:
    """A clause ready for a network."""

    ids: tuple[int, ...]  # a pad at both ends; () if there is nothing to say
    words: tuple[WordPlace, ...]
    pause_s: float  # after its last punctuation

    @property
    def phonemes(self) -> int:
        """The clause's size: time and memory of a forward pass grow with it."""
        return max(0, len(self.ids) - 2)


@dataclass(frozen=True, slots=True)
class TimedWord:
    """`text[source_start:source_end]` sounds from start_sample to end_sample, without the pause after it."""

    source_start: int
    source_end: int
    start_sample: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class SynthesisedClause:
    """Samples in [-1, 1] and when each word of the source is heard in them, in order."""

    samples: Samples
    words: tuple[TimedWord, ...]


NOTHING = Prepared((), (), 0.0)
SILENCE = SynthesisedClause(np.zeros(0, np.float32), ())


class Synthesiser(Protocol):
    """A voice model that synthesises a clause in one forward pass."""

    @property
    def name(self) -> str:
        """The catalog's or the package's name."""

    @property
    def sample_rate(self) -> int:
        """Samples a second."""

    @property
    def voices(self) -> tuple[str, ...]:
        """The voices on this machine; none is downloaded."""

    @property
    def default_voice(self) -> str:
        """The voice of requests that name none."""

    def warm_up(self) -> None:
        """Load everything that is loaded lazily."""

    def prepare(self, text: str, *, voice: str | None = None, names: Pronunciations = NO_PRONUNCIATIONS) -> Prepared:
        """Return the clause as phonemes, in the accent of `voice`, names as asked; without running the network.

        SynthesisError for an unknown voice, ClauseTooLong for a clause to be cut first.
        """

    def synthesise(
        self, prepared: Prepared, *, voice: str | None = None, speed: float = 1.0, seed: int = 0
    ) -> SynthesisedClause:
        """Return the clause's sound; the same arguments and thread count give the same samples."""

    def rest(self) -> None:
        """End the threads of the network, which a fork would lose; the next clause starts them again."""

    def wake(self) -> object:
        """Start them, so that the next clause need not wait for that; this may be called in another thread."""


class Phonemiser:
    """Text to the phoneme ids that hibari and Kokoro share, English of both accents."""

    def __init__(self) -> None:
        self._readers: dict[bool, WordReader] = {}
        vocabulary = resources.files(hibari).joinpath("assets", "vocab.json").read_text("utf-8")
        self._ids: dict[str, int] = json.loads(vocabulary)
        self._space = self._ids[" "]

    def warm_up(self, *, british: bool = False) -> None:
        """Load an accent's lexicon and its reader of unknown words, 0.8 s."""
        self._reader(british).warm_up()

    def prepare(
        self, text: str, limit: int, *, british: bool = False, names: Pronunciations = NO_PRONUNCIATIONS
    ) -> Prepared:
        """Return at most `limit` phonemes, or raise ClauseTooLong."""
        if len(text) > MAX_SOURCE_CHARS:
            raise ClauseTooLong(f"a clause of {len(text)} characters is too long to be said at once")
        words = spoken_words(text, names)
        if not words:
            return NOTHING
        sounds = self._reader(british).read(words)
        ids, places = [_PAD], []
        for word, sound in zip(words, sounds, strict=True):
            if sound.ids and len(ids) > 1:
                ids.append(self._space)
            places.append(WordPlace(word.start, word.end, len(ids) + sound.first, len(ids) + sound.last))
            ids += sound.ids
        if len(ids) - 1 > limit:
            raise ClauseTooLong(f"a clause of {len(ids) - 1} phonemes is too long to be said at once: {limit} at most")
        if all(place.first == place.last for place in places):
            return NOTHING
        return Prepared((*ids, _PAD), _merged(places), sounds[-1].pause_s)

    def _reader(self, british: bool) -> WordReader:
        if british not in self._readers:
            path = Path(str(resources.files(hibari))) / "assets" / ("oov_gb.onnx" if british else "oov.onnx")
            unknown_words = hibari.g2p.oov.OOV(str(path), open_session(path.read_bytes(), path, threads=1))
            library = hibari.g2p.G2P(oov=unknown_words, british=british)
            self._readers[british] = WordReader(library, self._ids, british=british)
        return self._readers[british]


def open_session(
    model: bytes, path: Path, threads: int, extra_output: str | None = None
) -> onnxruntime.InferenceSession:
    """Return a session over an ONNX model, with an inner tensor as one more output if named, or raise WeightsError."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are exceptions; do not print them too
    # A spinning thread would take its core from the chat model.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Else a memory plan is kept for every length of clause.
    options.enable_mem_pattern = False
    if extra_output is not None:
        model += _output_declaration(extra_output)
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except RUN_ERRORS as error:
        raise WeightsError(path, f"not a model that can be run: {error}") from error


def check_speed(speed: float) -> None:
    """Raise SynthesisError unless the voices can speak at that speed."""
    if not (math.isfinite(speed) and MIN_SPEED <= speed <= MAX_SPEED):
        raise SynthesisError(f"speed must be {MIN_SPEED} to {MAX_SPEED}")


def finish(
    prepared: Prepared, samples: Samples, durations: NDArray[np.float32], *, frame_samples: int, rate: int, speed: float
) -> SynthesisedClause:
    """Return a network's output as speech: within [-1, 1], words timed, the silence around it cut.

    `durations` [len(ids)] are frames per phoneme, as the network predicted them. It counts the silence after a sound as
    part of that sound: a word before a pause ends up to 0.1 s late; the last word ends with its audible sound.
    """
    np.clip(samples, -1.0, 1.0, out=samples)
    onset, offset = _audible(samples, rate // 100)
    first = max(0, onset - int(LEAD_S * rate))
    last = min(len(samples), offset + int(prepared.pause_s * rate / speed))
    edges = np.concatenate(([0], np.cumsum(durations.astype(np.int64)))) * frame_samples
    edges = np.clip(edges - int(_AHEAD_S * rate), onset, offset) - first
    edges[: prepared.words[0].first + 1] = onset - first
    words = tuple(
        TimedWord(word.source_start, word.source_end, int(edges[word.first]), int(edges[word.last]))
        for word in prepared.words
    )
    return SynthesisedClause(samples[first:last], words)


def _audible(samples: Samples, window: int) -> tuple[int, int]:
    """Return where sound begins and ends, in whole windows."""
    windows = samples[: len(samples) // window * window].reshape(-1, window)
    power = np.einsum("nw,nw->n", windows, windows)
    heard = np.flatnonzero(power > power.max(initial=0.0) * _AUDIBLE**2)
    return (int(heard[0]) * window, (int(heard[-1]) + 1) * window) if len(heard) else (0, len(samples))


def _merged(places: list[WordPlace]) -> tuple[WordPlace, ...]:
    """Return one place per stretch of source: "1999" is three words, and heard when the third is."""
    merged: list[WordPlace] = []
    for place in places:
        before = merged[-1] if merged else None
        if before and (before.source_start, before.source_end) == (place.source_start, place.source_end):
            merged[-1] = WordPlace(place.source_start, place.source_end, before.first, max(before.last, place.last))
        elif before and place.first == place.last:  # no sound of its own: it ends with the word before
            merged.append(WordPlace(place.source_start, place.source_end, before.last, before.last))
        else:
            merged.append(place)
    return tuple(merged)


def _output_declaration(name: str) -> bytes:
    """Return bytes that, appended to a serialised ONNX model, make a float tensor one more output of its graph.

    Protocol Buffers merge a message field that comes twice and append its repeated fields: model { graph { output {
    name, type { tensor_type { elem_type: FLOAT } } } } }.
    """
    kind = _field(2, _field(1, b"\x08\x01"))
    return _field(7, _field(12, _field(1, name.encode()) + kind))


def _field(number: int, payload: bytes) -> bytes:
    assert len(payload) < 128  # one byte of length
    return bytes((number << 3 | 2, len(payload))) + payload
