"""Chat, completion, scoring and probes: turns tokens into text and tool calls, and decides when to stop."""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

from msgspec import structs

from voxlane.engine.api import (
    FinishReason,
    FromEngine,
    Priority,
    Probability,
    RequestStats,
    Submit,
    Text,
    TokenLogprob,
    ToolCall,
)
from voxlane.engine.errors import REQUEST_FAULTS, Refusal, describe_fault
from voxlane.engine.jobs.admission import Intake, TextCodec, characters, must_call, schema_refusal
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.runners.decoder import Outcome, ScoreOutcome, TokenOutcome
from voxlane.engine.runners.sampler import SampledToken
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import ChatPayload, Request
from voxlane.engine.text.constraint import Constraint, Grammar, GrammarBusy, Grammars
from voxlane.engine.text.detokenizer import TextStream
from voxlane.engine.text.repetition import LoopGuard
from voxlane.engine.text.schema import SchemaError
from voxlane.engine.text.tools import Call, CallReader

log = logging.getLogger(__name__)

LONG_CHARACTERS = 1000
"""A prompt of this many characters is long: tokenising it takes 0.6 ms on a Neoverse-N1 core, 1,500 words take 6."""

CRITICAL_LONG_CHARACTERS = 16_000
"""The same for a critical prompt. A shorter one is read at once; reading this much delays others by 10 ms."""

THOUGHT, THOUGHT_TOKENS = "<think>", 6
"""How some templates begin a reply, and an upper bound of its tokens: it is sent as part of the reply."""

EVEN = 0.01
"""The probability at which a probe answers one half: unfinished sentences are far below it, whole ones far above."""


class ChatJobFactory:
    """Opens jobs for the chat model."""

    def __init__(
        self,
        intake: Intake,
        tokenizer: TextCodec,
        grammars: Grammars | None = None,
        readers: Mapping[Priority, Executor] | None = None,
    ) -> None:
        """Tokenise long prompts in the `readers` of their priority, beside the steps."""
        self.intake = intake
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._readers = readers or {}

    def open(self, submit: Submit, now: float) -> Job:
        """Return the job that serves `submit`, or raise Refusal."""
        self.intake.check(submit)
        long = CRITICAL_LONG_CHARACTERS if submit.priority is Priority.CRITICAL else LONG_CHARACTERS
        reader = self._readers.get(submit.priority) if characters(submit) >= long else None
        read = self.intake.read
        requests = read(submit, now) if reader is None else reader.submit(read, submit, now)
        if submit.task == "score":
            return ScoreJob(submit, requests, self._tokenizer, now)
        if submit.task == "probe":
            return ProbeJob(submit, requests, self._tokenizer, now)
        job = TextJob(submit, requests, self._tokenizer, now)
        try:
            if grammar := self.intake.grammar(submit):
                job.grammar = self._compile(grammar)
        except Refusal:
            job.close()
            raise
        return job

    def close(self) -> None:
        """End the threads that read prompts and compile grammars; drop what they have not begun."""
        for reader in self._readers.values():
            reader.shutdown(cancel_futures=True)
        if self._grammars is not None:
            self._grammars.close()

    def _compile(self, grammar: str) -> Future[Grammar]:
        if self._grammars is None:
            raise Refusal("bad_request", "this engine cannot constrain its output")
        try:
            return self._grammars.compile(grammar)
        except GrammarBusy as error:
            raise Refusal("overloaded", "too many schemas wait to be compiled") from error


