"""Chat, completion and scoring: tokens to text as it comes, and when to stop. It knows no schedule and no tensor."""

from __future__ import annotations

from dataclasses import replace

from voxlane.engine.api import FinishReason, RequestStats, Submit, Text, TokenLogprob
from voxlane.engine.detokenizer import TextStream
from voxlane.engine.intake import Intake, TextCodec
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.plan import Row
from voxlane.engine.request import Request
from voxlane.engine.runner import Outcome
from voxlane.engine.sampler import Choice


class TextDesk:
    """Opens jobs for the chat model."""

    def __init__(self, intake: Intake, tokenizer: TextCodec) -> None:
        self.intake = intake
        self._tokenizer = tokenizer

    def open(self, submit: Submit, now: float) -> Job:
        """Return the job that serves `submit`, or raise Refusal."""
        requests = self.intake.requests(submit, now)
        job = ScoreJob if submit.task == "score" else TextJob
        return job(submit, requests, self._tokenizer, now)


class TextJob(Job):
    """One sequence whose new tokens are told as text."""

    def __init__(self, submit: Submit, requests: list[Request], tokenizer: TextCodec, now: float) -> None:
        super().__init__(submit, now)
        self._tokenizer = tokenizer
        self._waiting = requests
        self._last = requests[-1]
        self._stream = TextStream(submit.sampling.stop)
        self._logprobs: list[TokenLogprob] = []  # of text that is still held back
        self._prompt_tokens = sum(request.prompt_tokens for request in requests)

    def open(self, now: float) -> Change:
        """Begin with the whole prompt."""
        requests, self._waiting = self._waiting, []
        return Change(begin=requests)

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Tell the new tokens, and end with the last."""
        request = row.request
        if row.drafts:
            request.lookup_proposed += len(row.drafts)
            request.lookup_accepted += len(outcome.choices) - 1
        text, reason = "", None
        for choice in outcome.choices:
            text += self._take(request, choice, now)
            reason = self._reason(request, choice)
            if reason:
                text += self._stream.finish()
                break
        if outcome.choices:
            request.table.rewind(len(request.tokens) - 1)  # rejected guesses go
        request.table.seal(request.tokens)
        change = Change(end=reason)
        if text or (reason and self._logprobs):
            change.messages.append(Text(self.submit.request_id, self.submit.epoch, text, tuple(self._logprobs)))
            self._logprobs.clear()
        return change

    def stats(self, now: float) -> RequestStats:
        """Return what it has cost so far."""
        return replace(self._last.stats(now), prompt_tokens=self._prompt_tokens)

    def _take(self, request: Request, choice: Choice, now: float) -> str:
        request.tokens.append(choice.token)
        request.first_token_s = request.first_token_s or now
        request.last_token_s = now
        # A model's vocabulary may be padded past the tokenizer's: such a token says nothing.
        silent = choice.token in self._tokenizer.special_ids or choice.token >= self._tokenizer.vocab_size
        piece = b"" if silent else self._tokenizer.token_bytes(choice.token)
        if choice.logprob is not None and not silent:
            top = tuple((self._spelling(token), logprob) for token, logprob in choice.top)
            self._logprobs.append(TokenLogprob(piece, choice.logprob, top))
        return self._stream.push(piece)

    def _spelling(self, token: int) -> bytes:
        if token in self._tokenizer.special_ids or token >= self._tokenizer.vocab_size:
            return self._tokenizer.token_name(token).encode()
        return self._tokenizer.token_bytes(token)

    def _reason(self, request: Request, choice: Choice) -> FinishReason | None:
        sampling = request.sampling
        if choice.token in self._tokenizer.eos_ids and not sampling.ignore_eos:
            return "eos"
        if self._stream.stopped:
            return "stop"
        if request.output_tokens >= sampling.max_tokens or len(request.tokens) >= request.limit:
            return "length"
        return None


class ScoreJob(TextJob):
    """How probable a text is: one request per window of it, and a sum over all of them."""

    _sum = 0.0
    _scored = 0

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Add what a window's chunk brought."""
        request = row.request
        self._sum += outcome.logprob_sum
        self._scored += outcome.scored_tokens
        request.scored_tokens += outcome.scored_tokens
        if not row.reaches_end:
            return Change()
        request.first_token_s = request.last_token_s = now
        self._last = request
        return Change(drop=[request], end="length" if len(self.requests) == 1 else None)

    def stats(self, now: float) -> RequestStats:
        """Return what it has cost so far."""
        return replace(super().stats(now), logprob_sum=self._sum, scored_tokens=self._scored)
