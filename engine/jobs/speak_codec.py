"""Speaks a text with a codec language model: one utterance, to which text is appended while it speaks.

The first frame is sent at once; later ones in larger chunks the more audio the listener has. A stream whose listener
has enough audio is scheduled last. An utterance that has run out of text waits. If the model ends an utterance before
it has read all of its text, another utterance speaks the rest. An utterance has a maximum length: longer text is cut at
the end of a sentence, and the next utterance speaks what the full one did not, from the first word that was not spoken.
To rewind to a frame, a new request begins the utterance with the frames before it; the old request's outcome of a step
under way is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from voxlane.engine.api import RequestStats, SpokenWord, Submit
from voxlane.engine.errors import REQUEST_FAULTS, Refusal, describe_fault
from voxlane.engine.jobs.codec_speech import CodecSpeechJob
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.jobs.speech import check_length
from voxlane.engine.jobs.text_reading import TextReading
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.state_rows import StateRows
from voxlane.engine.models.qwen3_tts.config import MIN_FRAMES
from voxlane.engine.models.qwen3_tts.prompt import PromptError
from voxlane.engine.runners.codec_tts import FrameOutcome, UtteranceStream
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import Request, RequestState
from voxlane.engine.voices.prompt import VoicePrompt
from voxlane.engine.voices.word_timing import LETTERS_PER_S, WordTimer

log = logging.getLogger(__name__)

CUT_AT_SENTENCE, CUT_AT_WORD = 0.5, 0.75
"""Shares of an utterance's maximum length, at ordinary pace, from which it takes no more text: from the first at
the end of a sentence, from the second in any case. A slow voice takes half as long again."""

LEAST_LETTERS = 300.0
"""An utterance takes at least this much text, some 20 s: there is a pause between two utterances."""


@dataclass(frozen=True, slots=True)
class CodecVoiceFacts:
    """What jobs need to know of a talker."""

    end_code: int
    frame_samples: int
    sample_rate: int
    limit: int  # positions that an utterance may have
    slots: StateRows

    @property
    def frame_s(self) -> float:
        """Return how long a frame lasts."""
        return self.frame_samples / self.sample_rate


@dataclass(slots=True)
class UtterancePart:
    """Where an utterance of a reply began, and once it is over, its frames."""

    text: list[int]  # tokens of the word in which the utterance before broke off
    word: int  # its first word, counted in the reply
    known: int  # words that were sent before it
    frame: int  # its first frame, counted in the reply
    frames: NDArray[np.int32] | None = None  # [frames, groups]


class SpeakCodecJobFactory:
    """Opens jobs for a talker; `manner` returns a submission's voice prompt, or raises PromptError."""

    def __init__(self, facts: CodecVoiceFacts, pool: BlockPool, manner: Callable[[Submit], VoicePrompt]) -> None:
        self._facts = facts
        self._pool = pool
        self._manner = manner

    def open(self, submit: Submit, now: float) -> Job:
        """Return the job that serves `submit`, or raise Refusal."""
        check_length(submit)
        if submit.speak.speed != 1:
            raise Refusal(
                "bad_request", f"speed: this voice has one pace, so it must be 1 and not {submit.speak.speed:g}"
            )
        try:
            manner = self._manner(submit)
            utterance = manner.open()
        except PromptError as error:
            raise Refusal("bad_request", str(error)) from error
        if utterance.opening >= self._facts.limit:
            limit = self._facts.limit
            raise Refusal("too_long", f"voice and instructions take {utterance.opening} of {limit} positions")
        return SpeakCodecJob(submit, now, self._facts, self._pool, manner)


