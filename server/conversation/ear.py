"""Where a voice begins, goes on and stops in one microphone's stream.

It takes PCM16 at 16 kHz in pieces of any length and answers in sample numbers counted from the stream's first sample.
What it says depends on the sound alone, not on how it was cut. It knows no words, no turns and no clock: what a pause
means is for turns.py and the session to say.

Two detectors share the work. WebRTC's looks at every 10 ms, and with it a measure of loudness above the background: a
gate that is quick and often wrong. Silero's, twenty times dearer, runs only while the gate is open or speech is
confirmed, and says whether the gate was right.

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

_USUAL, _LEARNING = -30.0, 0.01  # dB: how loud a person is at first, then learnt within seconds of speech
_LEVELS = 100  # one second

Gate = Callable[[bytes], bool]
"""Says of 10 ms of PCM16 whether it may be a voice."""

Detector = Callable[[NDArray[np.float32]], list[float]]
"""Says how probably each 32 ms of a stream is speech, as they are completed."""


@dataclass(frozen=True, slots=True)
class EarPolicy:
    """What is taken for a voice. Loudness is in dB of full scale."""

    # The gate
    margin: float = 7.0  # dB above the background that open it,
    keep_margin: float = 4.0  # and that keep it open
    guard: float = 8.0  # dB below the person's usual loudness that open it still while the assistant speaks: what
    # is fainter may be the assistant's own voice, leaking in
    faintest: float = -60.0  # nothing below is a voice
    open_frames: int = 3  # this many of 10 ms among the last
    open_window: int = 4  # open it,
    close_s: float = 0.15  # and this long without any closes it
    # The verdict
    voiced_on: float = 0.5  # the probability that makes 32 ms voiced,
    voiced_slack: float = 0.15  # and how much less keeps the next voiced
    confirm_frames: int = 2  # so many voiced ones in a row are speech,
    sustain_frames: int = 9  # if so many of 10 ms are nearly as loud as the loudest: a knock fades sooner;
    sustain_db: float = 12.0
    certain_frames: int = 6  # or so many are in any case
    doubt_s: float = 0.6  # an onset not confirmed by then is none
    distrust_s: float = 3.0  # after one that was none, the gate alone is not believed for this long
    warm_frames: int = 4  # heard by Silero before the onset: cold, it takes 32 ms longer, often 100
    late_frames: int = 4  # of Silero's that a voice may have ended earlier
    # Memory
    keep_s: float = 3.0  # of the last sound, for those who begin to listen late


@dataclass(frozen=True, slots=True)
class Onset:
    """Someone may have begun to speak at sample `at`; known when `heard` samples had come."""

    at: int
    heard: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What began `at` is speech."""

    at: int
    heard: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """What began `at` was no speech."""

    at: int
    heard: int


@dataclass(frozen=True, slots=True)
class Silent:
    """Confirmed speech pauses: no voice from sample `since` on."""

    since: int
    heard: int


@dataclass(frozen=True, slots=True)
class Voiced:
    """Speech that paused goes on at sample `at`."""

    at: int
    heard: int


EarEvent = Onset | Confirmed | Dropped | Silent | Voiced


class Hearing(Enum):
    """What an ear hears just now."""

    QUIET = "quiet"  # nothing, or nothing like a voice
    SUSPECTED = "suspected"  # between Onset and Confirmed or Dropped
    VOICED = "voiced"  # confirmed speech
    PAUSED = "paused"  # confirmed speech that is silent for now; `rest` ends it


