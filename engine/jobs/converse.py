"""Answers what a person says in text and sound with a speech-to-speech model: one turn of a conversation.

The conversation so far is read while the person speaks, and the spectrogram of the sound is computed as it comes. When
the turn ends, what was said is encoded and read, and the answer begins: text as it is written, sound frame by frame.
After a rewind what is made again is the same, and text that was told is not told again.

An answer whose text is as long as it may be is not over: text runs ahead of sound. The job ends the text as the model
does, and the model says the rest of it. A word that no sound follows has no time, and counts as unheard.
"""

from __future__ import annotations

import re

from msgspec import structs

from voxlane.engine.api import (
    LISTEN_RATE,
    MAX_UNHEARD_S,
    Append,
    Pieces,
    RequestStats,
    Submit,
    Text,
)
from voxlane.engine.errors import Refusal
from voxlane.engine.jobs.dialogue_job import ConverseFacts, DialogueJob
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.jobs.read_aloud import open_reading
from voxlane.engine.jobs.write_down import open_writing
from voxlane.engine.models.lfm2_audio.config import END_OF_TURN, TEXT_END
from voxlane.engine.models.lfm2_audio.dialogue import Piece, number_of
from voxlane.engine.models.lfm2_audio.interleaving import Turn
from voxlane.engine.models.lfm2_audio.prompt import ConversePromptError
from voxlane.engine.runners.converse import ConverseOutcome
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import Row
from voxlane.engine.text.detokenizer import TextStream
from voxlane.engine.text.incremental import Said
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.voices.word_timing import WordTimer

_SAMPLE_BYTES = 2
_WORD = re.compile(r"\S+(?=\s)")


class ConverseJobFactory:
    """Opens jobs for a speech-to-speech model."""

    def __init__(self, facts: ConverseFacts) -> None:
        self._facts = facts

    def open(self, submit: Submit, now: float) -> Job:
        """Return the job that serves `submit`, or raise Refusal."""
        if submit.tools:
            raise Refusal("bad_request", "tools: a speech-to-speech model calls none")
        if submit.sampling.schema:
            raise Refusal("bad_request", "schema: a speech-to-speech model follows none")
        if submit.speak.speed != 1:
            raise Refusal(
                "bad_request", f"speed: this voice has one pace, so it must be 1 and not {submit.speak.speed:g}"
            )
        match submit.task:
            case "tts":
                return open_reading(submit, now, self._facts)
            case "asr":
                return open_writing(submit, now, self._facts)
        try:
            prompt = self._facts.prompts.open(submit.messages)
        except ConversePromptError as error:
            raise Refusal("bad_request", str(error)) from error
        if len(prompt) >= self._facts.limit:
            raise Refusal("too_long", f"the conversation has {len(prompt)} of {self._facts.limit} positions")
        return ConverseJob(submit, now, self._facts, prompt)


