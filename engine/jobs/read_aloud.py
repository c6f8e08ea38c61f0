"""Reads a text aloud with a speech-to-speech model, a passage at a time.

A passage is some sentences: enough that a voice settles, and never so much that a context is full. Where passages end
depends on the text alone. Each is a dialogue of its own: the task, the text, and the model's turn, in which the model
itself begins and ends the sound. The beginning of the next one is read while its text is awaited. To rewind, the
passage that holds the frame is begun again with its frames before it.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voxlane.engine.api import SamplingParams, SpokenWord, Submit
from voxlane.engine.errors import REQUEST_FAULTS, Refusal, describe_fault
from voxlane.engine.jobs.dialogue_job import ConverseFacts, DialogueJob
from voxlane.engine.jobs.job import Change
from voxlane.engine.jobs.speech import check_length
from voxlane.engine.jobs.text_reading import TextReading
from voxlane.engine.models.lfm2_audio.config import CODES
from voxlane.engine.models.lfm2_audio.dialogue import ClipRow, Codes, Dialogue, Piece
from voxlane.engine.models.lfm2_audio.interleaving import Turn
from voxlane.engine.models.qwen3_tts.prompt import PromptError
from voxlane.engine.runners.converse import ConverseOutcome
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import Row
from voxlane.engine.text.incremental import Reader
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.voices.prompt import MAX_INSTRUCTION_CHARS, respellings_of
from voxlane.engine.voices.word_timing import WordTimer

log = logging.getLogger(__name__)

LEAST_LETTERS, MOST_LETTERS = 60.0, 300.0
"""A passage ends with the sentence that makes it as long as the first, some 4 s, or with the word that makes it as long
as the second, 20 s."""

LONGEST_S, LONGEST_LETTER_S = 2.0, 0.25
"""A passage is ended that lasts for this and this for each letter: four times as long as ordinary speech takes."""

PASSAGE_TOKENS = 64
"""Tokens of text that a model may write instead of sound."""

POSITIONS_A_LETTER = 3
"""Positions that a letter of a passage may take, its tokens and frames together."""

LEAST_POSITIONS = 64
"""Positions that a passage must find behind the description of its voice."""


@dataclass(slots=True)
class Passage:
    """Some words of a reply, and where they are in it."""

    word: int  # the first word, counted in the reply
    frame: int  # the first frame, counted in the reply
    stop: int = 0  # the word after the last; 0: not known yet
    most_frames: int = 0
    answer: NDArray[np.int32] | None = None  # once it is over: a row for each frame, or token and -1


def open_reading(submit: Submit, now: float, facts: ConverseFacts) -> ReadAloudJob:
    """Return the job that reads a text aloud, or raise Refusal."""
    check_length(submit)
    speak = submit.speak
    if speak.voice:
        raise Refusal("bad_request", "voice: this model has no voices with names; instructions may describe one")
    if speak.language:
        raise Refusal("bad_request", "language: this model has one language, so none can be named")
    if len(speak.instructions) > MAX_INSTRUCTION_CHARS:
        reason = f"instructions: {len(speak.instructions)} characters are more than {MAX_INSTRUCTION_CHARS}"
        raise Refusal("bad_request", reason)
    try:
        reader = Reader(facts.prompts.tokenizer.encode, "auto", respellings_of(speak.pronunciations))
    except PromptError as error:
        raise Refusal("bad_request", str(error)) from error
    opening = facts.prompts.read_aloud(speak.instructions.strip())
    if facts.limit - len(opening) < LEAST_POSITIONS:
        raise Refusal("too_long", f"the instructions take {len(opening)} of {facts.limit} positions")
    return ReadAloudJob(submit, now, facts, opening, reader)


class ReadAloudJob(DialogueJob):
    """One reply."""

    def __init__(self, submit: Submit, now: float, facts: ConverseFacts, opening: list[Piece], reader: Reader) -> None:
        prompts = facts.prompts
        super().__init__(submit, now, facts, opening, SamplingParams(), facts.reading, submit.speak.seed)
        self._opening = opening
        self._closing = prompts.close()
        self._tokenizer: Tokenizer = prompts.tokenizer
        self._reading = TextReading(reader)
        self._pace = WordTimer(facts.sample_rate)
        self._passages = [Passage(0, 0)]  # the last is under way
        self._groups = prompts.model.config.groups
        room = (facts.limit - len(opening) - len(self._closing)) / POSITIONS_A_LETTER
        self._most_letters = min(MOST_LETTERS, room)

    @property
    def wants_work(self) -> bool:
        """Whether text can be read, its end noted, or a state row taken."""
        if self.paused:
            return False
        return bool(self._queue) or (self._ended and not self._reading.closed) or super().wants_work

    @property
    def restless(self) -> bool:
        """Whether it may read or speak."""
        return not self.paused

    def work(self, now: float) -> Change:
        """Read some of the text, and take a state row if there is anything to say."""
        change = Change()
        try:
            self._reading.read(self._queue, ended=self._ended)
        except REQUEST_FAULTS as fault:
            log.error("text not read %s", describe_fault(fault))
            return Change(end="failed")
        self._speak_on(change)
        self.refresh(now)
        return change

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Take a token or a frame, send what it adds, and go on to the next passage if this one is over."""
        assert isinstance(outcome, ConverseOutcome)
        change, passage = Change(), self._passages[-1]
        self._take(row, outcome)
        self._units = passage.frame + self._dialogue.spoken
        over, samples = self._over(outcome.frame), self._spoken + len(outcome.samples)
        words: tuple[SpokenWord, ...] = ()
        if over and self._is_silent:
            change.end = "length"  # the model has written instead of speaking
        elif over:
            words = self._pace.finish(samples)
        elif self._dialogue.available >= self._facts.limit:
            change.end, words = "length", self._pace.told(samples)
        elif len(outcome.samples):
            words = self._pace.told(samples)
        if len(outcome.samples) or words:
            self._emit(outcome.samples, words, change, now)
            self._said = max(self._said, *(word.end for word in words), 0)
        if over and change.end is None:
            self._turn_page(change, now)
        self.refresh(now)
        return change

    @property
    def _most_frames(self) -> int:
        """Return how many frames of sound the passage may have."""
        return min(self._passages[-1].most_frames, self._frames.max_frames)

    def _over(self, frame: Codes | None) -> bool:
        """Return whether a passage is over: its sound has ended, or does not begin, or has lasted long enough."""
        dialogue, turn = self._dialogue, self._dialogue.turn
        if turn is None:
            return False
        ended = turn.ended or (dialogue.spoken > 0 and frame is not None and frame[0] == CODES)
        written = 0 if turn.sound else sum(isinstance(piece, int) for piece in dialogue.answer)
        return ended or dialogue.spoken >= self._most_frames or written >= PASSAGE_TOKENS

    @property
    def _is_silent(self) -> bool:
        """Whether a passage with words has no sound."""
        passage = self._passages[-1]
        tokens = [token for said in self._reading.words[passage.word : passage.stop] for token in said.tokens]
        return not self._dialogue.spoken and any(map(str.isalnum, self._tokenizer.decode(tokens)))

    # ---- passages

    def _speak_on(self, change: Change) -> None:
        """Give the passage its text, if that is known; end the reply if there is none."""
        passage = self._passages[-1]
        if self._dialogue.turn is not None:
            return
        words, passage.stop = self._reading.words, self._stop_after(passage.word)
        if passage.stop == passage.word:
            change.end = "eos" if self._reading.closed else None
            return
        for said in words[self._pace.known + self._pace.untold : passage.stop]:
            self._pace.add(said, passage.frame * self._facts.frame_samples)
        own = words[passage.word : passage.stop]
        letters = sum(said.letters for said in own)
        passage.most_frames = math.ceil((LONGEST_S + LONGEST_LETTER_S * letters) / self._facts.frame_s)
        self._dialogue.hear([*(token for said in own for token in said.tokens), *self._closing])
        self._dialogue.begin(Turn.sequential())
        if self._dialogue.available >= self._facts.limit:
            change.end = "length"

    def _stop_after(self, first: int) -> int:
        """Return where a passage that begins with a word ends; there if its end is not known yet."""
        letters = 0.0
        for place in range(first, len(self._reading.words)):
            said = self._reading.words[place]
            letters += said.letters
            if letters >= self._most_letters or (said.closes and letters >= LEAST_LETTERS):
                return place + 1
        return len(self._reading.words) if self._reading.closed else first

    def _turn_page(self, change: Change, now: float) -> None:
        """Begin the next passage."""
        passage, answer = self._passages[-1], self._dialogue.answer
        passage.answer = np.full((len(answer), self._groups), -1, np.int32)
        for place, piece in enumerate(answer):
            assert not isinstance(piece, ClipRow), "the model makes no rows"
            passage.answer[place, : 1 if isinstance(piece, int) else None] = piece
        self._passages.append(Passage(passage.stop, self._units))
        self._open_passage()
        self._speak_on(change)
        if change.end is None:
            self._renew(change, now)

    def _open_passage(self) -> None:
        self._dialogue = Dialogue(self._opening)
        self._seed = self.submit.speak.seed + len(self._passages) - 1

    def _return_to(self, sample: int, change: Change, now: float) -> int:
        """Restore the state before the frame that holds a sample."""
        frame = sample // self._facts.frame_samples
        there = len(self._passages)
        while frame < self._passages[-1].frame:
            self._passages.pop()
        passage, self._units = self._passages[-1], frame
        self._pace.rewind(frame * self._facts.frame_samples)
        if there > len(self._passages):
            self._pace.take_back(min(self._pace.untold, self._pace.known + self._pace.untold - passage.stop))
            self._open_passage()
            self._speak_on(change)
            self._answer_again(passage)
            self._dialogue.rewind(frame - passage.frame)
            self._renew(change, now, decoded=frame - passage.frame)
        else:
            self._stream.rewind(frame - passage.frame)
            self._renew(change, now, decoded=self._stream.decoded, keeps=True)
        self.refresh(now)
        return frame * self._facts.frame_samples

    def _answer_again(self, passage: Passage) -> None:
        """Give a passage that was begun again what the model has made of it."""
        assert passage.answer is not None, "a passage before the last is over"
        for piece in passage.answer.tolist():
            if piece[1] < 0:
                self._dialogue.add_token(piece[0])
            else:
                self._dialogue.add(tuple(piece))
        passage.answer = None
