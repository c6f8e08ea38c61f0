"""The ear in native code: all detectors and levels of a piece of sound in one call. Its events are those of `Ear`.

ear.cpp has the frames, the gate, the room and the people, and calls WebRTC's detector in its own library and Silero's
network in codecs/silero.cpp. A piece of 20 ms is one call. Without a compiler, with VOXLANE_NATIVE=0, or where the two
do not agree, `Ear` serves.

The call keeps the interpreter's lock: it takes a few µs, and another thread that took the lock meanwhile could keep the
event loop waiting for 5 ms.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from dataclasses import astuple
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxlane.codecs import prosody, silero
from voxlane.codecs.native_build import BuildError, build
from voxlane.codecs.voicing import WebRtcDetector, webrtc_process
from voxlane.server.conversation.hearing.audibility import FAINT_DB
from voxlane.server.conversation.hearing.ear import (
    GATE_STRICTNESS,
    Confirmed,
    Detector,
    Dropped,
    Ear,
    EarEvent,
    EarPolicy,
    Hearing,
    Onset,
    Silent,
    Voiced,
    amplified,
)
from voxlane.server.conversation.hearing.loudness import RoomPolicy
from voxlane.server.conversation.hearing.people import PeoplePolicy
from voxlane.server.conversation.hearing.portrait import Portrait

_HERE, _CODECS = Path(__file__).parent, Path(silero.__file__).parent
_SOURCES = (_HERE / "ear.cpp", _CODECS / "silero.cpp", _CODECS / "prosody.cpp")
_HEADERS = tuple(_CODECS / name for name in ("silero.h", "prosody.h", "native_math.h"))

_LEARN, _DISTANCE, _DETECT = range(3)  # what the native code asks
_HEARING = (Hearing.QUIET, Hearing.SUSPECTED, Hearing.VOICED, Hearing.PAUSED)
_ONSET, _CONFIRMED, _DROPPED, _SILENT, _VOICED = range(5)
_MOST_WINDOW = 64  # frames that `EarPolicy.open_window` may have in the native code
_LEAST_GAIN = 6.0
_STIRRING = 2

_Ask = ctypes.PYFUNCTYPE(ctypes.c_double, ctypes.py_object, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)


class _Event(ctypes.Structure):
    kind: int
    at: int
    heard: int
    faint: int
    _fields_ = [(name, ctypes.c_int64) for name in ("kind", "at", "heard", "faint")]


class _View(ctypes.Structure):
    """What the native ear shows; the names are those of ear.cpp."""

    heard: int
    framed: int
    kept_from: int
    hearing: int
    since: int
    before: int
    last_strong: int
    strong: int
    stirs: int
    amplifies: float
    kept: int
    kept_bytes: int
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("heard", "framed", "kept_from", "hearing", "since", "before")),
        *((name, ctypes.c_int64) for name in ("last_strong", "strong", "stirs")),
        ("amplifies", ctypes.c_double),
        ("kept", ctypes.c_void_p),
        ("kept_bytes", ctypes.c_int64),
        ("events", ctypes.POINTER(_Event)),
    ]


class _Gate(ctypes.Structure):
    _fields_ = [("detector", ctypes.c_void_p), ("process", ctypes.c_void_p)]


class NativeEar(Ear):
    """One microphone. `native()` says whether this machine can have one."""

    def __init__(
        self,
        policy: EarPolicy | None = None,
        room: RoomPolicy | None = None,
        people: PeoplePolicy | None = None,
        *,
        detector: Callable[[], Detector] | None = None,
        finished: Callable[[NDArray[np.float32]], float] | None = None,
    ) -> None:
        """Make an ear; `detector` replaces Silero, for a test that compares the rest bit for bit."""
        loaded = _library()
        assert loaded is not None
        self._handle = 0
        self._native = loaded
        policy = policy or EarPolicy()
        assert 1 <= policy.open_window <= _MOST_WINDOW
        self.guarded = False
        self.threshold = policy.voiced_on
        values = (*astuple(policy), *astuple(room or RoomPolicy()), *astuple(people or PeoplePolicy()), FAINT_DB)
        policies = (ctypes.c_double * len(values))(*values)
        self._gate_detector = WebRtcDetector(GATE_STRICTNESS)
        gate = _Gate(self._gate_detector.address, webrtc_process())
        network = None if detector is not None else ctypes.byref(_network())
        self._handle = loaded.vox_ear_new(policies, ctypes.byref(gate), network, _asked)
        self._view = _View.from_address(self._handle)
        self._feed = loaded.vox_ear_feed
        self._portrait = Portrait()
        self._new_detector = detector or _no_detector
        self._detector: Detector | None = None
        self._finished = finished or native_finished
        self._finished_at = -1
        self._p_finished = 0.0

    @staticmethod
    def silero() -> Callable[[NDArray[np.float32]], float]:
        """Return Silero's network alone, for a stream of its own: from 512 samples to the probability of speech."""
        loaded, state = _library(), np.zeros(3 * silero.HIDDEN, np.float32)
        assert loaded is not None

        def step(frame: NDArray[np.float32]) -> float:
            probability: float = loaded.vox_silero(ctypes.byref(_network()), state.ctypes.data, frame.ctypes.data)
            return probability

        return step

    def __del__(self) -> None:
        if self._handle:
            self._native.vox_ear_free(self._handle)

    @property
    def heard(self) -> int:
        """Number of samples that have come."""
        return self._view.heard

    @property
    def hearing(self) -> Hearing:
        """The present state."""
        return _HEARING[self._view.hearing]

    @property
    def voiced_for(self) -> int:
        """Samples of voice since the onset, pauses left out; 0 if there is none."""
        view = self._view
        match _HEARING[view.hearing]:
            case Hearing.QUIET:
                return 0
            case Hearing.PAUSED:
                return view.before
            case _:
                return view.before + view.framed - view.since

    @property
    def faint(self) -> bool:
        """Whether the last confirmed voice is so soft that words are probably missed."""
        level: float = self._native.vox_ear_voice_level(self._handle)
        return level < FAINT_DB

    @property
    def faded_for(self) -> int:
        """Samples since the last strong frame: the end of a voice often shows here before `Silent`."""
        return self._view.framed - self._view.last_strong

    @property
    def strong_for(self) -> int:
        """Samples in strong frames since the onset."""
        return self._view.strong

    @property
    def excess_db(self) -> float:
        """How much louder than usual the person was in the last 50 ms of the voice; 0 before they were first heard."""
        found: float = self._native.vox_ear_excess_db(self._handle)
        return found

    @property
    def may_speak(self) -> bool:
        """Whether the last 40 ms of a pause may be the beginning of a voice: the detector says so 50 ms later."""
        return self.hearing is Hearing.PAUSED and self._view.stirs >= _STIRRING

    def silence(self, samples_so_far: int) -> int:
        """Return for how many samples speech has paused at `samples_so_far`; 0 if there is a voice or was none."""
        return max(0, samples_so_far - self._view.since) if self.hearing is Hearing.PAUSED else 0

    @property
    def _paused_at(self) -> int:
        return self._view.since

    def _sound(self, first: int, end: int) -> bytes:
        """Return the kept sound between two samples."""
        view = self._view
        first = max(0, first - view.kept_from)
        end = min(end - view.kept_from, view.kept_bytes // 2)
        return ctypes.string_at(view.kept + 2 * first, 2 * (end - first)) if end > first else b""

    def since(self, sample: int) -> bytes:
        """Return the sound from `sample` up to now, or from the oldest kept sample if that is later.

        A faint person's is amplified, from the onset to `rest` by the same gain.
        """
        sound, gain = self._sound(sample, self._view.heard), self._view.amplifies
        return sound if gain < _LEAST_GAIN else amplified(sound, gain)

    def rest(self) -> None:
        """End the turn: a voice, even the same one, is an onset again."""
        self._native.vox_ear_rest(self._handle)

    def feed(self, pcm: bytes) -> list[EarEvent]:
        """Add the next bytes of the stream; return the events in them."""
        count = self._feed(self._handle, self, pcm, len(pcm), self.guarded, self.threshold)
        return [_event_of(self._view.events[place]) for place in range(count)] if count else []

    def ask(self, question: int, data: int | None, size: int) -> float:
        """Answer a question of the native code about `size` bytes of sound."""
        sound = ctypes.string_at(data, size) if data is not None else b""
        if question == _LEARN:
            self._portrait.learn(sound)
        elif question == _DISTANCE:
            return self._portrait.distance(sound)
        elif not sound:
            self._detector = self._new_detector()
        else:
            assert self._detector is not None
            (probability,) = self._detector(np.frombuffer(sound, np.float32))
            return probability
        return 0.0


_asked = _Ask(NativeEar.ask)  # called with the ear that the native code was given


def _no_detector() -> Detector:
    raise AssertionError("the native ear has a detector of its own")


def _event_of(event: _Event) -> EarEvent:
    match event.kind:
        case 0:
            return Onset(event.at, event.heard)
        case 1:
            return Confirmed(event.at, event.heard)
        case 2:
            return Dropped(event.at, event.heard, bool(event.faint))
        case 3:
            return Silent(event.at, event.heard)
        case _:
            return Voiced(event.at, event.heard)


def new_ear() -> Ear:
    """Return the ear of a new microphone: a native one where there can be one."""
    return NativeEar() if _library() is not None else Ear()


def native() -> str:
    """Build and load the native ear; return "" if it serves, else why not."""
    _library()
    return _reason[0] if _reason else ""


_reason: list[str] = []


@cache
def _library() -> ctypes.PyDLL | None:
    if os.environ.get("VOXLANE_NATIVE") == "0":
        _reason.append("VOXLANE_NATIVE=0 turns it off")
        return None
    try:
        loaded = _open(build("libvoxlane_ear.so", _SOURCES, _HEADERS))
        webrtc_process()
    except (OSError, AttributeError, subprocess.SubprocessError, BuildError) as error:
        _reason.append(" ".join(str(error).split()))
        return None
    return loaded


def _open(path: Path) -> ctypes.PyDLL:
    loaded = ctypes.PyDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    signatures = {
        "vox_ear_policies": (number, []),
        "vox_ear_view": (number, []),
        "vox_ear_new": (pointer, [pointer, pointer, pointer, _Ask]),
        "vox_ear_free": (None, [pointer]),
        "vox_ear_feed": (number, [pointer, ctypes.py_object, ctypes.c_char_p, number, ctypes.c_int32, ctypes.c_double]),
        "vox_ear_rest": (None, [pointer]),
        "vox_ear_excess_db": (ctypes.c_double, [pointer]),
        "vox_ear_voice_level": (ctypes.c_double, [pointer]),
        "vox_prosody": (ctypes.c_double, [pointer, pointer, number]),
        "vox_prosody_features": (None, [pointer, pointer, number, pointer]),
        "vox_silero": (ctypes.c_double, [pointer, pointer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    policies = len(astuple(EarPolicy())) + len(astuple(RoomPolicy())) + len(astuple(PeoplePolicy())) + 1
    if loaded.vox_ear_policies() != policies or loaded.vox_ear_view() != ctypes.sizeof(_View):
        raise OSError("the native ear has other values than the reference")
    return loaded


def native_finished(clip: NDArray[np.float32]) -> float:
    """Return the probability that a sentence ends with this clip, as `prosody.finished` does."""
    loaded, samples = _library(), np.ascontiguousarray(clip, np.float32)
    assert loaded is not None
    probability: float = loaded.vox_prosody(ctypes.byref(_prosody()), samples.ctypes.data, len(samples))
    return probability


@cache
def _prosody() -> prosody.PackedTables:
    return prosody.packed()


@cache
def _network() -> silero.PackedNetwork:
    return silero.packed(silero.network())