class TextJob(Job):
    """One sequence whose new tokens are sent as text or as tool calls."""

    def __init__(
        self, submit: Submit, requests: list[Request] | Future[list[Request]], tokenizer: TextCodec, now: float
    ) -> None:
        super().__init__(submit, now)
        self.grammar: Future[Grammar] | None = None  # of the output, until it is compiled and in use
        self._constraint: Constraint | None = None  # that grammar in use
        self._reading: Future[list[Request]] | None = None  # the prompt, until it is tokenised
        self._tokenizer = tokenizer
        # Copies of attributes that a step of 256 rows reads 256 times.
        self._silent_ids, self._vocabulary = tokenizer.special_ids, tokenizer.vocab_size
        self._bytes_of = tokenizer.token_bytes
        self._eos_ids = frozenset() if submit.sampling.ignore_eos else tokenizer.eos_ids
        self._waiting: list[Request] = []
        self._last: Request | None = None
        self._stream = TextStream(submit.sampling.stop)
        self._logprobs: list[TokenLogprob] = []  # of text that is held back
        self._prompt_tokens = 0
        self._calls = 0
        self._lookup_proposed = 0
        self._lookup_accepted = 0
        forced = must_call(submit)
        free = submit.tool_choice != "none" and not submit.sampling.schema
        self._reader: CallReader | None = None
        self._marks: dict[int, bytes] = {}  # special tokens that only the reader of calls sees
        if submit.tools and (forced or free):
            self._reader = CallReader(submit.tools, whole=forced, style=tokenizer.call_style)
            self._marks = {} if forced else tokenizer.call_marks
        least, bound = submit.sampling.loop_tokens, forced or submit.sampling.schema or submit.sampling.ignore_eos
        self._guard = LoopGuard(least) if least and not bound else None
        self._repeated = ""  # held back: dropped if it proves to be a loop
        self._opening = ""  # the part of the reply that the prompt has already begun
        if isinstance(requests, Future):
            self._reading = requests
        else:
            self._take_prompt(requests)

    @property
    def wants_work(self) -> bool:
        """Whether the prompt or grammar it waited for is ready."""
        return self.awaited is not None and self.awaited.done()

    @property
    def waits(self) -> bool:
        """Whether it waits for its first step, its prompt or its grammar."""
        return not self.started

    @property
    def awaited(self) -> Future[Any] | None:
        """Its prompt as tokens, then its grammar."""
        return self._reading or self.grammar

    def open(self, now: float) -> Change:
        """Begin once the prompt is tokenised and the grammar compiled."""
        return self.work(now)

    def work(self, now: float) -> Change:
        """Begin if both are ready."""
        try:
            if self._reading is not None and self._reading.done():
                self._take_prompt(self._reading.result())
                self._reading = None
            if self.awaited is not None and not self.awaited.done():
                return Change()
            if self.grammar is not None:
                grammar, self.grammar = self.grammar.result(), None
                for request in self._waiting:
                    self._constraint = grammar.constraint(request.prompt_tokens)
                    chat_payload(request).constraint = self._constraint
        except Refusal as refusal:
            return Change(refusal=refusal)
        except SchemaError as error:
            return Change(refusal=schema_refusal(error))
        except REQUEST_FAULTS as fault:
            log.error("request not read %s", describe_fault(fault))
            return Change(end="failed")
        requests, self._waiting = self._waiting, []
        return Change(begin=requests)

    def close(self) -> None:
        """Cancel the reading of the prompt."""
        if self._reading is not None:
            self._reading.cancel()

    def _take_prompt(self, requests: list[Request]) -> None:
        self._waiting, self._last = requests, requests[-1]
        self._prompt_tokens = sum(request.prompt_tokens for request in requests)
        if self.submit.task == "chat" and not (must_call(self.submit) or self.submit.sampling.schema):
            end = b"".join(map(self._bytes_of, requests[-1].tokens[-THOUGHT_TOKENS:])).decode(errors="replace")
            self._opening = f"{THOUGHT}\n" if end.rstrip().endswith(THOUGHT) else ""

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Send the new tokens' text; end after the last one."""
        request = row.request
        assert isinstance(outcome, TokenOutcome)
        if row.drafts:
            self._lookup_proposed += len(row.drafts)
            self._lookup_accepted += len(outcome.choices) - 1
        text, reason = self._opening, None
        self._opening = ""
        for choice in outcome.choices:
            text += self._take(request, choice, now)
            reason = self._reason(request, choice)
            if reason:
                text += self._stream.finish()
                break
        if row.drafts and outcome.choices:
            request.table.rewind(len(request.tokens) - 1)  # drop rejected drafts
        # Later tokens may have places already, in a step under way: do not seal them.
        computed = row.start + row.count + len(row.drafts)
        request.table.seal(request.tokens, min(computed, len(request.tokens) - 1))
        return self._told(self._unless_looping(text, reason), reason)

    def _unless_looping(self, text: str, reason: FinishReason | None) -> str:
        """Return new text that may be sent: none while the output repeats itself, all of it once it was no loop."""
        if self._guard is None:
            return text
        if self._guard.looping:
            self._repeated = ""
            self._logprobs.clear()
            return ""
        self._repeated += text
        if self._guard.repeating and reason is None:
            return ""
        text, self._repeated = self._repeated, ""
        return text

    def _told(self, text: str, reason: FinishReason | None) -> Change:
        """Return the messages for new text and the end: text, calls, or nothing yet."""
        if self._reader is None:
            return Change(self._text(text, last=reason is not None), end=reason)
        pieces = self._reader.push(text)
        if self._reader.over:
            reason = reason or "stop"
        if reason:
            pieces += self._reader.finish()
        return Change(messages=list(self._messages(pieces, last=reason is not None)), end=reason)

    def _messages(self, pieces: Iterable[str | Call], *, last: bool) -> Iterable[FromEngine]:
        for is_call, group in itertools.groupby(pieces, key=lambda piece: isinstance(piece, Call)):
            if is_call:
                self._logprobs.clear()  # of the call's own text, which is not sent
                yield from (self._tool_call(call) for call in group if isinstance(call, Call))
            else:
                yield from self._text("".join(map(str, group)), last=False)
        yield from self._text("", last=last)

    def _text(self, text: str, *, last: bool) -> list[FromEngine]:
        """Return new text with its tokens' log-probabilities; at the end also those of tokens without text."""
        if not text and not (last and self._logprobs):
            return []
        logprobs: tuple[TokenLogprob, ...] = ()
        if self._logprobs:
            logprobs = tuple(self._logprobs)
            self._logprobs.clear()
        submit, tokens = self.submit, self._last.output_tokens if self._last is not None else 0
        return [Text(submit.request_id, submit.epoch, text, logprobs, tokens)]

    def _tool_call(self, call: Call) -> ToolCall:
        submit = self.submit
        mark = hashlib.blake2b(f"{submit.request_id}/{self._calls}".encode(), digest_size=12).hexdigest()
        self._calls += 1
        return ToolCall(submit.request_id, submit.epoch, f"call_{mark}", call.name, call.arguments)

    def stats(self, now: float) -> RequestStats:
        """Return what it has cost so far."""
        if self._last is None:
            return RequestStats(0, 0, 0, self.queue_s(now), 0.0, 0.0, now - self.arrival_s, 0)
        return structs.replace(
            self._last.stats(now),
            prompt_tokens=self._prompt_tokens,
            lookup_proposed=self._lookup_proposed,
            lookup_accepted=self._lookup_accepted,
        )

    def _take(self, request: Request, choice: SampledToken, now: float) -> str:
        token = choice.token
        request.tokens.append(token)
        request.first_token_s = request.first_token_s or now
        request.last_token_s = now
        # A model's vocabulary may be padded past the tokenizer's: such a token has no text.
        silent = token in self._silent_ids or token >= self._vocabulary
        piece = self._marks.get(token, b"") if silent else self._bytes_of(token)
        if choice.logprob is not None and not silent:
            top = tuple((self._spelling(token), logprob) for token, logprob in choice.top)
            self._logprobs.append(TokenLogprob(piece, choice.logprob, top))
        return self._stream.push(piece)

    def _spelling(self, token: int) -> bytes:
        if token in self._silent_ids or token >= self._vocabulary:
            return self._tokenizer.token_name(token).encode()
        return self._tokenizer.token_bytes(token)

    def _reason(self, request: Request, choice: SampledToken) -> FinishReason | None:
        if choice.token in self._eos_ids:
            return "eos"
        if self._constraint is not None and self._constraint.complete(request.tokens):
            return "eos"
        if self._stream.stopped or (
            self._guard is not None and self._guard.repeats(request.tokens, request.prompt_tokens)
        ):
            return "stop"
        return "length" if request.tokens_left <= 0 else None


