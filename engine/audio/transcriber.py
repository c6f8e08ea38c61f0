"""Decide what to decode of a stream of audio, when, and which words are settled, that is, will not change any more.

Audio goes in, in pieces of any size. Looks come out: stretches of audio to decode now. Their tokens go back in, and the
settled words come out. There is no model and no clock in this module: a token is a number.

The job uses it like this, one look at a time:

    listener.hear(samples)  or  listener.end()
    for heard in listener.settled(): publish              segments that closed where their last look had ended
    while look := listener.next_look():                   always the newest audio
        publish(listener.decoded(look, tokens, logprobs))  decoded from listener.clip(look)
    if listener.done: finish
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from voxlane.engine.audio.segmenter import FRAME_SAMPLES, RATE, ListenPolicy, Segmenter, Stretch

Samples = NDArray[np.float32]

_ROOM_SAMPLES = 128 * FRAME_SAMPLES
"""Buffer for audio at first: about four seconds. Later it is twice as large as needed."""

MIN_LOGPROB, MIN_LOGPROB_IF_SILENT, SILENT = -1.2, -0.6, 0.6
"""Bounds on a transcript's mean logprob and on the probability of silence; is_speech() gives the measurements."""

DEFAULT_POLICY = ListenPolicy()
WINDOW_POLICY = ListenPolicy(max_segment_s=28.0, short_segment_s=10.0, look_every_s=1.0, look_share=0.0)
"""For a model whose cost does not depend on the clip's length. On the speech that ListenPolicy was tuned with, Whisper
tiny.en got 3.5 % of words wrong with this policy and 5.4 % with the default."""

LONG_POLICY = replace(DEFAULT_POLICY, max_segment_s=28.0, short_segment_s=10.0)
"""For a model that hears better in long segments, and whose cost grows with their length."""

LOOP_TOKENS = 16
"""A decoder is in a loop if it repeats itself four times or more, over at least this many tokens."""

