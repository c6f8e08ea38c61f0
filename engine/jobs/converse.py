"""Answers what a person says in text and sound with a speech-to-speech model: one turn of a conversation.

The conversation so far is read while the person speaks, and the spectrogram of the sound is computed as it comes. When
the turn ends, what was said is encoded and read, and the answer begins: text as it is written, sound frame by frame. A
listener who has audio gets several frames at a time. To rewind to a frame, a new request goes on from the positions
before it; the old request's outcome of a step under way is dropped. What is made again is the same, and text that was
told is not told again.

An answer whose text is as long as it may be is not over: text runs ahead of sound. The job ends the text as the model
does, and the model says the rest of it. A word that no sound follows has no time, and counts as unheard.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
from voxlane.engine.jobs.codec_speech import CodecSpeechJob
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.state_rows import StateRows
from voxlane.engine.models.lfm2_audio.config import END_OF_TURN, TEXT_END
from voxlane.engine.models.lfm2_audio.dialogue import Dialogue, Piece, number_of
from voxlane.engine.models.lfm2_audio.interleaving import Turn
from voxlane.engine.models.lfm2_audio.prompt import ConversePromptError, ConversePrompts
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.runners.converse import ConverseOutcome, DialogueStream
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import Request, RequestState
from voxlane.engine.text.detokenizer import TextStream
from voxlane.engine.text.incremental import Said
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.voices.word_timing import WordTimer

SAMPLING = SpeechSampling(temperature=1.0, top_k=4)
"""How the authors draw the codes of a frame."""

_SAMPLE_BYTES = 2
_WORD = re.compile(r"\S+(?=\s)")


@dataclass(frozen=True, slots=True)
class ConverseFacts:
    """What jobs need to know of a model."""

    text_run: int  # tokens of text in turn with
    sound_run: int  # frames of sound
    frame_samples: int
    sample_rate: int
    limit: int  # positions that a conversation may have
    slots: StateRows
    sampling: SpeechSampling = SAMPLING

    @property
    def frame_s(self) -> float:
        """Return the seconds of sound of one frame."""
        return self.frame_samples / self.sample_rate


class ConverseJobFactory:
    """Opens jobs for a speech-to-speech model."""

    def __init__(self, facts: ConverseFacts, pool: BlockPool, prompts: ConversePrompts) -> None:
        self._facts = facts
        self._pool = pool
        self._prompts = prompts

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
        try:
            prompt = self._prompts.open(submit.messages)
        except ConversePromptError as error:
            raise Refusal("bad_request", str(error)) from error
        if len(prompt) >= self._facts.limit:
            raise Refusal("too_long", f"the conversation has {len(prompt)} of {self._facts.limit} positions")
        return ConverseJob(submit, now, self._facts, self._pool, self._prompts, prompt)


class ConverseJob(CodecSpeechJob):
    """One turn."""

    _stream: DialogueStream

    def __init__(
        self,
        submit: Submit,
        now: float,
        facts: ConverseFacts,
        pool: BlockPool,
        prompts: ConversePrompts,
        prompt: list[Piece],
    ) -> None:
        super().__init__(structs.replace(submit, text=""), now, facts.sample_rate, facts.slots)
        self._facts = facts
        self._pool = pool
        self._prompts = prompts
        self._tokenizer: Tokenizer = prompts.tokenizer
        self._typed = submit.text
        self._heard = prompts.listen()  # what the person says
        self._dialogue = Dialogue(prompt)
        self._writing = TextStream()
        self._written = ""  # of the answer
        self._written_at = 0  # the samples that there were when its last character was written
        self._timed = 0  # characters of it whose words have a time
        self._pace = WordTimer(facts.sample_rate)
        self._known = 0  # pieces of the answer that were told
        self._again = 0  # tokens that were told before a rewind, and are made again
        self._requests = 0
        self._preemptions = 0
        self._request, self._stream = self._begin(now)

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
            said = self._prompts.typed(self._typed) if self._typed else []
            if self._heard:
                said += self._heard.finish()
        except ConversePromptError:
            return Change(end="failed")
        self._heard = self._prompts.listen()
        dialogue = self._dialogue
        dialogue.hear([*said, *self._prompts.close()])
        if not said:
            return Change(end="eos")
        if dialogue.available >= self._facts.limit:
            return Change(end="length")
        dialogue.begin(Turn.interleaved(self._facts.text_run, self._facts.sound_run))
        self.refresh(now)
        return Change()

    # ---- the answer

    @property
    def wants_work(self) -> bool:
        """Whether a state row can be taken."""
        return not self.paused and self.waits and self._facts.slots.serves(self)

    @property
    def restless(self) -> bool:
        """Whether it speaks: then another stream may take its state row, or leave it one."""
        return not self.paused and self._dialogue.turn is not None

    @property
    def waits(self) -> bool:
        """Whether it needs a state row now: not before the answer."""
        return self._dialogue.turn is not None and super().waits

    def open(self, now: float) -> Change:
        """Begin to read the conversation."""
        self.refresh(now)
        return Change(begin=[self._request])

    def work(self, now: float) -> Change:
        """Take a state row."""
        self.refresh(now)
        return Change()

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Take a token or a frame, and send what it adds."""
        assert isinstance(outcome, ConverseOutcome)
        dialogue, change = self._dialogue, Change()
        if outcome.token is not None:
            self._write(outcome.token, change)
        elif outcome.frame is not None:
            dialogue.add(outcome.frame)
            self._units += 1
        elif dialogue.frame_due(row.start + row.count):  # its state row is behind: compute this again
            self._request.table.rewind(row.start + row.count - 1)
        self._request.table.seal(self._request.tokens, min(row.start + row.count, self._request.table.length))
        self._stream.decoded += len(outcome.samples) // self._facts.frame_samples
        if self._lacks_end:
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
            preemptions=self._preemptions + self._request.preemptions,
        )

    @property
    def _written_tokens(self) -> int:
        """Return how many tokens of text the answer has."""
        return sum(isinstance(piece, int) for piece in self._dialogue.answer)

    @property
    def _full(self) -> bool:
        """Return whether the answer has as many positions or as much sound as it may have."""
        dialogue, facts = self._dialogue, self._facts
        return dialogue.available >= facts.limit or dialogue.spoken >= facts.sampling.max_frames

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
        """Add a token to the answer, and tell the text that it adds, unless it was told before a rewind."""
        self._dialogue.add_token(token)
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

    # ---- requests

    def _begin(self, now: float) -> tuple[Request, DialogueStream]:
        submit, dialogue = self.submit, self._dialogue
        self._requests += 1
        seed = submit.sampling.seed or 0
        stream = DialogueStream(dialogue, self._facts.sampling, seed, slot=self._slot)
        numbers = [number_of(piece) for piece in dialogue.pieces]
        request = Request(
            id=f"{submit.request_id}/{self._requests}",
            task="converse",
            tokens=numbers,
            prompt_tokens=len(numbers),
            table=BlockTable(self._pool, submit.tenant),
            sampling=submit.sampling,
            priority=submit.priority,
            arrival_s=now,
            session=submit.session,
            seed=seed,
            limit=self._facts.limit,
            model="speech",
            payload=stream,
        )
        return request, stream

    def _return_to(self, sample: int, change: Change, now: float) -> int:
        """Restore the state before the frame that holds a sample."""
        frame = sample // self._facts.frame_samples
        before, stream, dialogue = self._request, self._stream, self._dialogue
        written = sum(isinstance(piece, int) for piece in dialogue.answer)
        stream.rewind(frame)
        self._again += written - sum(isinstance(piece, int) for piece in dialogue.answer)
        self._known, self._units = min(self._known, len(dialogue.answer)), frame
        self._pace.rewind(frame * self._facts.frame_samples)
        change.drop.append(before)
        self._preemptions += before.preemptions
        self._request, fresh = self._begin(now)
        fresh.decoded = stream.decoded
        self._stream = fresh
        if before.blocks:  # same positions: keep their blocks
            self._request.table = before.table.fork()
            self._request.table.rewind(min(self._request.table.length, dialogue.available - 1))
            self._request.state, self._request.started = RequestState.RUNNING, before.started
        change.begin.append(self._request)
        self.refresh(now)
        return frame * self._facts.frame_samples

    def refresh(self, now: float) -> None:
        """Tell the scheduler how much there is to compute, and when it is wanted."""
        request, dialogue = self._request, self._dialogue
        request.tokens += [number_of(piece) for piece in dialogue.pieces[len(request.tokens) :]]
        speaks = dialogue.turn is not None
        if speaks and self._slot < 0 < request.pending:
            self._take_row()
        lacking = request.pending <= 0 or (speaks and self._slot < 0)
        if request.waiting_for_input and not lacking:
            request.progress_s, request.due_s = now, self._first_due(now)
        request.waiting_for_input = lacking
        if speaks:
            ahead_s = self._set_due(now, self._facts.frame_s)
            self._stream.chunk = 1 if self._last_before_text else self._stream.chunk_for(ahead_s / self._facts.frame_s)
            self._facts.slots.make_way(self, now)

    @property
    def _last_before_text(self) -> bool:
        """Whether no frame may follow the next one for a while: then all frames are decoded with it."""
        dialogue, turn = self._dialogue, self._dialogue.turn
        assert turn is not None, "the answer has begun"
        last = dialogue.spoken + 1 >= self._facts.sampling.max_frames or dialogue.available + 1 >= self._facts.limit
        return last or (turn.left == 1 and not turn.text_complete)
