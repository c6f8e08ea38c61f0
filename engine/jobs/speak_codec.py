"""A text being said by a codec language model: one utterance that text is appended to while it speaks.

Frames leave as soon as there is one, then more together the more the listener has; who has enough of them lets others
go first. An utterance that has run out of text waits where it is. One that ends before it has read all its text, which
a model may do by mistake, is followed by another for the rest. An utterance may only last so long: text that would take
longer is cut at the end of a sentence, and what is not said when one is full is said by the next, as far as words can
be told apart. To go back to a frame, an utterance is begun once more with the frames before it, as another request: of
the first, what a step under way brings is dropped. It joins a talker to the scheduler; it runs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from voxlane.engine.api import RequestStats, SpokenWord, Submit
from voxlane.engine.errors import REQUEST_FAULTS, Refusal, describe_fault
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.jobs.speech import MAX_CLAUSE_CHARS, Saying, check_length, halves
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.state_rows import IDLE, Slots
from voxlane.engine.models.qwen3_tts.config import MIN_FRAMES
from voxlane.engine.models.qwen3_tts.prompt import PromptError
from voxlane.engine.runners.codec_tts import MAX_CHUNK, FrameOutcome, UtteranceStream
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import Request, RequestState
from voxlane.engine.text.incremental import Said
from voxlane.engine.voices.prompt import VoicePrompt
from voxlane.engine.voices.word_timing import LETTERS_PER_S, WordTimer

log = logging.getLogger(__name__)

LOW_S, AHEAD_S = 1.36, 2.0
"""A listener who has as much sound as the first lets others go first. From there on up to the second a frame is made
where others need one anyway: so replies are made together, in few steps, and the device is free between them."""

CUT_AT_SENTENCE, CUT_AT_WORD = 0.5, 0.75
"""From these shares of what an utterance has time for, at the pace of ordinary speech, it takes no more text: from the
first when a sentence ends, from the second in any case. A slow voice takes half as long again."""

LEAST_LETTERS = 300.0
"""Text is not cut into less, some 20 s: where two utterances meet there is a pause."""


@dataclass(frozen=True, slots=True)
class TalkerFacts:
    """What jobs have to know of a talker."""

    end_code: int
    frame_samples: int
    sample_rate: int
    limit: int  # positions that an utterance may have
    slots: Slots

    @property
    def frame_s(self) -> float:
        """Return how long a frame lasts."""
        return self.frame_samples / self.sample_rate


@dataclass(slots=True)
class UtterancePart:
    """How an utterance of a reply began, and once it is over, what it said."""

    text: list[int]  # of a word that the one before it broke off in
    word: int  # the first of its own, among all of the reply
    known: int  # words that were told before it
    frame: int  # its first, among all of the reply
    frames: NDArray[np.int32] | None = None  # [frames, groups]


class SpeakCodecJobFactory:
    """Opens jobs for a talker; `manner` says how a submission speaks, or raises PromptError."""

    def __init__(self, facts: TalkerFacts, pool: BlockPool, manner: Callable[[Submit], VoicePrompt]) -> None:
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
        return UtterJob(submit, now, self._facts, self._pool, manner)


class UtterJob(Saying):
    """One reply."""

    def __init__(self, submit: Submit, now: float, facts: TalkerFacts, pool: BlockPool, manner: VoicePrompt) -> None:
        super().__init__(submit, now, facts.sample_rate)
        self._facts = facts
        self._pool = pool
        self._manner = manner
        self._pace = WordTimer(facts.sample_rate)
        self._slot = -1
        self._text: list[int] = []  # of this utterance
        self._firsts: list[int] = []  # where its words begin in that
        self._letters = 0.0  # of them
        self._words: list[Said] = []  # of the reply,
        self._taken = 0  # and how many of them are in this utterance or before it
        self._closed = False  # no more of the text will come
        self._parts = [UtterancePart([], 0, 0, 0)]  # the last is this utterance
        self._preemptions = 0  # of requests before this one's,
        self._requests = 0  # and how many those are
        self._request, self._stream = self._begin(now)

    @property
    def wants_work(self) -> bool:
        """Whether text can be read, its end told, or a place in the codec's state taken."""
        if self.paused:
            return False
        return bool(self._queue) or (self._ended and not self._closed) or self._facts.slots.serves(self)

    def open(self, now: float) -> Change:
        """Begin."""
        return Change(begin=[self._request])

    def work(self, now: float) -> Change:
        """Read some of the text, and take a place in the codec's state if there is anything to say."""
        try:
            closes = self._read_more()
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
        """Take a frame, and send the samples that came with it."""
        assert isinstance(outcome, FrameOutcome)
        spoken, stream, change = outcome, self._stream, Change()
        if spoken.frame is None:
            if stream.utterance.frame_due(row.start + row.count):  # its slot is being caught up: the same again
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
            change.end = "length"  # another would come no further
        elif self._all_taken and (through or (full and not self._pace.untold)):
            change.end = "eos"
        self._send(spoken, words, change, now)
        if (over or full) and change.end is None:
            self._begin_anew(read if over else None, change, now)
        self.refresh(now)
        return change

    def close(self) -> None:
        """Give the place in the codec's state back."""
        self._facts.slots.leave(self)
        if self._slot >= 0:
            self._facts.slots.release(self._slot)

    def stats(self, now: float) -> RequestStats:
        """Return what it has cost so far."""
        return replace(super().stats(now), preemptions=self._preemptions + self._request.preemptions)

    # ---- text

    def _read_more(self) -> bool:
        """Read some of the text; return whether that was the last of it."""
        reader = self._manner.reader
        if self._queue:
            piece = self._queue.popleft()
            if len(piece.text) > MAX_CLAUSE_CHARS and (parts := halves(piece)):
                self._queue.extendleft(reversed(parts))
            else:
                self._words += reader.read(piece.text)
        if not self._ended or self._queue or self._closed:
            return False
        self._words += reader.finish()
        self._closed = True
        return True

    @property
    def _ahead(self) -> int:
        """Return by how many tokens the text is behind the clip's frames, below zero: before them."""
        clone = self._manner.clone
        return len(clone.text) - len(clone.frames) if clone is not None else 0

    @property
    def _all_taken(self) -> bool:
        return self._closed and self._taken == len(self._words)

    def _take(self) -> None:
        """Let the utterance say more words; what it has no time for is for the next one."""
        utterance = self._stream.utterance
        while self._taken < len(self._words) and not utterance.ended:
            said = self._words[self._taken]
            if self._taken == self._pace.known + self._pace.untold:  # else it was told, and then they went back
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
        """Return how much of its text an utterance which has ended saw; if it saw nothing, that is all it ever will."""
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
        """Go on with another utterance, after what was read of the text, or where speech was cut off, what was told."""
        unread = [first for first in self._firsts if read is not None and first >= read]
        left = [] if read is None else self._text[read : unread[0] if unread else None]  # of a word
        self._pace.take_back(self._pace.untold if read is None else len(unread))
        self._parts[-1].frames = np.array(self._stream.utterance.frames, np.int32)
        known = self._pace.known
        self._parts.append(UtterancePart(left, known + self._pace.untold, known, self._units))
        self._open_part(change, now)

    def _open_part(self, change: Change, now: float) -> None:
        """Begin the utterance that is the last, in a request of its own."""
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
        """Be where it was before the frame that holds a sample."""
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
        if there == len(self._parts) and before.blocks:  # their positions are the same: what was computed of them stays
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

    # ---- its place in the codec's state

    @property
    def rank(self) -> int:
        """Return how it ranks among those who wait for a place."""
        return self.submit.priority

    @property
    def waits(self) -> bool:
        """Return whether it would take a place now."""
        return self._slot < 0 < self._request.pending and not self.paused

    @property
    def engaged(self) -> bool:
        """Return whether a step under way makes its next frame."""
        return self._stream.utterance.frame_due(self._request.computed)

    @property
    def claim(self) -> tuple[int, float]:
        """Return its claim to its place: the less the longer it has had no use for it, or else, the farther ahead."""
        if self.paused or self._request.waiting_for_input:
            return IDLE, self._request.progress_s
        return self.rank, -self._heard_until_s

    def give_up(self) -> int:
        """Return its place, for somebody else; with another it will be caught up."""
        slot, self._slot, self._stream.slot, self._stream.stale = self._slot, -1, -1, True
        self._request.waiting_for_input = True
        if self._request.pending > 0:
            self._facts.slots.wait(self)
        return slot

    # ---- the scheduler's view

    def refresh(self, now: float) -> None:
        """Tell the scheduler how much there is to compute, and when it is wanted."""
        stream, request, utterance = self._stream, self._request, self._stream.utterance
        positions = utterance.available if self._text else 0
        request.tokens += [0] * (positions - len(request.tokens))  # only their number counts, and it never falls
        if self._slot < 0 < request.pending:
            self._facts.slots.wait(self)
            if self._facts.slots.serves(self):
                self._slot = stream.slot = self._facts.slots.take(self)
        lacking = self._slot < 0 or request.pending <= 0
        if request.waiting_for_input and not lacking:
            request.progress_s, request.due_s = now, self._first_due(now)
        request.waiting_for_input = lacking
        ahead_s = self._heard_until_s - now
        request.due_s = self._heard_until_s if self._first_s else request.due_s
        # Who starved goes first until it is served: a reply lasts minutes, and is served when its listener has sound.
        request.starved = request.starved and ahead_s < MAX_CHUNK * self._facts.frame_s
        request.not_needed_before_s = self._heard_until_s - LOW_S if ahead_s >= LOW_S else 0.0
        request.joins_from_s = self._heard_until_s - AHEAD_S
        # What has to wait for text after the next frame, or ends with it, leaves nothing undecoded behind.
        flush = utterance.text_for(utterance.spoken) is None or self._full(positions, utterance.spoken + 1)
        stream.chunk = 1 if flush else stream.chunk_for(ahead_s / self._facts.frame_s)
        stream.keep = int(not flush and utterance.ended and utterance.spoken + 1 >= MIN_FRAMES)
        self._facts.slots.make_way(self, now)

    def _full(self, positions: int, frames: int) -> bool:
        """Return whether an utterance of so many positions and frames can have no more."""
        return positions >= self._facts.limit or frames >= self._stream.sampling.max_frames