class _Background:
    """How loud it is when nobody speaks: the quietest moment of the last 2.5 s.

    Speech leaves gaps and stays above it; a hum that goes on becomes it.
    """

    BLOCK_FRAMES, BLOCKS = 25, 10
    SMOOTHING = 0.3
    AT_FIRST = -30.0  # dB; not more than this in the first 2.5 s: someone may be speaking from the first sample on

    def __init__(self) -> None:
        self._blocks: deque[float] = deque(maxlen=self.BLOCKS)
        self._smooth = self._lowest = 0.0
        self._frames = 0
        self.level = self.AT_FIRST

    def feed(self, level: float) -> None:
        """Take the loudness of the next frame."""
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
    """One microphone. Its events come in this order: (Onset (Dropped | Confirmed (Silent Voiced)* Silent? rest))*."""

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
        self._recent: deque[bool] = deque(maxlen=self._policy.open_window)  # which of the last frames pass the gate
        self._is_open = False
        self._opened = 0  # sample at which it opened
        self._last_up = 0  # sample at which the last such frame ended
        self._levels: deque[float] = deque(maxlen=_LEVELS)  # of the frames that passed since it opened
        self._skips = False
        self._run = 0  # voiced frames in a row that Silero has found
        self._distrusted_until = 0
        self._kept = bytearray()  # the last sound, from sample _kept_from on
        self._kept_from = 0
        self._framed = 0  # samples in the gate's frames so far
        self._hearing = Hearing.QUIET
        self._begin = 0  # of the onset
        self._since = 0  # when the present stretch of voice, or the present pause, began
        self._before = 0  # samples of voice since the onset, in stretches that ended

    @property
    def heard(self) -> int:
        """Samples that have come."""
        return self._kept_from + len(self._kept) // 2

    @property
    def hearing(self) -> Hearing:
        """What is heard just now."""
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
        """Return for how many samples, at `samples_so_far`, speech has paused; 0 while there is a voice or was none."""
        return max(0, samples_so_far - self._since) if self._hearing is Hearing.PAUSED else 0

    def since(self, sample: int) -> bytes:
        """Return the sound from `sample` up to now, or from the oldest kept if that is later."""
        first = max(0, sample - self._kept_from)
        return bytes(self._kept[2 * first : 2 * (len(self._kept) // 2)])

    def rest(self) -> None:
        """Take the turn as over: a voice, be it the same, is an onset again."""
        self._hearing = Hearing.QUIET
        self._is_open = False
        self._recent.clear()
        self._run = 0

    def feed(self, pcm: bytes) -> list[EarEvent]:
        """Take the next bytes of the stream and return what they made known."""
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
        if excess > RATE // 2:  # cutting moves all that is kept: not for every piece
            del self._kept[: 2 * excess]
            self._kept_from += excess
        return events

    def _pass_gate(self, frame: bytes, level: float) -> None:
        """Look at the next 10 ms: does it pass, and is the gate open after it?"""
        policy = self._policy
        bar = self._background.level + (policy.keep_margin if self._is_open else policy.margin)
        if self.guarded and not self._is_open:
            bar = max(bar, self._usual - policy.guard)
        # The gate has a state of its own: it must hear every frame.
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
        """Draw the conclusions from the sound up to `_framed`."""
        policy = self._policy
        if self._hearing is Hearing.QUIET and self._is_open:
            if self._framed >= self._distrusted_until:
                self._begin_at(self._opened, events)
            else:  # noise that goes on is not asked again before it has been quiet for a while
                self._distrusted_until = self._framed + round(policy.distrust_s * RATE)
        self._detect(events)
        doubtful = not self._is_open or self._framed - self._begin >= policy.doubt_s * RATE
        if self._hearing is Hearing.SUSPECTED and doubtful and not self._run:
            self._hearing = Hearing.QUIET
            self._distrusted_until = self._framed + round(policy.distrust_s * RATE)
            events.append(Dropped(self._begin, self._framed))

    def _detect(self, events: list[EarEvent]) -> None:
        """Let Silero hear what it has not yet heard, if it is needed."""
        if not self._is_open and self._hearing in (Hearing.QUIET, Hearing.PAUSED):
            self._detector, self._run = None, 0
            return
        if self._detector is None:
            self._detector = self._new_detector()
            before = self._opened - self._policy.warm_frames * FRAME_SAMPLES
            self._detected = max(self._detected, before, self._kept_from)
        while self._framed - self._detected >= FRAME_SAMPLES:
            # In the midst of a voice that the gate hears as well, every other frame is enough.
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
        """Take Silero's word on the 32 ms that begin at `start`."""
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
                # Silero hears a voice for 90 ms after its end, at times 200; the gate knows better when that was.
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
        """Whether the sound since the gate opened lasts, or only rings."""
        bar = max(self._levels, default=0.0) - self._policy.sustain_db
        lasts = sum(level >= bar for level in self._levels) >= self._policy.sustain_frames
        return lasts or self._run >= self._policy.certain_frames

    def _begin_at(self, sample: int, events: list[EarEvent]) -> None:
        self._hearing = Hearing.SUSPECTED
        self._begin = self._since = sample
        self._before = 0
        events.append(Onset(sample, self._framed))
