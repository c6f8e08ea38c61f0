"""What to decode of a stream of audio, when, and which of the words will not change any more.

Audio goes in, in pieces of any size; looks come out: stretches of it that somebody else should decode now; their tokens
go back in, and out come the settled words. It knows samples, probabilities of speech and token numbers; what a token
spells, how it is decoded and what time it is are others' business.

How an engine uses it, one look at a time:

    listener.hear(samples)  or  listener.end()
    for heard in listener.settled(): publish              segments that closed on what their last look had found
    while look := listener.next_look():                   always the newest audio
        publish(listener.looked(look, tokens, logprobs))  decoded from listener.clip(look)
    if listener.done: finish
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from voxlane.engine.audio.segmenter import FRAME_SAMPLES, RATE, ListenPolicy, Segmenter, Stretch

Samples = NDArray[np.float32]

_ROOM_SAMPLES = 128 * FRAME_SAMPLES
"""Room for audio at first: about four seconds. Later there is room for twice what is needed."""

MIN_LOGPROB, MIN_LOGPROB_IF_SILENT, SILENT = -1.2, -0.6, 0.6
"""Bounds on the mean logprob of what was said, and on the probability of silence; is_speech() says where from."""

DEFAULT_POLICY = ListenPolicy()
WINDOW_POLICY = ListenPolicy(max_segment_s=28.0, short_segment_s=10.0, look_every_s=1.0, look_share=0.0)
"""For a model that takes as long for a second as for its whole window. Whisper tiny.en got 3.5 % of words wrong with
it, 5.4 % with the other, on the speech that ListenPolicy was tuned with."""

LOOP_TOKENS = 16
"""A decoder that repeats itself over this many tokens, and four times, has lost the thread."""


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One decode of a stretch of audio."""

    start: int  # samples from the first of the stream
    end: int
    final: bool  # of a closed segment: what it brings is settled
    forced: tuple[int, ...]  # tokens already settled: the decode goes on after them
    drafts: tuple[int, ...]  # what the look before found after them: guesses that one pass can verify


@dataclass(frozen=True, slots=True)
class Closed:
    """A segment whose transcript is final."""

    start: int
    end: int
    tokens: tuple[int, ...]  # empty: nobody spoke, or nothing was understood
    logprobs: tuple[float, ...]
    no_speech: float


@dataclass(frozen=True, slots=True)
class Heard:
    """What a look brought. All that was heard is every `settled` so far, then `tail`."""

    settled: tuple[int, ...]  # new; it ends before a token that starts a word, or with its segment
    tail: tuple[int, ...]  # may change: it replaces the tail before
    closed: Closed | None = None  # the segment that this completes; its tokens have all been settled


@dataclass(slots=True)
class _Segment:
    """A stretch and what its looks have found."""

    stretch: Stretch
    settled: int = 0  # tokens that will not change
    tokens: tuple[int, ...] = ()  # of the newest look, the settled ones among them
    logprobs: tuple[float, ...] = ()
    no_speech: float = 0.0
    looked: int = -1  # where the newest look ended
    history: deque[tuple[int, tuple[int, ...]]] = field(default_factory=deque)  # (end, tokens), oldest first