PHRASE_WORDS = 3
"""A model with short windows is doubted if its text ends with a phrase of at least this many different words, written
twice or more: few people say "I love you, I love you", many say "no, no, no" and "thank you, thank you"."""


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One decode of a stretch of audio."""

    start: int  # sample, counted from the first of the stream
    end: int
    final: bool  # its segment is closed: all its tokens will be settled
    forced: tuple[int, ...]  # settled tokens: the decode continues after them
    drafts: tuple[int, ...]  # tokens that the last look found after them: guesses that one pass can verify
    whole: bool = False  # silence follows the stretch up to the model's longest clip: the last look is in doubt


@dataclass(frozen=True, slots=True)
class Closed:
    """A segment whose transcript is final."""

    start: int
    end: int
    tokens: tuple[int, ...]  # empty: no speech, or nothing was understood
    logprobs: tuple[float, ...]
    no_speech: float


@dataclass(frozen=True, slots=True)
class Heard:
    """The result of a look. The transcript so far is every `settled`, then the newest `tail`."""

    settled: tuple[int, ...]  # new settled tokens; they end before a token that starts a word, or with the segment
    tail: tuple[int, ...]  # tokens that may change; they replace the last tail
    closed: Closed | None = None  # the segment that this completes; all its tokens are settled


@dataclass(slots=True)
class _Segment:
    """A stretch and the results of its looks."""

    stretch: Stretch
    settled: int = 0  # number of settled tokens
    tokens: tuple[int, ...] = ()  # of the newest look, the settled ones included
    logprobs: tuple[float, ...] = ()
    no_speech: float = 0.0
    looked: int = -1  # sample at which the newest look ended
    doubted: bool = False  # the newest look repeated itself, or did not end
    history: deque[tuple[int, tuple[int, ...]]] = field(default_factory=deque)  # (end, tokens) of looks, oldest first


class Transcriber:
    """The state of one stream's transcription."""

    def __init__(
        self,
        voicing: Callable[[Samples], Sequence[float]],
        starts_word: Callable[[int], bool],
        *,
        max_samples: int,
        partials: bool,
        policy: ListenPolicy = DEFAULT_POLICY,
        short_windows: bool = False,
    ) -> None:
        """Begin. `voicing` is a fresh detector: it returns a probability per complete frame and keeps the remainder.

        With `short_windows` the model may repeat itself, and does not if it sees the whole window. Such a look is
        doubted: only the first round of its repetition is taken, and where the segment pauses or ends a whole look
        replaces it.
        """
        self._voicing = voicing
        self._starts_word = starts_word
        self._partials = partials
        self._policy = policy
        self._short_windows = short_windows
        self._audio = _Audio()
        self._segmenter = Segmenter(policy, max_samples, self._audio.energies)
        self._open: _Segment | None = None
        self._closed: deque[_Segment] = deque()
        self._told: list[Heard] = []
        self._ended = False
        self._heard = 0

    def hear(self, samples: Samples) -> None:
        """Take more audio, of any length."""
        if self._ended:
            raise ValueError("the stream has ended")
        self._audio.append(samples)
        for speech in self._voicing(samples):
            self._move(self._segmenter.feed(speech))
        assert 0 <= self._audio.end - self._segmenter.framed < FRAME_SAMPLES, "every whole frame has a probability"
        self._forget()

    def end(self) -> None:
        """Take the end of the audio; the open segment closes."""
        if not self._ended:
            self._ended = True
            self._move(self._segmenter.finish(self._audio.end))
            self._forget()

    def settled(self) -> list[Heard]:
        """Return, once, the segments that closed exactly where their last look had ended: they need no other look."""
        told, self._told = self._told, []
        return told

    def next_look(self) -> DecodeRequest | None:
        """Return what to decode now, or None if more audio or the result of a look must come first."""
        segment = self._closed[0] if self._closed else self._open
        if segment is None or not (self._closed or self._is_due(segment)):
            return None
        tokens, settled = segment.tokens, segment.settled
        stretch = segment.stretch
        whole = segment.doubted and segment.looked == stretch.end
        return DecodeRequest(stretch.start, stretch.end, bool(self._closed), tokens[:settled], tokens[settled:], whole)

    def clip(self, look: DecodeRequest) -> Samples:
        """Return a look's audio."""
        return self._audio.clip(look.start, look.end)

    def decoded(
        self, look: DecodeRequest, tokens: Sequence[int], logprobs: Sequence[float], no_speech: float = 0.0
    ) -> Heard:
        """Take a look's result: its tokens without the end token, the forced ones included, and their logprobs."""
        segment = self._closed[0] if self._closed else self._open
        again = segment is not None and segment.doubted and look.whole
        if segment is None or segment.stretch.start != look.start or (look.end == segment.looked and not again):
            raise ValueError("this is not the look that next_look() returned")
        count, doubted = unlooped(tokens), False
        if self._short_windows and not look.whole:
            endless = len(tokens) >= max_tokens(look.end - look.start)
            kept = unrepeated(tokens, self._starts_word, 1 if endless else PHRASE_WORDS)
            count, doubted = min(count, kept), endless or kept < len(tokens)
        if not is_speech(logprobs[:count], no_speech):
            count, doubted = 0, False
        count = max(count, segment.settled)
        if tuple(tokens[: segment.settled]) != segment.tokens[: segment.settled]:
            raise ValueError("a look must begin with its forced tokens")
        segment.tokens, segment.logprobs = tuple(tokens[:count]), tuple(logprobs[:count])
        segment.no_speech, segment.looked, segment.doubted = no_speech, look.end, doubted
        if self._closed and look.end == segment.stretch.end and not segment.doubted:
            self._closed.popleft()
            heard = _finished(segment)
            self._forget()
            return heard
        before, segment.settled = segment.settled, self._settle(segment)
        return Heard(segment.tokens[before : segment.settled], segment.tokens[segment.settled :])

    @property
    def done(self) -> bool:
        """Return whether the stream has ended, every segment is settled and settled() has returned them."""
        return self._ended and not self._closed and not self._told

    @property
    def heard(self) -> int:
        """Return how many samples are done: their words are settled, and their audio may be dropped."""
        return self._heard

    @property
    def covered(self) -> int:
        """Return how many samples the words so far cover: no voice before this one is without a look."""
        segment = self._closed[0] if self._closed else self._open
        if segment is None:
            return self._segmenter.framed
        if self._closed or segment.looked < segment.stretch.end or not self._segmenter.paused:
            return max(segment.looked, segment.stretch.start)
        return self._segmenter.framed

    def _is_due(self, segment: _Segment) -> bool:
        """Return whether an open segment has enough new audio, or has fallen silent since its last look."""
        stretch, policy = segment.stretch, self._policy
        if not self._partials or stretch.voiced < policy.min_voiced:
            return False
        if stretch.end == segment.looked and not segment.doubted:
            return False
        if self._segmenter.paused:
            return True
        if segment.looked < 0:
            return stretch.end - stretch.first_voiced >= policy.first_look_s * RATE
        every = max(policy.look_every_s * RATE, policy.look_share * (stretch.end - stretch.start))
        return stretch.end - segment.looked >= every

    def _move(self, closed: Stretch | None) -> None:
        """Update the segments after one frame; `closed` is the stretch that it closed, if any."""
        opened = self._segmenter.open
        segment = self._open
        if segment is not None and segment.stretch is not opened:
            self._open = None
            if closed is not None and segment.looked == closed.end and not segment.doubted:
                self._told.append(_finished(segment))
            elif closed is not None:
                self._closed.append(segment)
        if opened is not None and self._open is None:
            self._open = _Segment(opened)

    def _forget(self) -> None:
        """Drop audio that no look can need."""
        if self._ended and not self._closed:
            self._heard = self._audio.end
        else:
            needed = self._closed[0].stretch.start if self._closed else self._segmenter.needed
            self._heard = max(self._heard, needed)
        self._audio.drop(self._heard)

    def _settle(self, segment: _Segment) -> int:
        """Return how many tokens of a segment are settled: those that were stable for long enough."""
        tokens = segment.tokens
        if segment.looked > self._segmenter.uncut(segment.stretch.start):
            return segment.settled  # a cut may move these words into the next segment
        history = segment.history
        history.append((segment.looked, tokens))
        since = segment.looked - self._policy.settle_s * RATE
        while len(history) > 1 and history[1][0] <= since:
            history.popleft()
        if history[0][0] > since:
            return segment.settled
        agreed = min(_common(tokens, older) for _, older in history)
        # The token that starts the next word must be stable too, or the last word may still grow.
        starts = (at for at in range(segment.settled, agreed) if self._starts_word(tokens[at]))
        return max(starts, default=segment.settled)