class ConverseJob(DialogueJob):
    """One turn."""

    def __init__(self, submit: Submit, now: float, facts: ConverseFacts, prompt: list[Piece]) -> None:
        seed = submit.sampling.seed or 0
        super().__init__(structs.replace(submit, text=""), now, facts, prompt, submit.sampling, facts.sampling, seed)
        self._tokenizer: Tokenizer = facts.prompts.tokenizer
        self._typed = submit.text
        self._heard = facts.prompts.listen()  # what the person says
        self._writing = TextStream()
        self._written = ""  # of the answer
        self._written_at = 0  # the samples that there were when its last character was written
        self._timed = 0  # characters of it whose words have a time
        self._pace = WordTimer(facts.sample_rate)
        self._known = 0  # pieces of the answer that were told
        self._again = 0  # tokens that were told before a rewind, and are made again

    # ---- what the person says

    def append(self, more: Append, now: float) -> Change:
        """Take more of what the person says."""
        if self._ended:
            return Change()
        try:
            self._heard.append(more.audio)
        except ConversePromptError:
            return Change(end="failed")
        return Change(end="failed" if len(self._heard) > MAX_UNHEARD_S * LISTEN_RATE * _SAMPLE_BYTES else None)

    def end_input(self, now: float) -> Change:
        """Begin the answer."""
        if self._ended:
            return Change()
        self._ended = True
        try:
            said = self._facts.prompts.typed(self._typed) if self._typed else []
            if self._heard:
                said += self._heard.finish()
        except ConversePromptError:
            return Change(end="failed")
        self._heard = self._facts.prompts.listen()
        dialogue = self._dialogue
        dialogue.hear([*said, *self._facts.prompts.close()])
        if not said:
            return Change(end="eos")
        if dialogue.available >= self._facts.limit:
            return Change(end="length")
        dialogue.begin(Turn.interleaved(self._facts.text_run, self._facts.sound_run))
        self.refresh(now)
        return Change()

    # ---- the answer

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Take a token or a frame, and send what it adds."""
        assert isinstance(outcome, ConverseOutcome)
        change = Change()
        self._take(row, outcome)
        self._units += outcome.frame is not None
        if outcome.token is not None:
            self._write(outcome.token, change)
        if self._lacks_end:
            self._dialogue.add_token(TEXT_END)
            self._write(TEXT_END, change)
        whole = self._end(change)
        self._send(outcome, change, now, whole=whole)
        self.refresh(now)
        return change

    def stats(self, now: float) -> RequestStats:
        """Return what it has cost so far."""
        answer = self._dialogue.answer
        return structs.replace(
            super().stats(now),
            prompt_tokens=self._dialogue.available - len(answer),
            output_tokens=len(answer),
            cached_tokens=self._request.cached_tokens,
        )

    @property
    def _written_tokens(self) -> int:
        """Return how many tokens of text the answer has."""
        return sum(isinstance(piece, int) for piece in self._dialogue.answer)

    @property
    def _full(self) -> bool:
        """Return whether the turn has as many positions or as much sound as it may have."""
        return self._dialogue.available >= self._facts.limit or self._dialogue.spoken >= self._most_frames

    @property
    def _silent(self) -> bool:
        """Return whether the answer has all tokens that it may have, and no sound is due."""
        turn = self._dialogue.turn
        if turn is None or turn.ended or turn.sound:
            return False
        return self._written_tokens >= self.submit.sampling.max_tokens

    @property
    def _lacks_end(self) -> bool:
        """Return whether the next token has to be the end of the text."""
        turn = self._dialogue.turn
        return self._silent and turn is not None and not turn.text_complete and not self._full

    def _end(self, change: Change) -> bool:
        """End the answer if it is over; return whether its sound came to an end by itself."""
        dialogue, sampling = self._dialogue, self.submit.sampling
        whole = dialogue.ended or (self._silent and not self._full)
        if whole:
            change.end = "eos" if self._written_tokens <= sampling.max_tokens else "length"
            self._end_text(change)
            self._pace.drop_from(dialogue.spoken * self._facts.frame_samples)
        elif self._full:
            change.end = "length"
        return whole

    def _write(self, token: int, change: Change) -> None:
        """Tell the text that a token adds, unless it was told before a rewind."""
        if self._again:
            self._again -= 1
            return
        codec = self._tokenizer
        data = b"" if token in codec.special_ids or token >= codec.vocab_size else codec.token_bytes(token)
        self._tell(self._writing.push(data), change)
        if token == TEXT_END:
            self._end_text(change)

    def _end_text(self, change: Change) -> None:
        """Tell the rest of the text, and time its last word."""
        self._tell(self._writing.finish(), change)
        rest = self._written[self._timed :]
        if rest.strip():
            start = self._timed + len(rest) - len(rest.lstrip())
            self._time(start, self._timed + len(rest.rstrip()), self._written_at)

    def _tell(self, text: str, change: Change) -> None:
        if not text:
            return
        before, sample = len(self._written), self._dialogue.spoken * self._facts.frame_samples
        self._written += text
        for word in _WORD.finditer(self._written, self._timed):
            self._time(word.start(), word.end(), sample if word.end() > before else self._written_at)
        if not text[-1].isspace():
            self._written_at = sample
        change.messages.append(Text(self.submit.request_id, self.submit.epoch, text))

    def _time(self, start: int, end: int, sample: int) -> None:
        """Give a word a time, which is after so many samples."""
        self._pace.add(Said(start, end, (), float(end - start + 1)), sample)
        self._timed = end

    def _send(self, outcome: ConverseOutcome, change: Change, now: float, *, whole: bool) -> None:
        samples = self._spoken + len(outcome.samples)
        if whole:
            words = self._pace.finish(samples)
        else:
            words = self._pace.told(samples) if len(outcome.samples) else ()  # words leave with sound, not before it
        if len(outcome.samples) or words:
            self._emit(outcome.samples, words, change, now)
        answer = self._dialogue.answer
        if outcome.frame is not None or change.end is not None:
            self._tell_pieces(answer if change.end is None else self._with_sound(answer), change)

    def _tell_pieces(self, answer: list[Piece], change: Change) -> None:
        """Tell the pieces of the answer that were not told."""
        new = tuple(piece if isinstance(piece, tuple) else (number_of(piece),) for piece in answer[self._known :])
        if new:
            change.messages.append(Pieces(self.submit.request_id, self.submit.epoch, new))
            self._known = len(answer)

    def _with_sound(self, answer: list[Piece]) -> list[Piece]:
        """Return an answer without text that no sound follows."""
        last = max((place for place, piece in enumerate(answer) if isinstance(piece, tuple)), default=-1)
        marks = [piece for piece in answer[last + 1 :] if piece in (TEXT_END, END_OF_TURN)]
        return [*answer[: last + 1], *marks] if self._dialogue.spoken else []

    def _return_to(self, sample: int, change: Change, now: float) -> int:
        """Restore the state before the frame that holds a sample."""
        frame, dialogue = sample // self._facts.frame_samples, self._dialogue
        written = self._written_tokens
        self._stream.rewind(frame)
        self._again += written - self._written_tokens
        self._known, self._units = min(self._known, len(dialogue.answer)), frame
        self._pace.rewind(frame * self._facts.frame_samples)
        self._renew(change, now, decoded=self._stream.decoded, keeps=True)
        self.refresh(now)
        return frame * self._facts.frame_samples
