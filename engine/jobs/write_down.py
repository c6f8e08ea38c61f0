"""Writes down what is said in a clip with a speech-to-speech model.

The beginning of the prompt is read and the clip's spectrogram is computed while the sound comes. At the end the clip is
encoded and read, and the model writes its words. They have no times: the whole clip is one segment.
"""

from __future__ import annotations

from msgspec import structs

from voxlane.engine.api import (
    LISTEN_RATE,
    MAX_UNHEARD_S,
    Append,
    RequestStats,
    SamplingParams,
    Segment,
    Submit,
    Words,
)
from voxlane.engine.errors import Refusal
from voxlane.engine.jobs.dialogue_job import ConverseFacts, DialogueJob
from voxlane.engine.jobs.job import Change
from voxlane.engine.models.lfm2_audio.interleaving import Turn
from voxlane.engine.models.lfm2_audio.prompt import ConversePromptError
from voxlane.engine.runners.converse import ConverseOutcome
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import Row
from voxlane.engine.text.detokenizer import TextStream
from voxlane.engine.text.tokenizer import Tokenizer

LEAST_TOKENS, TOKENS_A_SECOND = 64, 16.0
"""Tokens that a transcript may have: the first, and so many for each second. Fast speech has six."""

_SAMPLE_BYTES = 2


def open_writing(submit: Submit, now: float, facts: ConverseFacts) -> WriteDownJob:
    """Return the job that writes down a clip, or raise Refusal."""
    listen = submit.listen
    for name, asked in (
        ("translate", listen.translate),
        ("word_times", listen.word_times),
        ("language", listen.language),
        ("hot_words", listen.hot_words),
    ):
        if asked:
            raise Refusal("bad_request", f"{name}: this model writes down what it hears, and takes no directions")
    return WriteDownJob(submit, now, facts)


class WriteDownJob(DialogueJob):
    """One clip."""

    sounds = False

    def __init__(self, submit: Submit, now: float, facts: ConverseFacts) -> None:
        prompts = facts.prompts
        super().__init__(submit, now, facts, prompts.write_down(), SamplingParams(), facts.sampling, 0)
        self._tokenizer: Tokenizer = prompts.tokenizer
        self._clip = prompts.listen()
        self._writing = TextStream()
        self._written = ""
        self._most_tokens = 0  # known with the clip

    def append(self, more: Append, now: float) -> Change:
        """Take more of the clip."""
        if self._ended:
            return Change()
        try:
            self._clip.append(more.audio)
        except ConversePromptError:
            return Change(end="failed")
        if self._clip_s > MAX_UNHEARD_S:
            return Change(end="failed")
        return Change(messages=[self._words("")])

    def end_input(self, now: float) -> Change:
        """Begin to write."""
        if self._ended:
            return Change()
        self._ended = True
        self._most_tokens = LEAST_TOKENS + int(TOKENS_A_SECOND * self._clip_s)
        if not self._clip:
            return Change(end="eos")
        try:
            self._dialogue.hear([*self._clip.finish(), *self._facts.prompts.close()])
        except ConversePromptError:
            return Change(end="failed")
        if self._dialogue.available >= self._facts.limit:
            return Change(end="length")
        self._dialogue.begin(Turn.written())
        self.refresh(now)
        return Change()

    def rewind(self, sample: int, now: float) -> Change:
        """Do nothing: there is no sound."""
        return Change()

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Take a token, and send the text that it adds."""
        assert isinstance(outcome, ConverseOutcome)
        change, dialogue = Change(), self._dialogue
        self._take(row, outcome)
        if outcome.token is not None:
            self._first_s = self._first_s or now
            self._units += 1
            text = self._writing.push(
                self._tokenizer.token_bytes(outcome.token) if self._is_text(outcome.token) else b""
            )
            if dialogue.ended:
                change.end, text = "eos", text + self._writing.finish()
            elif self._units >= self._most_tokens or dialogue.available >= self._facts.limit:
                change.end = "length"
            self._written += text
            if text or dialogue.ended:
                change.messages.append(self._words(text, whole=dialogue.ended))
        self.refresh(now)
        return change

    def stats(self, now: float) -> RequestStats:
        """Return what it has cost so far."""
        return structs.replace(
            super().stats(now),
            prompt_tokens=self._dialogue.available - len(self._dialogue.answer),
            cached_tokens=self._request.cached_tokens,
        )

    @property
    def _clip_s(self) -> float:
        return len(self._clip) / _SAMPLE_BYTES / LISTEN_RATE

    def _is_text(self, token: int) -> bool:
        return token < self._tokenizer.vocab_size and token not in self._tokenizer.special_ids

    def _words(self, text: str, *, whole: bool = False) -> Words:
        """Return the message that tells more text; `whole`: the last of it."""
        segments = (Segment(self._written, 0.0, self._clip_s, 0.0, self._units, 0.0, ""),) if whole else ()
        submit = self.submit
        return Words(submit.request_id, submit.epoch, text, "", self._clip_s, segments, self._clip_s)