class Transcriber:
    """A stream of audio that is being transcribed."""

    def __init__(
        self,
        voicing: Callable[[Samples], Sequence[float]],
        starts_word: Callable[[int], bool],
        *,
        max_samples: int,
        partials: bool,
        policy: ListenPolicy = DEFAULT_POLICY,
    ) -> None:
        """Listen with a fresh `voicing`: one probability per complete frame, the remainder kept for its next call."""
        self._voicing = voicing
        self._starts_word = starts_word
        self._partials = partials
        self._policy = policy
        self._audio = _Audio()
        self._segmenter = Segmenter(policy, max_samples, self._audio.energies)
        self._open: _Segment | None = None
        self._closed: deque[_Segment] = deque()
        self._told: list[Heard] = []
        self._ended = False
        self._heard = 0

    def hear(self, samples: Samples) -> None:
        """Take more audio, as much as there is."""
        if self._ended:
            raise ValueError("the stream has ended")
        self._audio.append(samples)
        for speech in self._voicing(samples):
            self._move(self._segmenter.feed(speech))
        assert 0 <= self._audio.end - self._segmenter.framed < FRAME_SAMPLES, "every whole frame has a probability"
        self._forget()

    def end(self) -> None:
        """Close what is open: no more audio will come."""
        if not self._ended:
            self._ended = True
            self._move(self._segmenter.finish(self._audio.end))
            self._forget()

    def settled(self) -> list[Heard]:
        """Return, once, the segments that closed exactly where their last look had ended: that look was the final."""
        told, self._told = self._told, []
        return told

    def next_look(self) -> DecodeRequest | None:
        """Return what to decode now, or None until more audio comes or a look returns."""
        segment = self._closed[0] if self._closed else self._open
        if segment is None or not (self._closed or self._is_due(segment)):
            return None
        tokens, settled = segment.tokens, segment.settled
        stretch = segment.stretch
        return DecodeRequest(stretch.start, stretch.end, bool(self._closed), tokens[:settled], tokens[settled:])

    def clip(self, look: DecodeRequest) -> Samples:
        """Return a look's audio."""
        return self._audio.clip(look.start, look.end)

    def looked(
        self, look: DecodeRequest, tokens: Sequence[int], logprobs: Sequence[float], no_speech: float = 0.0
    ) -> Heard:
        """Take what a look found: its tokens without the end, the forced ones among them, and their logprobs."""
        segment = self._closed[0] if self._closed else self._open
        if segment is None or segment.stretch.start != look.start or look.end == segment.looked:
            raise ValueError("this is not the look that was asked for")
        count = unlooped(tokens)
        if not is_speech(logprobs[:count], no_speech):
            count = 0
        count = max(count, segment.settled)
        if tuple(tokens[: segment.settled]) != segment.tokens[: segment.settled]:
            raise ValueError("a look must begin with the tokens it was forced to")
        segment.tokens, segment.logprobs = tuple(tokens[:count]), tuple(logprobs[:count])
        segment.no_speech, segment.looked = no_speech, look.end
        if self._closed and look.end == segment.stretch.end:
            self._closed.popleft()
            heard = _finished(segment)
            self._forget()
            return heard
        before, segment.settled = segment.settled, self._settle(segment)
        return Heard(segment.tokens[before : segment.settled], segment.tokens[segment.settled :])

    @property
    def done(self) -> bool:
        """Whether the stream has ended, every segment is settled and settled() has told so."""
        return self._ended and not self._closed and not self._told

    @property
    def heard(self) -> int:
        """Samples that are dealt with: what was said in them is settled, and their audio may be gone."""
        return self._heard

    def _is_due(self, segment: _Segment) -> bool:
        """Tell whether an open segment has enough new audio, or has fallen silent since its last look."""
        stretch, policy = segment.stretch, self._policy
        if not self._partials or stretch.voiced < policy.min_voiced or stretch.end == segment.looked:
            return False
        if self._segmenter.paused:
            return True
        if segment.looked < 0:
            return stretch.end - stretch.first_voiced >= policy.first_look_s * RATE
        every = max(policy.look_every_s * RATE, policy.look_share * (stretch.end - stretch.start))
        return stretch.end - segment.looked >= every

    def _move(self, closed: Stretch | None) -> None:
        """Follow the segmenter past one frame."""
        opened = self._segmenter.open
        segment = self._open
        if segment is not None and segment.stretch is not opened:
            self._open = None
            if closed is not None and segment.looked == closed.end:
                self._told.append(_finished(segment))
            elif closed is not None:
                self._closed.append(segment)
        if opened is not None and self._open is None:
            self._open = _Segment(opened)

    def _forget(self) -> None:
        """Let go of audio that nobody can ask for."""
        if self._ended and not self._closed:
            self._heard = self._audio.end
        else:
            needed = self._closed[0].stretch.start if self._closed else self._segmenter.needed
            self._heard = max(self._heard, needed)
        self._audio.drop(self._heard)

    def _settle(self, segment: _Segment) -> int:
        """Return how many tokens of a segment will stay: those that have stayed for long enough."""
        tokens = segment.tokens
        if segment.looked > self._segmenter.uncut(segment.stretch.start):
            return segment.settled  # a cut may part these words from their segment
        history = segment.history
        history.append((segment.looked, tokens))
        since = segment.looked - self._policy.settle_s * RATE
        while len(history) > 1 and history[1][0] <= since:
            history.popleft()
        if history[0][0] > since:
            return segment.settled
        agreed = min(_common(tokens, older) for _, older in history)
        # The token that starts the next word must have stayed too, or the word before it may yet grow.
        starts = (at for at in range(segment.settled, agreed) if self._starts_word(tokens[at]))
        return max(starts, default=segment.settled)


