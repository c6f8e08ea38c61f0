"""A text being said: clauses in the order they came, one unit of work each, samples with offsets that leave no gap.

It joins a synthesiser to the scheduler. It takes clauses as they are cut; only one that is too much for the model is
cut once more here. A model that would hold up the steps of a faster device is asked in a thread beside them instead.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np

from voxlane.engine.api import MAX_UNSAID_CHARS, Append, RequestStats, Samples, SpokenWord, Started, Submit
from voxlane.engine.intake import Refusal
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.kv import BlockPool, BlockTable
from voxlane.engine.models.synthesis import ClauseTooLong, Prepared, Speech, Synthesiser, SynthesisError, check_speed
from voxlane.engine.plan import Row
from voxlane.engine.request import Request
from voxlane.engine.runner import Outcome
from voxlane.engine.voice import FAULTS, Clause

log = logging.getLogger(__name__)

FIRST_TARGET_S = 0.1
"""When the first clause of a reply is due. Each further one is due when the listener has heard those before it."""

MAX_UNIT = 160
"""Most phonemes of a unit, if the clause can be cut: some 7 s of speech, 0.15 s of work. Nobody is heard meanwhile."""


MAX_CLAUSE_CHARS = 400
"""Longer text is cut before it is read: 4,000 characters of unknown words took half a second to read."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Text that waits to be said, and where it begins in all the text of the request."""

    text: str
    start: int


class SpeakDesk:
    """Opens jobs for the speaking model; with a thread `beside`, they have it speak there and not in steps."""

    def __init__(self, model: Synthesiser, pool: BlockPool, beside: Executor | None = None) -> None:
        self._model = model
        self._pool = pool
        self._beside = beside

    def open(self, submit: Submit, now: float) -> Job:
        """Return the job that serves `submit`, or raise Refusal."""
        speak = submit.speak
        if len(submit.text) > MAX_UNSAID_CHARS:
            raise Refusal("too_long", f"the text has {len(submit.text)} characters; {MAX_UNSAID_CHARS} may wait")
        voice = speak.voice or self._model.default_voice
        if voice not in self._model.voices:
            raise Refusal("bad_request", f"there is no voice {voice[:40]!r}; there are {', '.join(self._model.voices)}")
        try:
            check_speed(speak.speed)
        except SynthesisError as error:
            raise Refusal("bad_request", str(error)) from error
        return SpeakJob(submit, self._model, self._pool, voice, now, self._beside)


