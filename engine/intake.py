"""From a Submit message to requests the scheduler can hold, or a refusal that says why. Nothing unchecked gets past."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from voxlane.engine.api import ChatMessage, RefusalCode, SamplingParams, Submit
from voxlane.engine.kv import BlockPool, BlockTable
from voxlane.engine.request import Request

CHARACTERS_PER_TOKEN = 32
"""Text longer than this times the context is refused before it is tokenised: no tokenizer packs more on average."""

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_TEMPERATURE = 100.0
"""Bounds that keep the per-token work of one request small; the first four are at or above what OpenAI allows."""


class Refusal(Exception):
    """The request cannot be taken; `detail` holds numbers and names, never the sender's text."""

    def __init__(self, code: RefusalCode, detail: str) -> None:
        super().__init__(detail)
        self.code: RefusalCode = code
        self.detail = detail


class TextCodec(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """How many token ids there are."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end an output."""

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokens that are never text."""

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        """Return the tokens of a text; control tokens spelt out in it are plain text."""

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return the tokens of a conversation, up to where the assistant speaks."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token stands for."""

    def token_name(self, token: int) -> str:
        """Return how a special token is spelt."""


class Intake:
    """Turns submissions into requests."""

    def __init__(
        self,
        tokenizer: TextCodec,
        pool: BlockPool,
        *,
        vocabulary: int,
        context_tokens: int,
        draw_seed: Callable[[], int],
    ) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary  # the model's; a tokenizer may know more tokens or fewer
        self._pool = pool
        self._limit = min(context_tokens, pool.num_blocks * pool.block_tokens)
        self._draw_seed = draw_seed

    def requests(self, submit: Submit, now: float) -> list[Request]:
        """Return the requests that serve `submit`: one, or for a long text to score one per window."""
        check_sampling(submit.sampling, self._vocabulary)
        if submit.deadline_s is not None and not math.isfinite(submit.deadline_s):
            raise Refusal("bad_request", "deadline_s must be a finite number")
        tokens = self._tokens(submit)
        if submit.task == "score":
            return self._windows(submit, tokens, now)
        if len(tokens) >= self._limit:
            raise Refusal(
                "too_long", f"the prompt has {len(tokens)} tokens; this engine holds {self._limit}, output included"
            )
        return [self._request(submit, submit.request_id, tokens, now)]

    def _tokens(self, submit: Submit) -> list[int]:
        characters = len(submit.text) + sum(len(message.content) for message in submit.messages)
        if submit.task != "score" and characters > self._limit * CHARACTERS_PER_TOKEN:
            raise Refusal("too_long", f"the prompt has {characters} characters; this engine holds {self._limit} tokens")
        try:
            if submit.task == "chat":
                tokens = self._tokenizer.encode_chat(submit.messages)
            else:
                tokens = self._tokenizer.encode(submit.text, add_bos=True)
        except ValueError as error:  # a template may refuse an order of roles
            raise Refusal("bad_request", str(error)) from error
        if not tokens:
            raise Refusal("bad_request", "the prompt is empty")
        if max(tokens) >= self._vocabulary:
            raise Refusal("bad_request", f"the prompt has a token that this model does not know: {max(tokens)}")
        return tokens

    def _windows(self, submit: Submit, tokens: list[int], now: float) -> list[Request]:
        if len(tokens) < 2:
            raise Refusal("bad_request", "at least two tokens are needed to score a text")
        starts = range(0, len(tokens), self._limit)
        windows = [tokens[start : start + self._limit] for start in starts]
        if len(windows[-1]) == 1:  # a lone last token has nothing to be predicted from
            windows.pop()
        return [
            self._request(submit, f"{submit.request_id}/{index}", window, now) for index, window in enumerate(windows)
        ]

    def _request(self, submit: Submit, request_id: str, tokens: list[int], now: float) -> Request:
        seed = submit.sampling.seed
        return Request(
            id=request_id,
            task=submit.task,
            tokens=tokens,
            prompt_tokens=len(tokens),
            table=BlockTable(self._pool, submit.tenant),
            sampling=submit.sampling,
            priority=submit.priority,
            arrival_s=now,
            due_s=None if submit.deadline_s is None else now + submit.deadline_s,
            session=submit.session,
            seed=self._draw_seed() if seed is None else seed,
            limit=self._limit,
        )


def check_sampling(sampling: SamplingParams, vocabulary: int) -> None:
    """Raise Refusal unless every parameter is in its range."""
    ranges: list[tuple[str, float, float, float]] = [
        ("temperature", sampling.temperature, 0.0, MAX_TEMPERATURE),
        ("top_k", sampling.top_k, 0, 1 << 30),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("repetition_penalty", sampling.repetition_penalty, 0.01, 100.0),
        ("presence_penalty", sampling.presence_penalty, -100.0, 100.0),
        ("frequency_penalty", sampling.frequency_penalty, -100.0, 100.0),
        ("max_tokens", sampling.max_tokens, 1, 1 << 30),
        ("logprobs", sampling.logprobs, -1, MAX_LOGPROBS),
        ("seed", 0 if sampling.seed is None else sampling.seed, -(1 << 63), (1 << 64) - 1),
        ("number of stop strings", len(sampling.stop), 0, MAX_STOPS),
        ("number of logit biases", len(sampling.logit_bias), 0, MAX_BIASES),
    ]
    for name, value, low, high in ranges:
        if not low <= value <= high:  # also false for NaN
            raise Refusal("bad_request", f"{name} must be between {low:g} and {high:g}")
    if any(not 1 <= len(stop) <= MAX_STOP_CHARACTERS for stop in sampling.stop):
        raise Refusal("bad_request", f"a stop string must have 1 to {MAX_STOP_CHARACTERS} characters")
    for token, bias in sampling.logit_bias:
        if not 0 <= token < vocabulary or not -1e4 <= bias <= 1e4:
            raise Refusal("bad_request", f"logit_bias takes tokens below {vocabulary} and finite biases")
