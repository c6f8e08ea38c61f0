"""Speaks a text clause by clause: each clause is one unit of work, and the samples' offsets are contiguous.

Clauses are spoken as they came; one that is too long for the model is cut in two. A model that would delay the steps of
a faster device runs in a thread beside them. To rewind, the job synthesises the clause again and skips the samples
before the one asked for.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from voxlane.engine import progress
from voxlane.engine.api import SpokenWord, Started, Submit
from voxlane.engine.errors import Refusal, describe_fault
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.jobs.speech import MAX_CLAUSE_CHARS, SpeechJob, TextPiece, check_length, halves, names_of
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.models.synthesis import (
    ClauseTooLong,
    Prepared,
    SynthesisedClause,
    Synthesiser,
    SynthesisError,
    check_speed,
)
from voxlane.engine.runners.clause_tts import CLAUSE_FAULTS, ClauseOutcome, ClausePayload
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import Request
from voxlane.engine.text.normalise.pronunciations import NO_PRONUNCIATIONS, Pronunciations

log = logging.getLogger(__name__)

FIRST_TARGET_S = 0.1
"""When the first clause of a reply is due. Each later one is due when the listener has heard those before it."""

MAX_UNIT = 160
"""Most phonemes of a unit, if the clause can be cut: some 7 s of speech, 0.15 s of work that delays other steps."""


@dataclass(frozen=True, slots=True)
class Told:
    """A clause whose samples were sent."""

    piece: TextPiece
    unit: int  # its number
    sample: int  # its first


class SpeakClausesJobFactory:
    """Opens jobs for the speaking model; with a thread `beside`, it runs there and not in steps."""

    def __init__(self, model: Synthesiser, pool: BlockPool, beside: Executor | None = None) -> None:
        self._model = model
        self._pool = pool
        self._beside = beside

    def open(self, submit: Submit, now: float) -> Job:
        """Return the job that serves `submit`, or raise Refusal."""
        speak = submit.speak
        check_length(submit)
        voice = speak.voice or self._model.default_voice
        if voice not in self._model.voices:
            raise Refusal("bad_request", f"there is no voice {voice[:40]!r}; there are {', '.join(self._model.voices)}")
        try:
            check_speed(speak.speed)
        except SynthesisError as error:
            raise Refusal("bad_request", str(error)) from error
        return SpeakClausesJob(submit, self._model, self._pool, voice, now, self._beside, names_of(submit))


class SpeakClausesJob(SpeechJob):
    """One reply."""

    def __init__(
        self,
        submit: Submit,
        model: Synthesiser,
        pool: BlockPool,
        voice: str,
        now: float,
        beside: Executor | None = None,
        names: Pronunciations = NO_PRONUNCIATIONS,
    ) -> None:
        super().__init__(submit, now, model.sample_rate)
        self._beside = beside
        self._sound: Future[SynthesisedClause] | None = None  # the clause that the thread synthesises
        self._model = model
        self._pool = pool  # has no blocks
        self._voice = voice
        self._names = names
        self._unit: TextPiece | None = None  # in the scheduler
        self._told: list[Told] = []
        self._skip = 0  # samples of the next clause that are not sent again

    @property
    def wants_work(self) -> bool:
        """Whether a clause can be prepared or sent, or the end can be reported."""
        if self.paused or (self._unit is not None and self._sound is None):
            return False
        return self._sound is not None or bool(self._queue) or self._ended

    @property
    def awaited(self) -> Future[SynthesisedClause] | None:
        """The clause that the thread synthesises."""
        return None if self.paused else self._sound

    def work(self, now: float) -> Change:
        """Prepare one clause (its phonemes say what it will cost), or send one that the thread has finished."""
        change = Change()
        if self._sound is not None:
            self._take(self._sound, change, now)
        elif self._queue:
            self._prepare(self._queue.popleft(), change, now)
        elif self._ended:
            change.end = "eos"
        return change

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Send a clause's samples."""
        assert isinstance(outcome, ClauseOutcome)
        change = Change(drop=[row.request])
        self._send(outcome.speech, change, now)
        return change

    def _take(self, sound: Future[SynthesisedClause], change: Change, now: float) -> None:
        """Send the clause that the thread synthesised, if it is ready."""
        if not sound.done():
            return
        self._sound = None
        try:
            self._send(sound.result(), change, now)
        except CLAUSE_FAULTS as fault:
            log.error("clause failed %s", describe_fault(fault))
            change.end = "failed"

    def _send(self, speech: SynthesisedClause, change: Change, now: float) -> None:
        (piece, self._unit), (skip, self._skip) = (self._unit, None), (self._skip, 0)
        assert piece is not None
        self._pass(piece)
        begin, samples = self._spoken - skip, speech.samples[skip:]
        self._told.append(Told(piece, self._units, begin))
        if len(samples):
            words = tuple(
                SpokenWord(
                    piece.start + word.source_start,
                    piece.start + word.source_end,
                    begin + word.start_sample,
                    begin + word.end_sample,
                )
                for word in speech.words
                if not skip or word.end_sample > skip
            )
            self._emit(samples, words, change, now)

    def _return_to(self, sample: int, change: Change, now: float) -> int:
        """Queue the clause that holds a sample, and all clauses after it, once more."""
        begin = self._spoken - self._skip
        if sample >= begin:  # that clause is being synthesised already
            self._skip = sample - begin
            return sample
        self.close()
        self._sound = None
        change.drop += self.requests.values()
        first = bisect_right(self._told, sample, key=lambda told: told.sample) - 1
        again = self._told[first:]
        pieces = [*(told.piece for told in again), *([self._unit] if self._unit is not None else [])]
        self._queue.extendleft(reversed(pieces))
        self._units, self._skip, self._unit = again[0].unit - 1, sample - again[0].sample, None
        del self._told[first:]
        return sample

    def _pass(self, piece: TextPiece) -> None:
        self._said = max(self._said, piece.start + len(piece.text))

    def _prepare(self, piece: TextPiece, change: Change, now: float) -> None:
        prepared, long = None, len(piece.text) > MAX_CLAUSE_CHARS
        if not long:
            try:
                with progress.allow(progress.CLAUSE_S):  # the first British clause loads a lexicon
                    prepared = self._model.prepare(piece.text, voice=self._voice, names=self._names)
                long = prepared.phonemes > MAX_UNIT
            except ClauseTooLong:
                long = True
            except CLAUSE_FAULTS as fault:
                log.error("clause not read %s", describe_fault(fault))
                change.end = "failed"
                return
        parts = halves(piece) if long else ()
        if parts:
            self._queue.extendleft(reversed(parts))
            return
        if prepared is None or not prepared.phonemes:  # nothing to say
            self._pass(piece)
            return
        self._unit = piece
        self._units += 1
        speak = self.submit.speak
        if self._beside is not None:
            self._begin_beside(self._beside, prepared, change, now)
            return
        due_s = max(self._heard_until_s, now) if self._first_s else self._first_due(now + FIRST_TARGET_S)
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
                payload=ClausePayload(prepared, self._voice, speak.speed, speak.seed + self._units),
                unit=prepared.phonemes,
            )
        )

    def close(self) -> None:
        """Cancel a clause that the thread has not begun: other jobs wait for it."""
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
