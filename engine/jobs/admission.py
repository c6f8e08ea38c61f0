"""Turns a Submit message into requests, or refuses it and says why. It checks every field."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from voxlane.engine.api import (
    MODEL_DECIDES,
    ChatMessage,
    SamplingDefaults,
    SamplingParams,
    Submit,
    Tool,
)
from voxlane.engine.errors import Refusal
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.models.sampling_defaults import filled
from voxlane.engine.schedule.request import ChatPayload, Request
from voxlane.engine.text.constraint import ANY_OBJECT, call_grammar, json_grammar
from voxlane.engine.text.repetition import LEAST_LOOP_TOKENS
from voxlane.engine.text.schema import MAX_SCHEMA_BYTES, SchemaError, read
from voxlane.engine.text.tools import CallStyle, check_tools

CHARACTERS_PER_TOKEN = 32
"""Text longer than this times the context is refused before it is tokenised: no tokenizer packs more on average."""

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_TEMPERATURE = 100.0
MAX_LOOP_TOKENS = 1 << 16
"""Bounds that keep the per-token work of one request small; the first four are at or above what OpenAI allows."""


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

    @property
    def call_style(self) -> CallStyle:
        """How the model writes a call."""

    @property
    def call_marks(self) -> dict[int, bytes]:
        """The spelling of special tokens that mark a call."""

    @property
    def call_starts(self) -> frozenset[int]:
        """The tokens that begin a reply in which a call comes first."""

    @property
    def result_starts(self) -> frozenset[int]:
        """The tokens that begin a reply in which an invented result of a tool comes first."""

    def encode_chat(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Tool], begin: str, tenant: str
    ) -> list[int]:
        """Return the tokens of a conversation; the assistant's reply starts with `begin`."""

    def encode_open(
        self, messages: Sequence[ChatMessage], *, tools: Sequence[Tool], tenant: str
    ) -> tuple[list[int], frozenset[int]]:
        """Return the tokens of a conversation whose last message is unfinished, and the tokens that would end it."""

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
        sampling: SamplingDefaults | None = None,
    ) -> None:
        """Use `sampling` where a request leaves parameters to the model; without it, sample greedily."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary  # the model's; a tokenizer may know more tokens or fewer
        self._pool = pool
        self._limit = min(context_tokens, pool.num_blocks * pool.block_tokens)
        self._draw_seed = draw_seed
        self._defaults = sampling or SamplingDefaults()

    def requests(self, submit: Submit, now: float) -> list[Request]:
        """Return the requests that serve `submit`, or raise Refusal."""
        self.check(submit)
        return self.read(submit, now)

    def check(self, submit: Submit) -> None:
        """Raise Refusal if `submit` can be refused before its text is tokenised."""
        check_sampling(submit.sampling, self._vocabulary)
        if submit.deadline_s is not None and not math.isfinite(submit.deadline_s):
            raise Refusal("bad_request", "deadline_s must be a finite number")
        length = characters(submit)
        if submit.task != "score" and length > self._limit * CHARACTERS_PER_TOKEN:
            raise Refusal("too_long", f"the prompt has {length} characters; this engine holds {self._limit} tokens")
        try:
            check_submit(submit)
        except SchemaError as error:
            raise schema_refusal(error) from error
        except ValueError as error:
            raise Refusal("bad_request", str(error)) from error

    def read(self, submit: Submit, now: float) -> list[Request]:
        """Return the requests that serve a checked `submit`: one, or for a long text to score one per window.

        This takes time and may run in any thread.
        """
        tokens, ends = self._tokens(submit)
        if submit.task == "score":
            return self._windows(submit, tokens, now)
        if len(tokens) >= self._limit:
            raise Refusal(
                "too_long", f"the prompt has {len(tokens)} tokens; this engine holds {self._limit}, output included"
            )
        return [self._request(submit, submit.request_id, tokens, now, ends)]

    def grammar(self, submit: Submit) -> str:
        """Return the grammar that a submission's output must follow; "" if there is none."""
        style = self._tokenizer.call_style
        try:
            if must_call(submit):
                tools = [tool for tool in submit.tools if submit.tool_choice in ("required", tool.name)]
                return call_grammar([(tool.name, _parameters(tool)) for tool in tools], style.key)
            if schema := submit.sampling.schema:
                return json_grammar(ANY_OBJECT if schema == "json" else read(schema))
        except SchemaError as error:
            raise schema_refusal(error) from error
        return ""

    def _barred_starts(self, submit: Submit) -> frozenset[int]:
        """Return the tokens that may not begin the output.

        A model that has seen calls and results in a conversation begins its answers like them. So an answer cannot
        begin with a result, nor with a call where none is allowed, and after a result it cannot be empty.
        """
        shown = any(message.tool_calls or message.role == "tool" for message in submit.messages)
        if submit.task != "chat" or not shown or must_call(submit) or submit.sampling.schema:
            return frozenset()
        codec = self._tokenizer
        may_call = submit.tools and submit.tool_choice != "none"
        barred = codec.result_starts - codec.call_starts if may_call else codec.result_starts | codec.call_starts
        if submit.messages[-1].role == "tool":
            barred |= codec.eos_ids
        return frozenset(token for token in barred if token < self._vocabulary)

    def _tokens(self, submit: Submit) -> tuple[list[int], frozenset[int]]:
        """Return the prompt's tokens, and for a probe the tokens whose probability is wanted."""
        tools = () if submit.tool_choice == "none" else submit.tools
        ends: frozenset[int] = frozenset()
        try:
            if submit.task == "chat":
                begin = self._tokenizer.call_style.opening if must_call(submit) else ""
                tokens = self._tokenizer.encode_chat(submit.messages, tools=tools, begin=begin, tenant=submit.tenant)
            elif submit.task == "probe":
                tokens, ends = self._tokenizer.encode_open(submit.messages, tools=tools, tenant=submit.tenant)
            else:
                tokens = self._tokenizer.encode(submit.text, add_bos=True)
        except ValueError as error:  # a template may refuse an order of roles
            raise Refusal("bad_request", str(error)) from error
        if not tokens:
            raise Refusal("bad_request", "the prompt is empty")
        if max(tokens) >= self._vocabulary:
            raise Refusal("bad_request", f"the prompt has a token that this model does not know: {max(tokens)}")
        return tokens, frozenset(token for token in ends if token < self._vocabulary)

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

    def _request(
        self, submit: Submit, request_id: str, tokens: list[int], now: float, ends: frozenset[int] = frozenset()
    ) -> Request:
        seed = submit.sampling.seed
        return Request(
            id=request_id,
            task=submit.task,
            tokens=tokens,
            prompt_tokens=len(tokens),
            table=BlockTable(self._pool, submit.tenant),
            sampling=filled(submit.sampling, self._defaults),
            priority=submit.priority,
            arrival_s=now,
            due_s=None if submit.deadline_s is None else now + submit.deadline_s,
            session=submit.session,
            seed=self._draw_seed() if seed is None else seed,
            limit=self._limit,
            payload=ChatPayload(ends=ends, barred_starts=self._barred_starts(submit)),
        )