class ScoreJob(TextJob):
    """How probable a text is: one request per window of it, and a sum over all of them."""

    _sum = 0.0
    _scored = 0

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Add the score of a window's chunk."""
        request = row.request
        assert isinstance(outcome, ScoreOutcome)
        self._sum += outcome.logprob_sum
        self._scored += outcome.scored_tokens
        chat_payload(request).scored_tokens += outcome.scored_tokens
        if not row.reaches_end:
            return Change()
        request.first_token_s = request.last_token_s = now
        self._last = request
        return Change(drop=[request], end="length" if len(self.requests) == 1 else None)

    def stats(self, now: float) -> RequestStats:
        """Return what it has cost so far."""
        return structs.replace(super().stats(now), logprob_sum=self._sum, scored_tokens=self._scored)


class ProbeJob(TextJob):
    """How likely the user's turn is to be over: one number, and a prompt that stays in the cache.

    The number is p / (p + EVEN), where p is the model's probability that what it heard, less its last punctuation,
    goes on with the end of a sentence or of the turn. On 50 English sentences and their beginnings, SmolLM2-135M tells
    the two apart with an area under the curve of 0.996, 0.998 after two turns of conversation; lower case without
    commas does as well. At 0.5 it takes 2 % of the beginnings for whole and 1.5 % of the whole for beginnings. The
    turn's end token alone has 0.89: small models want the full stop first. With punctuation as recognised, a full stop
    after beginnings too, 0.83 falls to 0.64 after two turns.
    """

    def advance(self, row: Row, outcome: Outcome, now: float) -> Change:
        """Send the number once the whole prompt is computed."""
        request = row.request
        assert isinstance(outcome, TokenOutcome)
        request.table.seal(request.tokens, row.start + row.count)
        if not outcome.choices:
            return Change()
        request.first_token_s = request.last_token_s = now
        (choice,) = outcome.choices
        assert choice.logprob is not None
        likely = math.exp(min(choice.logprob, 0.0))
        value = likely / (likely + EVEN)
        return Change(messages=[Probability(self.submit.request_id, self.submit.epoch, value)], end="length")


def chat_payload(request: Request) -> ChatPayload:
    """Return what a request of the chat model carries."""
    assert isinstance(request.payload, ChatPayload)
    return request.payload
