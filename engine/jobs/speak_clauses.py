"""Speaks a text clause by clause: each clause is one unit of work, and the samples' offsets are contiguous.

Clauses are spoken as they came; one that is too long for the model is cut in two. The first words of a clause that is
slow to come are said before it is whole; what follows is joined to them. A model that would delay the steps of a faster
device runs in a thread beside them. To rewind, the job synthesises the clause again and skips the samples
before the one asked for.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace

from voxlane.engine import progress
from voxlane.engine.api import Append, SpokenWord, Started, Submit
from voxlane.engine.errors import Refusal, describe_fault
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.jobs.speech import MAX_CLAUSE_CHARS, SpeechJob, TextPiece, check_length, halves, names_of
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.models.joining import TAIL, beginning, joined
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

FEWEST_WORDS = 3
"""Words that must be known of a clause before its beginning is said, if no comma ends it; the last of them waits."""

MAX_BEGINNING_CHARS = 60
"""A longer beginning waits for the whole clause, which cannot be long in coming."""

WORDS_AHEAD = 3
"""A beginning must last until so many more words are written, at the pace of this reply."""

CHAR_S = 0.065
"""How long a character of text sounds, roughly."""

LEAST_PACE_S = 0.025
"""Who writes a word in less time has the whole clause soon: its beginning is not worth a join."""

READY_S = 0.15
"""From the last word that is known to the sound that follows it."""

_PAUSE = re.compile(r"[,;:—–](?=\s|\Z)")


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
        self._opened_s = 0.0  # when the first word of the unfinished clause came
        self._begins = False  # the beginning of the unfinished clause is worth saying

    @property
    def wants_work(self) -> bool:
        """Whether a clause can be prepared or sent, or the end can be reported."""
        if self.paused or (self._unit is not None and self._sound is None):
            return False
        return self._sound is not None or self._speaks_next or (self._ended and not self._queue)

    @property
    def _speaks_next(self) -> bool:
        return bool(self._queue) and (self._queue[0].whole or self._begins)

    @property
    def awaited(self) -> Future[SynthesisedClause] | None:
        """The clause that the thread synthesises."""
        return None if self.paused else self._sound

    def work(self, now: float) -> Change:
        """Prepare one clause (its phonemes say what it will cost), or send one that the thread has finished."""
        change = Change()
        if self._sound is not None:
            self._take(self._sound, change, now)
        elif self._speaks_next:
            self._begins = False
            self._prepare(self._queue.popleft() if self._queue[0].whole else self._queue[0], change, now)
        elif self._ended:
            change.end = "eos"
        return change

    def append(self, more: Append, now: float) -> Change:
        """Take more text."""
        opens = not self._queue or self._queue[-1].whole
        change = super().append(more, now)
        if opens:
            self._opened_s = now
        self._begins = len(self._queue) == 1 and not self._queue[0].whole and self._worth_saying(self._queue[0], now)
        return change

    def _worth_saying(self, piece: TextPiece, now: float) -> bool:
        """Return whether the known words of an unfinished clause last until more of it is written."""
        certain, words = _certain(piece), len(piece.text.split())
        if not certain or words < 2 or len(piece.text) > MAX_BEGINNING_CHARS:
            return False
        pace_s = (now - self._opened_s) / (words - 1)
        if pace_s < LEAST_PACE_S:
            return False
        if piece.begun is not None:
            return self._heard_until_s - now < pace_s * WORDS_AHEAD + READY_S
        return CHAR_S * certain / self.submit.speak.speed > pace_s * WORDS_AHEAD + READY_S

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
        piece, self._unit = self._unit, None
        assert piece is not None
        if piece.begun is not None:
            speech = joined(piece.begun, speech, self._sample_rate)
        if not piece.whole:
            self._send_beginning(piece, speech, change, now)
            return
        skip, self._skip = self._skip, 0
        self._pass(piece)
        begin = self._spoken - skip
        self._told.append(Told(piece, self._units, begin))
        self._emit_from(piece, speech, skip, change, now)

    def _send_beginning(self, piece: TextPiece, speech: SynthesisedClause, change: Change, now: float) -> None:
        """Send what may be heard of an unfinished clause, unless the whole clause has come meanwhile."""
        begun = beginning(speech, _certain(piece), self._sample_rate)
        if begun is None or begun.heard <= self._skip or self._queue[0].whole:
            return
        self._queue[0] = replace(self._queue[0], begun=begun)
        self._emit_from(piece, begun.sound, self._skip, change, now)
        self._skip = begun.heard

    def _emit_from(self, piece: TextPiece, speech: SynthesisedClause, skip: int, change: Change, now: float) -> None:
        """Send a clause's samples from one on, and the words that were not sent."""
        begin, samples = self._spoken - skip, speech.samples[skip:]
        if not len(samples):
            return
        if piece.begun is not None and skip == piece.begun.heard:
            fresh = speech.words[piece.begun.words :]
        else:
            fresh = tuple(word for word in speech.words if not skip or word.end_sample > skip)
        words = tuple(
            SpokenWord(
                piece.start + word.source_start,
                piece.start + word.source_end,
                begin + word.start_sample,
                begin + word.end_sample,
            )
            for word in fresh
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
        unsent = [self._unit] if self._unit is not None and self._unit.whole else []
        pieces = [*(told.piece for told in again), *unsent]
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
                    text = piece.text if piece.whole else piece.text + TAIL
                    prepared = self._model.prepare(text, voice=self._voice, names=self._names)
                long = prepared.phonemes > MAX_UNIT
            except ClauseTooLong:
                long = True
            except CLAUSE_FAULTS as fault:
                log.error("clause not read %s", describe_fault(fault))
                change.end = "failed"
                return
        if not piece.whole and (long or prepared is None or not prepared.phonemes):
            return
        parts = halves(piece) if long else ()
        if parts:
            self._queue.extendleft(reversed(parts))
            return
        if prepared is None or not prepared.phonemes:  # nothing to say
            self._pass(piece)
            return
        self._unit = piece
        number = self._units + 1
        self._units += piece.whole
        speak = self.submit.speak
        if self._beside is not None:
            self._begin_beside(self._beside, prepared, number, change, now)
            return
        due_s = max(self._heard_until_s, now) if self._first_s else self._first_due(now + FIRST_TARGET_S)
        change.begin.append(
            Request(
                id=f"{self.submit.request_id}/{number}" + ("" if piece.whole else f"+{len(piece.text)}"),
                task="tts",
                tokens=[],
                prompt_tokens=0,
                table=BlockTable(self._pool),
                priority=self.submit.priority,
                arrival_s=now,
                due_s=due_s,
                session=self.submit.session,
                model="tts",
                payload=ClausePayload(prepared, self._voice, speak.speed, speak.seed + number),
                unit=prepared.phonemes,
            )
        )

    def close(self) -> None:
        """Cancel a clause that the thread has not begun: other jobs wait for it."""
        if self._sound is not None:
            self._sound.cancel()

    def _begin_beside(self, thread: Executor, prepared: Prepared, number: int, change: Change, now: float) -> None:
        if self.started_s is None:  # no step will say so
            self.started_s = now
            change.messages.append(Started(self.submit.request_id, self.submit.epoch, 0, 0))
        speak = self.submit.speak
        self._sound = thread.submit(
            self._model.synthesise, prepared, voice=self._voice, speed=speak.speed, seed=speak.seed + number
        )


def _certain(piece: TextPiece) -> int:
    """Return how many characters of an unfinished clause may be heard: all before its last word, or up to a comma."""
    text = piece.text.rstrip()
    said = piece.begun.sound.words[-1].source_end if piece.begun is not None else 0
    fresh = text[said:].split()
    pauses = [found.end() for found in _PAUSE.finditer(text, said)]
    words = len(text) - len(fresh[-1]) if len(fresh) >= FEWEST_WORDS else 0
    return max([words, *pauses])