class SpeakCodecJob(CodecSpeechJob):
    """One reply."""

    _stream: UtteranceStream

    def __init__(
        self, submit: Submit, now: float, facts: CodecVoiceFacts, pool: BlockPool, manner: VoicePrompt
    ) -> None:
        super().__init__(submit, now, facts.sample_rate, facts.slots)
        self._facts = facts
        self._pool = pool
        self._manner = manner
        self._pace = WordTimer(facts.sample_rate)
        self._text: list[int] = []  # tokens of this utterance
        self._firsts: list[int] = []  # where its words begin in `_text`
        self._letters = 0.0  # in this utterance
        self._reading = TextReading(manner.reader)
        self._taken = 0  # words that are in this utterance or in one before it
        self._parts = [UtterancePart([], 0, 0, 0)]  # the last is this utterance
        self._preemptions = 0  # of the requests before the present one
        self._requests = 0  # made so far
        self._request, self._stream = self._begin(now)

    @property
    def wants_work(self) -> bool:
        """Whether text can be read, its end noted, or a state row taken."""
        if self.paused:
            return False
        return bool(self._queue) or (self._ended and not self._reading.closed) or self._facts.slots.serves(self)

    @property
    def restless(self) -> bool:
        """Whether it speaks: then another stream may take its state row, or leave it one."""
        return not self.paused

    def open(self, now: float) -> Change:
        """Begin."""
        return Change(begin=[self._request])

    def work(self, now: float) -> Change:
        """Read some of the text, and take a state row if there is anything to say."""
        try:
            closes = self._reading.read(self._queue, ended=self._ended)
        except REQUEST_FAULTS as fault:
            log.error("text not read %s", describe_fault(fault))
            return Change(end="failed")
        self._take()
        if closes and not self._text:
            change = Change(end="eos")
            self._send(FrameOutcome(), self._pace.finish(self._spoken), change, now)
            return change
        if closes:
            self._stream.utterance.end()
        self.refresh(now)
        return Change()

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Take a frame, and send the samples that the step decoded."""
        assert isinstance(outcome, FrameOutcome)
        spoken, stream, change = outcome, self._stream, Change()
        if spoken.frame is None:
            if stream.utterance.frame_due(row.start + row.count):  # its state row is behind: compute this again
                self._request.table.rewind(row.start + row.count - 1)
            self.refresh(now)
            return change
        over = spoken.frame[0] == self._facts.end_code
        if not over:
            stream.utterance.add(spoken.frame)
            self._units += 1
        stream.decoded += len(spoken.samples) // self._facts.frame_samples
        full = not over and self._full(row.start + row.count, stream.utterance.spoken)
        samples, read = self._spoken + len(spoken.samples), self._read() if over else 0
        through = over and read >= len(self._text)
        words = self._pace.finish(samples) if through and stream.utterance.ended else self._pace.told(samples)
        if full and self._pace.untold and self._pace.known == self._parts[-1].known:
            change.end = "length"  # another utterance would get no further
        elif self._all_taken and (through or (full and not self._pace.untold)):
            change.end = "eos"
        self._send(spoken, words, change, now)
        if (over or full) and change.end is None:
            self._begin_anew(read if over else None, change, now)
        self.refresh(now)
        return change

    def stats(self, now: float) -> RequestStats:
        """Return what it has cost so far."""
        return structs.replace(super().stats(now), preemptions=self._preemptions + self._request.preemptions)

    # ---- text

    @property
    def _ahead(self) -> int:
        """By how many tokens a cloned clip's text is longer than its frames; negative if it is shorter."""
        clone = self._manner.clone
        return len(clone.text) - len(clone.frames) if clone is not None else 0

    @property
    def _all_taken(self) -> bool:
        return self._reading.closed and self._taken == len(self._reading.words)

    def _take(self) -> None:
        """Append words to the utterance until it is full; the next utterance takes the rest."""
        utterance = self._stream.utterance
        while self._taken < len(self._reading.words) and not utterance.ended:
            said = self._reading.words[self._taken]
            if self._taken == self._pace.known + self._pace.untold:  # else the timer knows it from before a rewind
                frame = self._parts[-1].frame + max(len(self._text) + self._ahead, 0)
                self._pace.add(said, frame * self._facts.frame_samples)
            self._taken += 1
            self._firsts.append(len(self._text))
            self._text += said.tokens
            self._letters += said.letters
            utterance.append(said.tokens)
            frames = min(self._stream.sampling.max_frames, self._facts.limit - utterance.opening)
            share = CUT_AT_SENTENCE if said.closes else CUT_AT_WORD
            if self._letters >= max(share * frames * self._facts.frame_s * LETTERS_PER_S, LEAST_LETTERS):
                utterance.end()

    def _read(self) -> int:
        """Return how many text tokens an ended utterance has read; if none, count all of them as read."""
        read = 1 + self._stream.utterance.spoken - self._ahead
        return read if read > 0 else len(self._text)

    # ---- utterances

    def _begin(self, now: float) -> tuple[Request, UtteranceStream]:
        """Return a request for another utterance."""
        manner, submit = self._manner, self.submit
        utterance = manner.open()
        self._requests += 1
        stream = UtteranceStream(
            utterance,
            manner.sampling,
            manner.seed + len(self._parts) - 1,
            lead=manner.clone.frames if manner.clone is not None else (),
            slot=self._slot,
        )
        request = Request(
            id=f"{submit.request_id}/{self._requests}",
            task="tts",
            tokens=[],
            prompt_tokens=utterance.available,
            table=BlockTable(self._pool),
            priority=submit.priority,
            arrival_s=now,
            session=submit.session,
            limit=self._facts.limit,
            model="tts",
            payload=stream,
            waiting_for_input=True,
        )
        return request, stream

    def _begin_anew(self, read: int | None, change: Change, now: float) -> None:
        """Go on with another utterance: after the text that was read, or after a cut, the words that were sent."""
        unread = [first for first in self._firsts if read is not None and first >= read]
        left = [] if read is None else self._text[read : unread[0] if unread else None]  # the rest of a word
        self._pace.take_back(self._pace.untold if read is None else len(unread))
        self._parts[-1].frames = np.array(self._stream.utterance.frames, np.int32)
        known = self._pace.known
        self._parts.append(UtterancePart(left, known + self._pace.untold, known, self._units))
        self._open_part(change, now)

    def _open_part(self, change: Change, now: float) -> None:
        """Begin the last utterance in a new request."""
        part = self._parts[-1]
        change.drop.append(self._request)
        self._preemptions += self._request.preemptions
        self._text, self._firsts, self._letters, self._taken = list(part.text), [], 0.0, part.word
        self._request, self._stream = self._begin(now)
        self._stream.utterance.append(self._text)
        self._take()
        if self._all_taken:
            self._stream.utterance.end()
        change.begin.append(self._request)

    def _return_to(self, sample: int, change: Change, now: float) -> int:
        """Restore the state before the frame that holds a sample."""
        frame = sample // self._facts.frame_samples
        before, spoken = self._request, self._stream.utterance.frames
        there = len(self._parts)
        while frame < self._parts[-1].frame:
            self._parts.pop()
        part, self._units = self._parts[-1], frame
        if part.frames is not None:
            spoken, part.frames = list(map(tuple, part.frames.tolist())), None
        self._pace.rewind(frame * self._facts.frame_samples)
        self._pace.take_back(min(self._pace.untold, self._pace.known + self._pace.untold - part.word))
        self._open_part(change, now)
        request, stream = self._request, self._stream
        for codes in spoken:
            stream.utterance.add(codes)
        stream.decoded = len(spoken)
        stream.rewind(frame - part.frame)
        if there == len(self._parts) and before.blocks:  # same positions: keep their KV blocks
            request.table = before.table.fork()
            request.table.rewind(min(request.table.length, stream.utterance.available - 1))
            request.state, request.started = RequestState.RUNNING, before.started
        self.refresh(now)
        return frame * self._facts.frame_samples

    def _send(self, spoken: FrameOutcome, words: tuple[SpokenWord, ...], change: Change, now: float) -> None:
        if len(spoken.samples) or words:
            self._emit(spoken.samples, words, change, now)
        if words:
            self._said = max(self._said, words[-1].end)

    # ---- the scheduler's view

    def refresh(self, now: float) -> None:
        """Tell the scheduler how much there is to compute, and when it is wanted."""
        stream, request, utterance = self._stream, self._request, self._stream.utterance
        positions = utterance.available if self._text else 0
        request.tokens += [0] * (positions - len(request.tokens))  # only their number matters, and it never falls
        if self._slot < 0 < request.pending:
            self._take_row()
        lacking = self._slot < 0 or request.pending <= 0
        if request.waiting_for_input and not lacking:
            request.progress_s, request.due_s = now, self._first_due(now)
        request.waiting_for_input = lacking
        ahead_s = self._set_due(now, self._facts.frame_s)
        # Decode all frames if the utterance will wait for text or end after the next frame.
        flush = utterance.text_for(utterance.spoken) is None or self._full(positions, utterance.spoken + 1)
        stream.chunk = 1 if flush else stream.chunk_for(ahead_s / self._facts.frame_s)
        stream.keep = int(not flush and utterance.ended and utterance.spoken + 1 >= MIN_FRAMES)
        self._facts.slots.make_way(self, now)

    def _full(self, positions: int, frames: int) -> bool:
        """Return whether an utterance of so many positions and frames is full."""
        return positions >= self._facts.limit or frames >= self._stream.sampling.max_frames
