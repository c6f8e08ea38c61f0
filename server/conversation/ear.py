"""Detect where a voice begins, goes on and stops in one microphone's stream.

Input is PCM16 at 16 kHz in pieces of any length. Events carry sample numbers counted from the stream's first sample and
depend on the sound alone, not on how it was cut. There are no words, turns or clock here: turns.py and floor.py decide
what a pause means.

Two detectors share the work. WebRTC's, with a measure of loudness above the background, looks at every 10 ms: a gate
that is quick and often wrong. Silero's costs twenty times as much. It runs only while the gate is open or speech is
confirmed, and decides whether the gate was right.

Measured with 100 utterances in five synthetic voices at -20, -30 and -40 dB, at -25 dB in pink and in white noise 20
and 10 dB below, guarded and not, and with 31 beginnings of sentences in recordings; milliseconds of sound:

    first voiced sound to Onset        median up to 30, 95 % within 50; guarded at -40 dB, a level not learnt, 40 and 90
    first voiced sound to Confirmed    median 120 to 140, 95 % within 240
    last sound to Silent.since         median -6 to 50, 95 % within 126
    missed                             none of 1,400; one of the 31 recorded ones
    onsets before the voice            none of 1,400

    10 each, at -20 and -35 dB: cough, keys, knocks, breath, paper, hum, white and pink noise, traffic: nearly each is
    an onset and dropped, none of 180 confirmed. Confirmed of 20: 3 tones, 6 of a telephone's key tones, 4 pieces of
    music, 17 slams.

    An assistant's voice that leaks in 25 dB below a person's of -20 dB, or 20 dB below one of -30: none of 40 heard by
    a guarded ear. 5 dB louder: most are.

On a Neoverse N1 a second of sound costs 0.9 ms if it is quiet and 5.3 ms if it is speech.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import log10

import numpy as np
from numpy.typing import NDArray

from voxlane.codecs.voicing import FRAME_SAMPLES, GATE_SAMPLES, RATE, Voicing, voice_gate

GATE_BYTES = 2 * GATE_SAMPLES

_USUAL, _LEARNING = -30.0, 0.01  # dB: the assumed loudness of a person; then learnt within seconds
_LEVELS = 100  # frames: one second

Gate = Callable[[bytes], bool]
"""Return whether 10 ms of PCM16 may be a voice."""

Detector = Callable[[NDArray[np.float32]], list[float]]
"""Return the speech probability of each 32 ms of a stream that these samples complete."""


@dataclass(frozen=True, slots=True)
class EarPolicy:
    """Thresholds of voice detection. Loudness is in dB of full scale."""

    # The gate
    margin: float = 7.0  # a frame passes the closed gate if it is this many dB above the background
    keep_margin: float = 4.0  # a frame passes the open gate if it is this many dB above the background
    # While the assistant speaks, a frame passes the closed gate only if it is at most this many dB below the person's
    # usual loudness: a fainter one may be the assistant's own voice, leaking in.
    guard: float = 8.0
    faintest: float = -60.0  # a frame below this level never passes
    open_frames: int = 3  # the gate opens when this many of the last `open_window` frames pass
    open_window: int = 4  # frames of 10 ms
    close_s: float = 0.15  # the gate closes when no frame passes for this long
    # The verdict
    voiced_on: float = 0.5  # the probability that makes a 32 ms frame voiced
    voiced_slack: float = 0.15  # after a voiced frame the next needs this much less
    confirm_frames: int = 2  # voiced frames in a row that confirm speech, if the sound is sustained
    sustain_frames: int = 9  # sound is sustained if this many 10 ms frames are nearly as loud as the loudest
    sustain_db: float = 12.0  # "nearly as loud": at most this far below the loudest frame; a knock fades sooner
    certain_frames: int = 6  # voiced frames in a row that confirm speech in any case
    doubt_s: float = 0.6  # an onset not confirmed by then is dropped
    distrust_s: float = 3.0  # after a dropped onset, the gate alone causes no onset for this long
    warm_frames: int = 4  # frames before the onset that Silero hears first: cold, it takes 32 ms longer, often 100
    late_frames: int = 4  # Silero frames by which the end of a voice may be set back
    # Memory
    keep_s: float = 3.0  # the last sound is kept for this long, for requests that begin with a pre-roll


@dataclass(frozen=True, slots=True)
class Onset:
    """A voice may have begun at sample `at`; known when `heard` samples had come."""

    at: int
    heard: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The onset at sample `at` is speech."""

    at: int
    heard: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The onset at sample `at` was not speech."""

    at: int
    heard: int


@dataclass(frozen=True, slots=True)
class Silent:
    """Confirmed speech pauses: there is no voice from sample `since` on."""

    since: int
    heard: int


@dataclass(frozen=True, slots=True)
class Voiced:
    """Speech that paused goes on at sample `at`."""

    at: int
    heard: int


EarEvent = Onset | Confirmed | Dropped | Silent | Voiced


class Hearing(Enum):
    """The state of an ear."""

    QUIET = "quiet"  # nothing, or nothing like a voice
    SUSPECTED = "suspected"  # between Onset and Confirmed or Dropped
    VOICED = "voiced"  # confirmed speech
    PAUSED = "paused"  # confirmed speech that is silent now; `rest` ends it


class _Background:
    """The background level: the quietest moment of the last 2.5 s.

    Speech has gaps and stays above it; a steady hum becomes it.
    """

    BLOCK_FRAMES, BLOCKS = 25, 10
    SMOOTHING = 0.3
    AT_FIRST = -30.0  # dB; the most it can be in the first 2.5 s: the person may speak from the first sample on

    def __init__(self) -> None:
        self._blocks: deque[float] = deque(maxlen=self.BLOCKS)
        self._smooth = self._lowest = 0.0
        self._frames = 0
        self.level = self.AT_FIRST

    def feed(self, level: float) -> None:
        """Add the loudness of the next frame."""
        self._smooth = smooth = self._smooth + (self.SMOOTHING if self._smooth else 1.0) * (level - self._smooth)
        if smooth < self._lowest:
            self._lowest = smooth
        if self._lowest < self.level:
            self.level = self._lowest
        self._frames += 1
        if self._frames == self.BLOCK_FRAMES:
            self._blocks.append(self._lowest)
            self._frames, self._lowest = 0, self._smooth
            self.level = min(self._blocks) if len(self._blocks) == self.BLOCKS else min(self.AT_FIRST, *self._blocks)


def _levels(sound: bytes) -> list[float]:
    """Return how loud each 10 ms is, in dB of full scale."""
    # The sums are whole numbers below 2 ** 53, so exact in any order.
    samples = np.frombuffer(sound, "<i2").astype(np.float64)
    levels = []
    for start in range(0, len(samples), GATE_SAMPLES):
        frame = samples[start : start + GATE_SAMPLES]
        levels.append(10 * log10(float(frame.dot(frame)) / (GATE_SAMPLES * 32768.0**2) + 1e-12))
    return levels


class Ear:
    """One microphone. The order of its events is (Onset (Dropped | Confirmed (Silent Voiced)* Silent? rest))*."""

    def __init__(
        self,
        policy: EarPolicy | None = None,
        *,
        gate: Callable[[], Gate] = lambda: voice_gate(2),
        detector: Callable[[], Detector] = Voicing,
    ) -> None:
        self.guarded = False  # the assistant speaks
        self._policy = policy or EarPolicy()
        self.threshold = self._policy.voiced_on  # the probability that makes 32 ms voiced
        self._gate = gate()
        self._new_detector = detector
        self._detector: Detector | None = None  # a fresh one for every voice
        self._detected = 0  # samples that the detector has seen
        self._background = _Background()
        self._usual = _USUAL  # dB, the loudness of the person
        self._recent: deque[bool] = deque(maxlen=self._policy.open_window)  # of the last frames: passed the gate?
        self._is_open = False
        self._opened = 0  # sample at which the gate opened
        self._last_up = 0  # sample at which the last frame that passed ended
        self._levels: deque[float] = deque(maxlen=_LEVELS)  # levels of the frames that passed since the gate opened
        self._skips = False
        self._run = 0  # voiced frames in a row that Silero has found
        self._distrusted_until = 0
        self._kept = bytearray()  # the last sound, from sample _kept_from on
        self._kept_from = 0
        self._framed = 0  # samples in the gate's frames so far
        self._hearing = Hearing.QUIET
        self._begin = 0  # sample of the onset
        self._since = 0  # sample at which the present voice or pause began
        self._before = 0  # samples of voice since the onset, without the present stretch

    @property
    def heard(self) -> int:
        """Number of samples that have come."""
        return self._kept_from + len(self._kept) // 2

    @property
    def hearing(self) -> Hearing:
        """The present state."""
        return self._hearing

    @property
    def voiced_for(self) -> int:
        """Samples of voice since the onset, pauses left out; 0 if there is none."""
        match self._hearing:
            case Hearing.QUIET:
                return 0
            case Hearing.PAUSED:
                return self._before
            case _:
                return self._before + self._framed - self._since

    def silence(self, samples_so_far: int) -> int:
        """Return for how many samples speech has paused at `samples_so_far`; 0 if there is a voice or was none."""
        return max(0, samples_so_far - self._since) if self._hearing is Hearing.PAUSED else 0

    def since(self, sample: int) -> bytes:
        """Return the sound from `sample` up to now, or from the oldest kept sample if that is later."""
        first = max(0, sample - self._kept_from)
        return bytes(self._kept[2 * first : 2 * (len(self._kept) // 2)])

    def rest(self) -> None:
        """End the turn: a voice, even the same one, is an onset again."""
        self._hearing = Hearing.QUIET
        self._is_open = False
        self._recent.clear()
        self._run = 0

    def feed(self, pcm: bytes) -> list[EarEvent]:
        """Add the next bytes of the stream; return the events in them."""
        events: list[EarEvent] = []
        self._kept += pcm
        first = 2 * (self._framed - self._kept_from)
        sound = bytes(self._kept[first : first + (len(self._kept) - first) // GATE_BYTES * GATE_BYTES])
        for number, level in enumerate(_levels(sound)):
            self._framed += GATE_SAMPLES
            self._pass_gate(sound[number * GATE_BYTES : (number + 1) * GATE_BYTES], level)
            if self._is_open or self._detector is not None or self._hearing is not Hearing.QUIET:
                self._listen(events)
        excess = len(self._kept) // 2 - round(self._policy.keep_s * RATE)
        if excess > RATE // 2:  # cutting moves all kept bytes, so it is not done for every piece
            del self._kept[: 2 * excess]
            self._kept_from += excess
        return events

    def _pass_gate(self, frame: bytes, level: float) -> None:
        """Decide whether the next 10 ms pass, and whether the gate is open after them."""
        policy = self._policy
        bar = self._background.level + (policy.keep_margin if self._is_open else policy.margin)
        if self.guarded and not self._is_open:
            bar = max(bar, self._usual - policy.guard)
        # WebRTC's detector has state: it must see every frame.
        passes = self._gate(frame) and level >= max(bar, policy.faintest)
        self._background.feed(level)
        self._recent.append(passes)
        if passes:
            self._last_up = self._framed
            self._levels.append(level)
            if self._hearing is Hearing.VOICED and not self.guarded:
                self._usual += _LEARNING * (level - self._usual)
        if self._is_open:
            self._is_open = self._framed - self._last_up < policy.close_s * RATE
        elif sum(self._recent) >= policy.open_frames:
            self._is_open = True
            self._levels.clear()
            self._opened = self._framed - GATE_SAMPLES * (len(self._recent) - self._recent.index(True))

    def _listen(self, events: list[EarEvent]) -> None:
        """Update the state from the sound up to `_framed`."""
        policy = self._policy
        if self._hearing is Hearing.QUIET and self._is_open:
            if self._framed >= self._distrusted_until:
                self._begin_at(self._opened, events)
            else:  # continuous noise causes no onset before a quiet stretch
                self._distrusted_until = self._framed + round(policy.distrust_s * RATE)
        self._detect(events)
        doubtful = not self._is_open or self._framed - self._begin >= policy.doubt_s * RATE
        if self._hearing is Hearing.SUSPECTED and doubtful and not self._run:
            self._hearing = Hearing.QUIET
            self._distrusted_until = self._framed + round(policy.distrust_s * RATE)
            events.append(Dropped(self._begin, self._framed))

    def _detect(self, events: list[EarEvent]) -> None:
        """Give Silero the frames that it has not heard, if its verdict is needed."""
        if not self._is_open and self._hearing in (Hearing.QUIET, Hearing.PAUSED):
            self._detector, self._run = None, 0
            return
        if self._detector is None:
            self._detector = self._new_detector()
            before = self._opened - self._policy.warm_frames * FRAME_SAMPLES
            self._detected = max(self._detected, before, self._kept_from)
        while self._framed - self._detected >= FRAME_SAMPLES:
            # While the voice goes on and passes the gate, every other frame is enough.
            self._skips = not self._skips and self._hearing is Hearing.VOICED and all(self._recent)
            if self._skips:
                self._detected += FRAME_SAMPLES
                continue
            first = 2 * (self._detected - self._kept_from)
            frame = np.frombuffer(bytes(self._kept[first : first + 2 * FRAME_SAMPLES]), "<i2")
            (probability,) = self._detector(frame.astype(np.float32) / 32768.0)
            self._detected += FRAME_SAMPLES
            self._judge(probability, self._detected - FRAME_SAMPLES, events)

    def _judge(self, probability: float, start: int, events: list[EarEvent]) -> None:
        """Apply Silero's probability for the 32 ms that begin at `start`."""
        policy = self._policy
        voiced = probability >= self.threshold - (policy.voiced_slack if self._run else 0.0)
        self._run = self._run + 1 if voiced else 0
        match self._hearing:
            case Hearing.QUIET | Hearing.SUSPECTED if self._run >= policy.confirm_frames and self._sustained:
                if self._hearing is Hearing.QUIET:
                    self._begin_at(start - (self._run - 1) * FRAME_SAMPLES, events)
                self._hearing = Hearing.VOICED
                events.append(Confirmed(self._begin, self._framed))
            case Hearing.VOICED if not voiced:
                # Silero hears a voice for 90 ms after its end, at times 200; the gate's end is more exact.
                end = max(self._since, min(start, self._last_up), start - policy.late_frames * FRAME_SAMPLES)
                self._hearing = Hearing.PAUSED
                self._before += end - self._since
                self._since = end
                events.append(Silent(end, self._framed))
            case Hearing.PAUSED if voiced:
                self._hearing = Hearing.VOICED
                self._since = start
                events.append(Voiced(start, self._framed))

    @property
    def _sustained(self) -> bool:
        """Whether the sound since the gate opened is sustained, unlike a knock."""
        bar = max(self._levels, default=0.0) - self._policy.sustain_db
        lasts = sum(level >= bar for level in self._levels) >= self._policy.sustain_frames
        return lasts or self._run >= self._policy.certain_frames

    def _begin_at(self, sample: int, events: list[EarEvent]) -> None:
        self._hearing = Hearing.SUSPECTED
        self._begin = self._since = sample
        self._before = 0
        events.append(Onset(sample, self._framed))
