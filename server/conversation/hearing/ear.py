"""Detect where a voice begins, goes on and stops in one microphone's stream.

Input is PCM16 at 16 kHz in pieces of any length. Events carry sample numbers counted from the stream's first sample and
depend on the sound alone, not on how it was cut. There are no words, turns or clock here: floor.py decides
what a pause means.

Two detectors share the work. WebRTC's, with a measure of loudness above the background, looks at every 10 ms: a gate
that is quick and often wrong. Silero's costs twenty times as much. It runs only while the gate is open or speech is
confirmed, and decides whether the gate was right. people.py decides whether the voice is the person's. Both detectors
and the recogniser get a faint person's sound amplified (loudness.py).

Measured with 36 utterances in six synthetic voices, the person not known; milliseconds of sound, median and 95 %.
"First sound" and "last sound" are the first and the last 10 ms within 20 dB of the loud parts:

                                       -20 to -40 dB   -50 dB      -60 dB      -25 dB, noise 20 and 10 dB below
    first sound to Onset               20 to 30, 30    30, 50      40, 80      40 and 50, 90 and 100
    first sound to Confirmed           130 to 140, 205 130, 200    160, 220    150 and 170, 212 and 230
    last sound to Silent.since         35 to 41, 76    20, 142     19, 118     -1 to 22, 144
    missed; onsets before the voice    none            none        none        none

    Guarded: 30 and 50 to the Onset at -20 dB, 40 and 82 at -30; at -40, 75 and 135. A person of -50 dB is not heard
    by a guarded ear before their loudness is known.

    Click, knock, cough, breath, hum, white and pink noise at -20, -35, -55 and -65 dB: 28 of 36 are an onset, and none
    is confirmed. A tone, music or a slam may be.

    An assistant's voice that leaks in 25 dB below a person's of -20 dB: none of 12 heard by a guarded ear. 20 dB below:
    6 of 12.

A second of quiet costs about 0.3 ms more than without people.py (1.1 instead of 0.8 ms), a second of speech about 20 %
more. benchmarks/support/ears/background.py measures this, and false turns and holds by other voices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from math import log10

import numpy as np
from numpy.typing import NDArray

from voxlane.codecs import prosody
from voxlane.codecs.voicing import FRAME_SAMPLES, GATE_SAMPLES, RATE, Voicing, voice_gate
from voxlane.server.conversation.hearing.audibility import FAINT_DB
from voxlane.server.conversation.hearing.loudness import RoomPolicy
from voxlane.server.conversation.hearing.people import People, PeoplePolicy

GATE_BYTES = 2 * GATE_SAMPLES
GATE_STRICTNESS = 2  # of WebRTC's detector, from 0 to 3

_LEVELS = 100  # frames: one second
_LEAST_GAIN = 6.0  # dB: less is not worth the work
_CREST = 23.0  # dB: the most that a sample can be above the level of its 10 ms, and a little more
_REACH = RATE // 2  # samples: a voice that rises out of another began at most this long ago
_STRONG = 20.0  # dB: a frame is strong if it is at most this far below the loudest of the voice
_LOUD_FRAMES = 5

Gate = Callable[[bytes], bool]
"""Return whether 10 ms of PCM16 may be a voice."""

Detector = Callable[[NDArray[np.float32]], list[float]]
"""Return the speech probability of each 32 ms of a stream that these samples complete."""


_STIRRING = 2
"""In a pause, so many of the last four frames that pass the gate may be a voice."""


@dataclass(frozen=True, slots=True)
class EarPolicy:
    """Thresholds of voice detection. Loudness is in dB of full scale."""

    # The gate
    margin: float = 7.0  # a frame passes the closed gate if it is this many dB above the background
    keep_margin: float = 4.0  # a frame passes the open gate if it is this many dB above the background
    # While the assistant speaks, a frame passes the closed gate only if it is at most this many dB below the person's
    # loudness: a fainter one may be the assistant's own voice, leaking in.
    guard: float = 18.0
    faintest: float = -72.0  # a frame below this level never passes
    depth: float = (
        42.0  # a frame passes the open gate if it is at most this many dB below the loudest of the last 2.5 s
    )
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
    foreign_s: float = 0.35  # an onset is dropped after this long if its voice is not the person's
    distrust_s: float = 3.0  # after a dropped onset, the gate alone causes no onset for this long
    warm_frames: int = 4  # frames before the onset that Silero hears first: cold, it takes 32 ms longer, often 100
    late_frames: int = 4  # Silero frames by which the end of a voice may be set back
    bed_hang_s: float = 0.3  # with a bed, speech pauses when no frame passes for this long
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
    faint: bool = False  # it sounded like a voice that is too soft to be understood


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


def _levels(sound: bytes) -> list[float]:
    """Return how loud each 10 ms is, in dB of full scale."""
    # The sums are whole numbers below 2 ** 53, so exact in any order.
    samples = np.frombuffer(sound, "<i2").astype(np.float64)
    levels = []
    for start in range(0, len(samples), GATE_SAMPLES):
        frame = samples[start : start + GATE_SAMPLES]
        levels.append(10 * log10(float(frame.dot(frame)) / (GATE_SAMPLES * 32768.0**2) + 1e-12))
    return levels


def amplified(pcm: bytes, gain: float, level: float = 0.0) -> bytes:
    """Return PCM16 that is about `gain` dB louder; `level` is its loudness if it is 10 ms."""
    times = round(10 ** (gain / 20))
    samples = np.frombuffer(pcm, "<i2")
    if level + gain < -_CREST:  # no sample can overflow: a third of the time
        return (samples * np.int16(times)).tobytes()
    return (samples * np.int32(times)).clip(-32768, 32767).astype("<i2").tobytes()


class Ear:
    """One microphone. The order of its events is (Onset (Dropped | Confirmed (Silent Voiced)* Silent? rest))*."""

    def __init__(
        self,
        policy: EarPolicy | None = None,
        room: RoomPolicy | None = None,
        people: PeoplePolicy | None = None,
        *,
        gate: Callable[[], Gate] = lambda: voice_gate(GATE_STRICTNESS),
        detector: Callable[[], Detector] = Voicing,
        finished: Callable[[NDArray[np.float32]], float] = prosody.finished,
    ) -> None:
        self.guarded = False  # the assistant speaks
        self._policy = policy or EarPolicy()
        self.threshold = self._policy.voiced_on  # the probability that makes 32 ms voiced
        self._gate = gate()
        self._new_detector = detector
        self._detector: Detector | None = None  # a fresh one for every voice
        self._detected = 0  # samples that the detector has seen
        self._people = People(people, room, self._last_second)
        self._room = self._people.room
        self._recent: deque[bool] = deque(maxlen=self._policy.open_window)  # of the last frames: passed the gate?
        self._is_open = False
        self._opened = 0  # sample at which the gate opened
        self._last_up = 0  # sample at which the last frame that passed ended
        self._last_strong = 0  # sample at which the last strong frame ended
        self._strong = 0  # samples in strong frames since the onset
        self._levels: deque[float] = deque(maxlen=_LEVELS)  # levels of the frames that passed since the gate opened
        self._gain = 1.0  # of the sound that the present detector hears; the same for a whole voice
        self._amplifies = 0.0  # dB, of the sound that goes to the recogniser; the same for a whole turn
        self._voicelike = 0  # voiced frames since the onset
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
        self._finished = finished
        self._finished_at = -1  # sample of the pause that `_p_finished` belongs to
        self._p_finished = 0.0

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

    @property
    def faint(self) -> bool:
        """Whether the last confirmed voice is so soft that words are probably missed."""
        return self._people.voice_level < FAINT_DB

    @property
    def faded_for(self) -> int:
        """Samples since the last strong frame: the end of a voice often shows here before `Silent`."""
        return self._framed - self._last_strong

    @property
    def strong_for(self) -> int:
        """Samples in strong frames since the onset."""
        return self._strong

    @property
    def excess_db(self) -> float:
        """How much louder than usual the person was in the last 50 ms of the voice; 0 before they were first heard."""
        last = list(self._levels)[-_LOUD_FRAMES:]
        if not last or not self._room.knows_person:
            return 0.0
        total = 0.0  # not `sum`, which rounds otherwise from Python 3.12 on: the native ear adds like this
        for level in last:
            total += level
        return total / len(last) - self._room.person

    @property
    def may_speak(self) -> bool:
        """Whether the last 40 ms of a pause may be the beginning of a voice: the detector says so 50 ms later."""
        return self._hearing is Hearing.PAUSED and sum(self._recent) >= _STIRRING

    def silence(self, samples_so_far: int) -> int:
        """Return for how many samples speech has paused at `samples_so_far`; 0 if there is a voice or was none."""
        return max(0, samples_so_far - self._since) if self._hearing is Hearing.PAUSED else 0

    @property
    def p_finished(self) -> float | None:
        """The probability that the voice before this pause sounds finished; None while there is no pause to judge."""
        paused_at = self._paused_at
        end = paused_at + round(prosody.AFTER_S * RATE)
        if self.hearing is not Hearing.PAUSED or self.heard < end:
            return None
        if self._finished_at != paused_at:
            sound = np.frombuffer(self._sound(end - prosody.CLIP_SAMPLES, end), "<i2")
            self._finished_at = paused_at
            self._p_finished = self._finished(sound.astype(np.float32) / np.float32(32768))
        return self._p_finished

    @property
    def _paused_at(self) -> int:
        """The sample at which the present pause began."""
        return self._since

    def _sound(self, first: int, end: int) -> bytes:
        """Return the kept sound between two samples."""
        first = max(0, first - self._kept_from)
        return bytes(self._kept[2 * first : 2 * (end - self._kept_from)])

    def since(self, sample: int) -> bytes:
        """Return the sound from `sample` up to now, or from the oldest kept sample if that is later.

        A faint person's is amplified, from the onset to `rest` by the same gain.
        """
        first = max(0, sample - self._kept_from)
        sound = bytes(self._kept[2 * first : 2 * (len(self._kept) // 2)])
        return sound if self._amplifies < _LEAST_GAIN else amplified(sound, self._amplifies)

    def rest(self) -> None:
        """End the turn: a voice, even the same one, is an onset again."""
        self._hearing = Hearing.QUIET
        self._is_open = False
        self._recent.clear()
        self._run = 0
        self._amplifies = 0.0
        self._people.stranger = None

    def feed(self, pcm: bytes) -> list[EarEvent]:
        """Add the next bytes of the stream; return the events in them."""
        events: list[EarEvent] = []
        self._forget()
        self._kept += pcm
        first = 2 * (self._framed - self._kept_from)
        sound = bytes(self._kept[first : first + (len(self._kept) - first) // GATE_BYTES * GATE_BYTES])
        for number, level in enumerate(_levels(sound)):
            self._framed += GATE_SAMPLES
            self._pass_gate(sound[number * GATE_BYTES : (number + 1) * GATE_BYTES], level)
            if self._is_open or self._detector is not None or self._hearing is not Hearing.QUIET:
                self._listen(events)
            if self._people.stranger is not None:
                self._follow(level, events)
        return events

    def _forget(self) -> None:
        """Forget the oldest sound. A stranger's turn needs the sound since that voice began."""
        people = self._people
        keep_s = self._policy.keep_s + (people.policy.stranger_most_s if people.stranger is not None else 0.0)
        excess = len(self._kept) // 2 - round(keep_s * RATE)
        if excess > RATE // 2:  # cutting moves all kept bytes, so it is not done for every piece
            del self._kept[: 2 * excess]
            self._kept_from += excess

    def _last_second(self) -> bytes:
        first = 2 * (self._framed - RATE - self._kept_from)
        return bytes(self._kept[max(0, first) : first + 2 * RATE])

    def _pass_gate(self, frame: bytes, level: float) -> None:
        """Decide whether the next 10 ms pass, and whether the gate is open after them."""
        policy, room = self._policy, self._room
        if self._is_open:
            bar = max(room.noise + policy.keep_margin, room.open_bar, room.loudest - policy.depth)
        else:
            bar = max(room.noise + policy.margin, room.bar)
            if self.guarded:
                bar = max(bar, room.person - policy.guard)
        loud = level >= max(bar, policy.faintest)
        if loud and (gain := room.gain) >= _LEAST_GAIN:
            frame = amplified(frame, gain, level)
        # WebRTC's detector has state: it must see every frame.
        passes = self._gate(frame) and loud
        room.feed(level)
        self._recent.append(passes)
        if passes:
            self._last_up = self._framed
            self._levels.append(level)
            if level >= max(self._levels) - _STRONG:
                self._last_strong = self._framed
                self._strong += GATE_SAMPLES
        if self._hearing is Hearing.VOICED:
            self._people.hear_voice(level, self._framed, learns=passes and not self.guarded)
        else:
            self._people.hear(level)
        if self._is_open:
            self._is_open = self._framed - self._last_up < policy.close_s * RATE
        elif sum(self._recent) >= policy.open_frames:
            self._is_open = True
            self._levels.clear()
            self._people.begin()
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
        if self._hearing is not Hearing.SUSPECTED:
            return
        lasted = self._framed - self._begin
        doubtful = (not self._is_open or lasted >= policy.doubt_s * RATE) and not self._run
        if doubtful and self._people.hesitates:  # it ended before the portrait could tell
            self._confirm(events)
        elif doubtful or (self._people.foreign and lasted >= policy.foreign_s * RATE):
            self._hearing, self._amplifies = Hearing.QUIET, 0.0
            self._distrusted_until = self._framed + round(policy.distrust_s * RATE)
            mine = self._voicelike >= policy.confirm_frames and not self._people.foreign and not self.guarded
            events.append(Dropped(self._begin, self._framed, mine and self._people.level < FAINT_DB))

    def _detect(self, events: list[EarEvent]) -> None:
        """Give Silero the frames that it has not heard, if its verdict is needed."""
        if not self._is_open and self._hearing in (Hearing.QUIET, Hearing.PAUSED):
            self._detector, self._run = None, 0
            return
        if self._detector is None:
            self._detector, self._gain = self._new_detector(), 10 ** (self._room.gain / 20)
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
            (probability,) = self._detector(frame.astype(np.float32) * np.float32(self._gain / 32768.0))
            self._detected += FRAME_SAMPLES
            self._judge(probability, self._detected - FRAME_SAMPLES, events)

    def _judge(self, probability: float, start: int, events: list[EarEvent]) -> None:
        """Apply Silero's probability for the 32 ms that begin at `start`."""
        policy = self._policy
        voiced = probability >= self.threshold - (policy.voiced_slack if self._run else 0.0)
        if self._hearing is Hearing.VOICED and self._room.has_bed:  # the voice may be the bed's
            voiced = voiced and self._framed - self._last_up < policy.bed_hang_s * RATE
        self._run = self._run + 1 if voiced else 0
        self._voicelike += voiced
        match self._hearing:
            case Hearing.QUIET | Hearing.SUSPECTED if self._run >= policy.confirm_frames and self._sustained:
                quiet = self._hearing is Hearing.QUIET
                began = start - (self._run - 1) * FRAME_SAMPLES if quiet else self._begin
                if not self._people.admits(began, self._opened, self._framed, guarded=self.guarded):
                    return
                if quiet:
                    # The run may have begun with another voice.
                    self._begin_at(max(began, self._framed - _REACH) if self._people.foreign else began, events)
                self._confirm(events)
            case Hearing.VOICED if not voiced:
                # Silero hears a voice for 90 ms after its end, at times 200; the gate's end is more exact.
                end = max(self._since, min(start, self._last_up), start - policy.late_frames * FRAME_SAMPLES)
                self._pause_at(end, events)
            case Hearing.PAUSED if voiced:
                self._hearing, self._since = Hearing.VOICED, start
                self._people.confirm()
                events.append(Voiced(start, self._framed))

    @property
    def _sustained(self) -> bool:
        """Whether the sound since the gate opened is sustained, unlike a knock."""
        bar = max(self._levels, default=0.0) - self._policy.sustain_db
        lasts = sum(level >= bar for level in self._levels) >= self._policy.sustain_frames
        return lasts or self._run >= self._policy.certain_frames

    def _follow(self, level: float, events: list[EarEvent]) -> None:
        """Give a stranger the next frame; it opens a turn if it waits for an answer."""
        people, stranger = self._people, self._people.stranger
        if stranger is None or self.guarded or self._hearing in (Hearing.VOICED, Hearing.PAUSED):
            people.stranger = None
        elif people.follow(stranger, level, self._policy.margin, self._framed):
            if self._hearing is Hearing.QUIET:
                self._begin_at(stranger.begin, events)
            self._confirm(events)
            self._pause_at(max(self._since, stranger.last), events)

    def _confirm(self, events: list[EarEvent]) -> None:
        self._hearing = Hearing.VOICED
        self._people.confirm()
        events.append(Confirmed(self._begin, self._framed))

    def _pause_at(self, end: int, events: list[EarEvent]) -> None:
        self._hearing = Hearing.PAUSED
        self._before += end - self._since
        self._since = end
        events.append(Silent(end, self._framed))

    def _begin_at(self, sample: int, events: list[EarEvent]) -> None:
        self._hearing = Hearing.SUSPECTED
        self._begin = self._since = sample
        self._before = self._voicelike = 0
        self._amplifies = self._room.turn_gain
        self._strong = self._framed - sample
        events.append(Onset(sample, self._framed))