def _finished(segment: _Segment) -> Heard:
    stretch = segment.stretch
    closed = Closed(stretch.start, stretch.end, segment.tokens, segment.logprobs, segment.no_speech)
    return Heard(segment.tokens[segment.settled :], (), closed)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def unlooped(tokens: Sequence[int]) -> int:
    """Return how many tokens to keep of a hypothesis: if it ends in a loop, those up to the end of its first round."""
    for period in range(1, len(tokens) // 4 + 1):
        same = len(tokens) - period
        while same > 0 and tokens[same - 1] == tokens[same - 1 + period]:
            same -= 1
        if len(tokens) - same >= max(LOOP_TOKENS, 4 * period):
            return same + period
    return len(tokens)


def max_tokens(samples: int) -> int:
    """Return how many tokens speech of this length can hold: a model that writes more than that makes it up.

    Moonshine was taught with at most 6.5 a second; a short clip may be all speech, and quick.
    """
    return 10 + 8 * samples // RATE


def is_speech(logprobs: Sequence[float], no_speech: float) -> bool:
    """Tell whether somebody said what a look found, or the model made it up.

    Mean logprobs, measured with both models: words and sentences, also 30 dB softer and as loud as the noise around
    them, -0.02 to -0.87; what was made up from the end of a breath, from an artificial vowel or from twelve voices at
    once, -1.35 to -2.1. Whisper put silence at 0.74 to 0.85 in the latter two, at 0.23 or less in speech.
    """
    mean = sum(logprobs) / max(1, len(logprobs))
    return mean >= (MIN_LOGPROB_IF_SILENT if no_speech > SILENT else MIN_LOGPROB)


class _Audio:
    """The samples that are still needed, in one run of memory."""

    def __init__(self) -> None:
        self._kept: Samples = np.zeros(_ROOM_SAMPLES, np.float32)
        self._begin = 0  # the sample of the stream that lies first
        self._needed = 0  # those before it may go
        self.end = 0  # samples so far, whether or not they are still here

    def append(self, samples: Samples) -> None:
        """Keep more."""
        if self.end - self._begin + len(samples) > len(self._kept):
            self._make_room(len(samples))
        first = self.end - self._begin
        self._kept[first : first + len(samples)] = samples
        self.end += len(samples)

    def energies(self, start: int, end: int) -> list[int]:
        """Return the energy of each frame of the samples [start, end), which must not have been dropped."""
        frames = self.clip(start, end).reshape(-1, FRAME_SAMPLES)
        # Whole numbers, and fewer than 2^53: their sum is the same in any order.
        loud = (frames * 32768.0).clip(-32768.0, 32767.0).astype(np.int32).astype(np.float64)
        energies: list[int] = np.einsum("ij,ij->i", loud, loud).astype(np.int64).tolist()
        return energies

    def clip(self, start: int, end: int) -> Samples:
        """Return the samples [start, end), which must not have been dropped."""
        if not self._needed <= start <= end <= self.end:
            raise ValueError(f"samples {start} to {end} are not here")
        return self._kept[start - self._begin : end - self._begin].copy()

    def drop(self, before: int) -> None:
        """Let go of what lies before a sample."""
        self._needed = max(self._needed, before)

    def _make_room(self, count: int) -> None:
        """Move what is needed to the front of as much again."""
        first = self._needed
        kept = self._kept[first - self._begin : self.end - self._begin]
        moved = np.zeros(max(_ROOM_SAMPLES, 2 * (len(kept) + count)), np.float32)
        moved[: len(kept)] = kept
        self._kept, self._begin = moved, first