def _finished(segment: _Segment) -> Heard:
    stretch = segment.stretch
    closed = Closed(stretch.start, stretch.end, segment.tokens, segment.logprobs, segment.no_speech)
    return Heard(segment.tokens[segment.settled :], (), closed)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def unlooped(tokens: Sequence[int]) -> int:
    """Return how many tokens of a hypothesis to keep: if it ends in a loop, those up to the end of the first round."""
    for period in range(1, len(tokens) // 4 + 1):
        same = _periodic(tokens, period)
        if len(tokens) - same >= max(LOOP_TOKENS, 4 * period):
            return same + period
    return len(tokens)


def unrepeated(tokens: Sequence[int], starts_word: Callable[[int], bool], words: int) -> int:
    """Return how many tokens to keep of a text: all, unless it ends with a phrase of `words` different words repeated.

    Then those up to the end of the phrase's first round are kept. The last round may be incomplete.
    """
    for period in range(1, len(tokens) // 2 + 1):
        same = _periodic(tokens, period)
        if len(tokens) - same >= 2 * period and len(set(filter(starts_word, tokens[same : same + period]))) >= words:
            return same + period
    return len(tokens)


def _periodic(tokens: Sequence[int], period: int) -> int:
    """Return where the longest end of a text begins in which each token equals the one `period` later."""
    same = len(tokens) - period
    while same > 0 and tokens[same - 1] == tokens[same - 1 + period]:
        same -= 1
    return same


def max_tokens(samples: int) -> int:
    """Return how many tokens speech of this length can hold: a model that writes more hallucinates.

    Moonshine was trained with at most 6.5 a second; a short clip may be all speech, and fast.
    """
    return 10 + 8 * samples // RATE


def is_speech(logprobs: Sequence[float], no_speech: float) -> bool:
    """Return whether a look's tokens were really said, rather than hallucinated.

    Mean logprobs, measured with both models: words and sentences, also 30 dB softer or in noise as loud as they are,
    have -0.02 to -0.87. Hallucinations from the end of a breath, from an artificial vowel or from twelve voices at once
    have -1.35 to -2.1. Whisper's probability of silence is 0.74 to 0.85 in the latter two, and at most 0.23 in speech.
    """
    mean = sum(logprobs) / max(1, len(logprobs))
    return mean >= (MIN_LOGPROB_IF_SILENT if no_speech > SILENT else MIN_LOGPROB)


class _Audio:
    """The samples that are still needed, contiguous in memory."""

    def __init__(self) -> None:
        self._kept: Samples = np.zeros(_ROOM_SAMPLES, np.float32)
        self._begin = 0  # the stream's index of the first sample in the buffer
        self._needed = 0  # samples before this one may be dropped
        self.end = 0  # samples so far, dropped ones included

    def append(self, samples: Samples) -> None:
        """Add samples."""
        if self.end - self._begin + len(samples) > len(self._kept):
            self._make_room(len(samples))
        first = self.end - self._begin
        self._kept[first : first + len(samples)] = samples
        self.end += len(samples)

    def energies(self, start: int, end: int) -> list[int]:
        """Return the energy of each frame of the samples [start, end), which must not have been dropped."""
        frames = self.clip(start, end).reshape(-1, FRAME_SAMPLES)
        # Sums of whole numbers below 2^53 are exact in any order.
        loud = (frames * 32768.0).clip(-32768.0, 32767.0).astype(np.int32).astype(np.float64)
        energies: list[int] = np.einsum("ij,ij->i", loud, loud).astype(np.int64).tolist()
        return energies

    def clip(self, start: int, end: int) -> Samples:
        """Return the samples [start, end), which must not have been dropped."""
        if not self._needed <= start <= end <= self.end:
            raise ValueError(f"samples {start} to {end} were dropped or have not come")
        return self._kept[start - self._begin : end - self._begin].copy()

    def drop(self, before: int) -> None:
        """Allow samples before this one to be dropped."""
        self._needed = max(self._needed, before)

    def _make_room(self, count: int) -> None:
        """Move the needed samples to the front of a buffer with room for as many again."""
        first = self._needed
        kept = self._kept[first - self._begin : self.end - self._begin]
        moved = np.zeros(max(_ROOM_SAMPLES, 2 * (len(kept) + count)), np.float32)
        moved[: len(kept)] = kept
        self._kept, self._begin = moved, first