def must_call(submit: Submit) -> bool:
    """Return whether the output must be a tool call and nothing else."""
    return submit.task == "chat" and submit.tool_choice not in ("auto", "none")


def schema_refusal(error: SchemaError) -> Refusal:
    """Return the refusal of a schema that cannot be used."""
    return Refusal("bad_request", f"the JSON schema {error}")


def check_submit(submit: Submit) -> None:
    """Raise ValueError unless the task takes these tools and this schema."""
    if submit.tools or submit.tool_choice != "auto":
        if submit.task not in ("chat", "probe"):
            raise ValueError(f"the task {submit.task} takes no tools")
        check_tools(submit.tools, submit.tool_choice)
        if sum(len(tool.parameters) for tool in submit.tools) > MAX_SCHEMA_BYTES:
            raise ValueError(f"the tools' parameters have more than {MAX_SCHEMA_BYTES} characters together")
        for tool in submit.tools:
            _parameters(tool)
    if submit.sampling.schema and submit.task not in ("chat", "complete"):
        raise ValueError(f"the task {submit.task} takes no schema")
    if submit.task == "probe" and (not submit.messages or submit.messages[-1].role != "user"):
        raise ValueError("the last message of a probe must be the user's")


def characters(submit: Submit) -> int:
    """Return how long the text of a submission is."""
    texts = [submit.text]
    for message in submit.messages:
        texts += [message.content, *(use.name + use.arguments for use in message.tool_calls)]
    return sum(map(len, texts)) + sum(len(tool.description) + len(tool.parameters) for tool in submit.tools)


def _parameters(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments: always an object."""
    schema = {"type": "object", **(read(tool.parameters) if tool.parameters else {"properties": {}})}
    if schema["type"] != "object":
        raise SchemaError("of a tool's parameters is not that of an object")
    return schema


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
    if sampling.loop_tokens and not LEAST_LOOP_TOKENS <= sampling.loop_tokens <= MAX_LOOP_TOKENS:
        raise Refusal("bad_request", f"loop_tokens must be 0 or between {LEAST_LOOP_TOKENS} and {MAX_LOOP_TOKENS}")
    if not set(sampling.unset) <= set(MODEL_DECIDES):
        raise Refusal("bad_request", f"only {', '.join(MODEL_DECIDES)} can be left to the model")
    if any(not 1 <= len(stop) <= MAX_STOP_CHARACTERS for stop in sampling.stop):
        raise Refusal("bad_request", f"a stop string must have 1 to {MAX_STOP_CHARACTERS} characters")
    for token, bias in sampling.logit_bias:
        if not 0 <= token < vocabulary or not -1e4 <= bias <= 1e4:
            raise Refusal("bad_request", f"logit_bias takes tokens below {vocabulary} and finite biases")