class SpeakJob(Job):
    """One reply."""

    def __init__(
        self,
        submit: Submit,
        model: Synthesiser,
        pool: BlockPool,
        voice: str,
        now: float,
        beside: Executor | None = None,
    ) -> None:
        super().__init__(submit, now)
        self._beside = beside
        self._sound: Future[Speech] | None = None  # of the unit, if it is said beside the steps
        self._model = model
        self._pool = pool  # of no blocks
        self._voice = voice
        self._queue: deque[_Piece] = deque()
        self._chars = 0  # taken
        self._unsaid = 0
        self._ended = False
        self._unit: _Piece | None = None  # in the scheduler
        self._units = 0
        self._spoken = 0  # samples
        self._first_s = 0.0
        self._heard_until_s = 0.0  # when a listener who waits for nothing will have heard all of it so far
        if submit.text:
            self._push(submit.text)

    @property
    def wants_work(self) -> bool:
        """Whether a clause can be made ready or waits to be sent, or the end can be told."""
        if self.paused or (self._unit is not None and self._sound is None):
            return False
        return self._sound is not None or bool(self._queue) or self._ended

    @property
    def awaited(self) -> Future[Speech] | None:
        """The clause that is being said beside the steps."""
        return None if self.paused else self._sound

    def append(self, more: Append, now: float) -> Change:
        """Take a clause."""
        if self._ended or not more.text:
            return Change()
        self._push(more.text)
        return Change(end="failed" if self._unsaid > MAX_UNSAID_CHARS else None)

    def end_input(self, now: float) -> Change:
        """Take it that the text is complete."""
        self._ended = True
        return Change()

    def work(self, now: float) -> Change:
        """Make one clause ready: its phonemes say what it will cost. Or send one that was said beside the steps."""
        change = Change()
        if self._sound is not None:
            self._take(self._sound, change, now)
        elif self._queue:
            self._prepare(self._queue.popleft(), change, now)
        elif self._ended:
            change.end = "eos"
        return change

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Send a clause's sound."""
        speech = outcome.speech
        assert isinstance(speech, Speech)
        change = Change(drop=[row.request])
        self._send(speech, change, now)
        return change

    def _take(self, sound: Future[Speech], change: Change, now: float) -> None:
        """Send what was said beside the steps, if it is ready."""
        if not sound.done():
            return
        self._sound = None
        try:
            self._send(sound.result(), change, now)
        except FAULTS:
            log.exception("clause failed")
            change.end = "failed"

    def _send(self, speech: Speech, change: Change, now: float) -> None:
        piece, self._unit = self._unit, None
        assert piece is not None
        self._unsaid -= len(piece.text)
        if len(speech.samples):
            self._first_s = self._first_s or now
            words = tuple(
                SpokenWord(
                    piece.start + word.source_start,
                    piece.start + word.source_end,
                    self._spoken + word.start_sample,
                    self._spoken + word.end_sample,
                )
                for word in speech.words
            )
            pcm = np.rint(speech.samples * 32767.0).astype("<i2").tobytes()
            change.messages.append(Samples(self.submit.request_id, self.submit.epoch, self._spoken, pcm, words))
            self._spoken += len(speech.samples)
            self._heard_until_s = max(self._heard_until_s, now) + len(speech.samples) / self._model.sample_rate

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
            audio_s=self._spoken / self._model.sample_rate,
        )

    def _push(self, text: str) -> None:
        self._queue.append(_Piece(text, self._chars))
        self._chars += len(text)
        self._unsaid += len(text)

    def _prepare(self, piece: _Piece, change: Change, now: float) -> None:
        prepared, long = None, len(piece.text) > MAX_CLAUSE_CHARS
        if not long:
            try:
                prepared = self._model.prepare(piece.text, voice=self._voice)
                long = prepared.phonemes > MAX_UNIT
            except ClauseTooLong:
                long = True
        halves = _halves(piece) if long else ()
        if halves:
            self._queue.extendleft(reversed(halves))
            return
        if prepared is None or not prepared.phonemes:  # nothing to say
            self._unsaid -= len(piece.text)
            return
        self._unit = piece
        self._units += 1
        speak = self.submit.speak
        if self._beside is not None:
            self._begin_beside(self._beside, prepared, change, now)
            return
        due_s = max(self._heard_until_s, now) if self._first_s else now + FIRST_TARGET_S
        change.begin.append(
            Request(
                id=f"{self.submit.request_id}/{self._units}",
                task="tts",
                tokens=[],
                prompt_tokens=0,
                table=BlockTable(self._pool),
                priority=self.submit.priority,
                arrival_s=now,
                due_s=due_s,
                session=self.submit.session,
                model="tts",
                material=Clause(prepared, self._voice, speak.speed, speak.seed + self._units),
                unit=prepared.phonemes,
            )
        )

    def close(self) -> None:
        """Take back a clause that the thread has not begun: others wait behind it."""
        if self._sound is not None:
            self._sound.cancel()

    def _begin_beside(self, thread: Executor, prepared: Prepared, change: Change, now: float) -> None:
        if self.started_s is None:  # no step will say so
            self.started_s = now
            change.messages.append(Started(self.submit.request_id, self.submit.epoch, 0, 0))
        speak = self.submit.speak
        self._sound = thread.submit(
            self._model.synthesise, prepared, voice=self._voice, speed=speak.speed, seed=speak.seed + self._units
        )


def _halves(piece: _Piece) -> tuple[_Piece, ...]:
    """Return a piece in two, cut at the space nearest to its middle, or in its middle if there is none inside it."""
    text = piece.text
    middle = len(text) // 2
    first, last = len(text) - len(text.lstrip()), len(text.rstrip())
    spaces = [place + 1 for place in range(first, last) if text[place].isspace()]
    cut = min(spaces, key=lambda place: abs(place - middle), default=middle)
    return (_Piece(text[:cut], piece.start), _Piece(text[cut:], piece.start + cut)) if 0 < cut < len(text) else ()
