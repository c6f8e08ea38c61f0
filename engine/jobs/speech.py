"""What every spoken reply has in common: text in, samples with contiguous offsets out.

It counts the text that waits, the samples that were sent, and when the listener will have heard them. The jobs built on
it turn text into sound.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from voxlane.engine.api import (
    MAX_UNSAID_CHARS,
    Append,
    BadPronunciation,
    RequestStats,
    Rewound,
    Samples,
    SpokenWord,
    Submit,
)
from voxlane.engine.errors import Refusal
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.models.joining import Beginning
from voxlane.engine.text.normalise.pronunciations import Pronunciations, pronunciations_of

MAX_CLAUSE_CHARS = 400
"""Longer text is cut before it becomes phonemes: 4,000 characters of unknown words took half a second."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that waits to be spoken, and where it begins in the request's text."""

    text: str
    start: int
    whole: bool = True  # False: the next text is of the same clause
    begun: Beginning | None = None  # what was said of the clause before it was whole


def check_length(submit: Submit) -> None:
    """Raise Refusal if a submission has more text than may wait."""
    if len(submit.text) > MAX_UNSAID_CHARS:
        raise Refusal("too_long", f"the text has {len(submit.text)} characters; {MAX_UNSAID_CHARS} may wait")


def names_of(submit: Submit) -> Pronunciations:
    """Return how names are said in a submission, or raise Refusal."""
    try:
        return pronunciations_of(submit.speak.pronunciations)
    except BadPronunciation as error:
        raise Refusal("bad_request", f"pronunciations: {error}") from error


class SpeechJob(Job):
    """One spoken reply."""

    def __init__(self, submit: Submit, now: float, sample_rate: int) -> None:
        super().__init__(submit, now)
        self._sample_rate = sample_rate
        self._queue: deque[TextPiece] = deque()
        self._chars = 0  # characters received
        self._said = 0  # characters spoken; text spoken again counts once
        self._ended = False
        self._units = 0  # of work: clauses or frames
        self._spoken = 0  # samples sent
        self._first_s = 0.0
        self._heard_until_s = 0.0  # when the listener will have heard all samples sent so far
        if submit.text:
            self._push(submit.text)

    def append(self, more: Append, now: float) -> Change:
        """Take more text."""
        if self._ended:
            return Change()
        self._push(more.text, goes_on=more.goes_on)
        return Change(end="failed" if self._chars - self._said > MAX_UNSAID_CHARS else None)

    def end_input(self, now: float) -> Change:
        """Note that the text is complete."""
        self._push("")
        self._ended = True
        return Change()

    def rewind(self, sample: int, now: float) -> Change:
        """Go back to a sample if it was sent; tell from which sample speech goes on."""
        change = Change()
        if sample < self._spoken:
            self._heard_until_s = now
            self._spoken = self._return_to(sample, change, now)
        change.messages.append(Rewound(self.submit.request_id, self.submit.epoch, self._spoken))
        return change

    def _return_to(self, sample: int, change: Change, now: float) -> int:
        """Restore the state at a sample or a little before it; return that sample."""
        raise NotImplementedError

    def stats(self, now: float) -> RequestStats:
        """Return what it has cost so far."""
        return RequestStats(
            prompt_tokens=self._chars,
            output_tokens=self._units,
            cached_tokens=0,
            queue_s=self.queue_s(now),
            first_token_s=self._first_s - self.arrival_s if self._first_s else 0.0,
            per_token_s=0.0,
            total_s=now - self.arrival_s,
            preemptions=0,
            audio_s=self._spoken / self._sample_rate,
        )

    def _first_due(self, soon: float) -> float:
        """Return when the first sound is due: at the submission's deadline, or else at `soon`."""
        asked_s = self.submit.deadline_s
        return soon if asked_s is None else self.arrival_s + asked_s

    def _push(self, text: str, *, goes_on: bool = False) -> None:
        if self._queue and not self._queue[-1].whole:
            piece = self._queue[-1]
            self._queue[-1] = replace(piece, text=piece.text + text, whole=not goes_on)
        elif text:
            self._queue.append(TextPiece(text, self._chars, whole=not goes_on))
        self._chars += len(text)

    def _emit(self, samples: NDArray[np.float32], words: tuple[SpokenWord, ...], change: Change, now: float) -> None:
        """Send the next samples, -1 to 1; the words' times count from the start of the reply."""
        self._first_s = self._first_s or now
        pcm = np.rint(samples * 32767.0).astype("<i2").tobytes()
        change.messages.append(Samples(self.submit.request_id, self.submit.epoch, self._spoken, pcm, words))
        self._spoken += len(samples)
        self._heard_until_s = max(self._heard_until_s, now) + len(samples) / self._sample_rate


def halves(piece: TextPiece) -> tuple[TextPiece, ...]:
    """Return the two halves of a piece, cut at the space nearest to its middle, or in the middle if it has none."""
    text = piece.text
    middle = len(text) // 2
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    spaces = [place + 1 for place in range(first, last) if text[place].isspace()]
    cut = min(spaces, key=lambda place: abs(place - middle), default=middle)
    return (replace(piece, text=text[:cut]), TextPiece(text[cut:], piece.start + cut)) if 0 < cut < len(text) else ()
