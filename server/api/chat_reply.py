"""The engine's output as OpenAI's chat completions. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from voxlane.engine.api import Finished, RequestStats, Started, Text, TokenLogprob, ToolCall
from voxlane.server.api.bodies import JsonReply
from voxlane.server.api.thoughts import ReasoningText

ChatOutput = Started | Text | ReasoningText | ToolCall | Finished

FINISH_REASONS: dict[str, Literal["stop", "length"]] = {"eos": "stop", "stop": "stop", "length": "length"}

LEAST_LOGPROB = -9999.0
"""JSON has no minus infinity; this is what OpenAI writes for an impossible token."""


class ChatChoice(Struct):
    """One answer as it grows."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    end: Finished | None = None

    def add(self, message: Text) -> None:
        """Append a piece of output."""
        self.text.append(message.text)
        self.logprobs.extend(message.logprobs)


class CalledReply(JsonReply):
    """The function to call."""

    name: str
    arguments: Annotated[str, Meta(description="A JSON object, as text.")]


class ToolCallReply(JsonReply, kw_only=True):
    """A call, whole."""

    index: Annotated[int | UnsetType, Meta(description="In a chunk: which of the answer's calls it is.")] = UNSET
    id: str
    type: Literal["function"] = "function"
    function: CalledReply


class TokenReply(JsonReply):
    """How likely a token was."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenToken(TokenReply):
    """How likely a token of the answer was, and others in its place."""

    top_logprobs: Annotated[list[TokenReply], Meta(description="Those as likely, and the likeliest first.")]


class Logprobs(JsonReply):
    """How likely the tokens of an answer were."""

    content: list[ChosenToken]
    refusal: None = None


class ChatMessageReply(JsonReply, kw_only=True):
    """The answer of the model."""

    role: Literal["assistant"] = "assistant"
    content: Annotated[str | None, Meta(description="The text; `null` if there are only calls.")]
    refusal: None = None
    annotations: Annotated[list[Any], Meta(max_length=0, description="Always empty.")] = field(default_factory=list)
    reasoning_content: Annotated[
        str | UnsetType, Meta(description="What the model thought before it answered, if it did.")
    ] = UNSET
    tool_calls: Annotated[list[ToolCallReply] | UnsetType, Meta(description="The functions to call.")] = UNSET


class ChatDelta(JsonReply):
    """What a chunk adds to an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: Annotated[str | UnsetType, Meta(description="The next piece of the text.")] = UNSET
    reasoning_content: Annotated[
        str | UnsetType, Meta(description="The next piece of what the model thinks before it answers.")
    ] = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: list[ToolCallReply] | UnsetType = UNSET


FinishReason = Literal["stop", "length", "tool_calls"]
Number = Annotated[int, Meta(ge=0, description="Which of the `n` answers it is.")]


class WholeChoice(JsonReply):
    """One of the answers."""

    index: Number
    message: ChatMessageReply
    logprobs: Logprobs | None
    finish_reason: Annotated[FinishReason, Meta(description="Why it ended.")]


class ChoiceDelta(JsonReply):
    """More of one of the answers."""

    index: Number
    delta: ChatDelta
    logprobs: Logprobs | None = None
    finish_reason: Annotated[FinishReason | None, Meta(description="Why it ended.")] = None


class CachedTokens(JsonReply):
    """What of a prompt was cached."""

    cached_tokens: Annotated[int, Meta(description="Tokens of the prompt that were already known.")]


class Measured(JsonReply):
    """What the engine measured; of several answers, the slowest one's times."""

    queue_ms: Annotated[float, Meta(description="Wait before the first step.")]
    first_token_ms: Annotated[float, Meta(description="From arrival to the first token.")]
    per_token_ms: Annotated[float, Meta(description="Between two tokens, on average.")]
    total_ms: Annotated[float, Meta(description="From arrival to the end.")]
    preemptions: Annotated[int, Meta(description="How often it had to make room.")]
    lookup_proposed: Annotated[
        int | UnsetType, Meta(description="Tokens guessed from the text before; absent without guesses.")
    ] = UNSET
    lookup_accepted: Annotated[int | UnsetType, Meta(description="How many of the guesses were right.")] = UNSET


class ChatUsage(JsonReply):
    """OpenAI's token counts, and what the engine measured."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    voxlane: Measured


class _Head(JsonReply, kw_only=True):
    """The fields that every object of one answer repeats."""

    id: Annotated[str, Meta(description="The same in every chunk of one answer.")]
    object: str = ""
    created: Annotated[int, Meta(description="When, in seconds since 1970.")]
    model: Annotated[str, Meta(description="The name that was asked for.")]
    system_fingerprint: Annotated[str, Meta(description="What a seed's reproducibility depends on.")]
    service_tier: Literal["default"] = "default"


class ChatCompletion(_Head, kw_only=True):
    """A whole answer."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[WholeChoice]
    usage: ChatUsage


class ChatCompletionChunk(_Head, kw_only=True):
    """A piece: the first has the role, the last of a choice its `finish_reason`, the last of all the `usage`."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChoiceDelta]
    usage: Annotated[ChatUsage | UnsetType | None, Meta(description="Where it was asked for.")] = UNSET


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that every object of one answer repeats."""

    completion_id: str
    created: int
    model: str
    fingerprint: str

    def completion(self, choices: list[ChatChoice], *, with_logprobs: bool) -> ChatCompletion:
        """Return a whole answer."""
        return ChatCompletion(
            id=self.completion_id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=[_whole(index, choice, with_logprobs) for index, choice in enumerate(choices)],
            usage=usage_of(choice.end.stats for choice in choices if choice.end is not None),
        )

    def chunk(self, choices: list[ChoiceDelta], usage: ChatUsage | UnsetType | None) -> ChatCompletionChunk:
        """Return one chunk of a stream."""
        return ChatCompletionChunk(
            id=self.completion_id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            usage=usage,
        )


def opening(index: int) -> ChoiceDelta:
    """Return the delta that names the role."""
    return ChoiceDelta(index=index, delta=ChatDelta(role="assistant", content="", refusal=None))


def piece(index: int, message: Text, *, with_logprobs: bool) -> ChoiceDelta:
    """Return the delta for more text."""
    told = Logprobs(content=token_logprobs(message.logprobs)) if with_logprobs else None
    return ChoiceDelta(index=index, delta=ChatDelta(content=message.text), logprobs=told)


def reasoning(index: int, message: ReasoningText) -> ChoiceDelta:
    """Return the delta for more of what the model thinks before it answers."""
    return ChoiceDelta(index=index, delta=ChatDelta(reasoning_content=message.text))


def call(index: int, message: ToolCall, number: int) -> ChoiceDelta:
    """Return the delta for one whole call; `index` is its number in the answer."""
    return ChoiceDelta(index=index, delta=ChatDelta(tool_calls=[_call(message, number)]))


def closing(index: int, end: Finished, *, calls: int) -> ChoiceDelta:
    """Return the delta that says why an answer with so many calls ended."""
    return ChoiceDelta(index=index, delta=ChatDelta(), finish_reason=_reason(end, calls))


def usage_of(all_stats: Iterable[RequestStats]) -> ChatUsage:
    """Return OpenAI's token counts, and what the engine measured under `voxlane` (the slowest choice's times)."""
    stats = list(all_stats)
    prompt = stats[0].prompt_tokens  # the choices share one prompt: count it once
    output = sum(item.output_tokens for item in stats)
    proposed = sum(item.lookup_proposed for item in stats)
    return ChatUsage(
        prompt_tokens=prompt,
        completion_tokens=output,
        total_tokens=prompt + output,
        prompt_tokens_details=CachedTokens(cached_tokens=stats[0].cached_tokens),
        voxlane=Measured(
            queue_ms=_milliseconds(max(item.queue_s for item in stats)),
            first_token_ms=_milliseconds(max(item.first_token_s for item in stats)),
            per_token_ms=_milliseconds(max(item.per_token_s for item in stats)),
            total_ms=_milliseconds(max(item.total_s for item in stats)),
            preemptions=sum(item.preemptions for item in stats),
            lookup_proposed=proposed or UNSET,
            lookup_accepted=sum(item.lookup_accepted for item in stats) if proposed else UNSET,
        ),
    )


def _whole(index: int, choice: ChatChoice, with_logprobs: bool) -> WholeChoice:
    assert choice.end is not None
    text = "".join(choice.text)
    message = ChatMessageReply(
        content=(text or None) if choice.calls else text,
        reasoning_content="".join(choice.reasoning) if choice.reasoning else UNSET,
        tool_calls=[_call(made) for made in choice.calls] or UNSET,
    )
    told = Logprobs(content=token_logprobs(choice.logprobs)) if with_logprobs else None
    return WholeChoice(
        index=index, message=message, logprobs=told, finish_reason=_reason(choice.end, len(choice.calls))
    )


def _reason(end: Finished, calls: int) -> FinishReason:
    reason = FINISH_REASONS[end.reason]
    return "tool_calls" if calls and reason == "stop" else reason


def _call(message: ToolCall, number: int | UnsetType = UNSET) -> ToolCallReply:
    function = CalledReply(name=message.name, arguments=message.arguments)
    return ToolCallReply(index=number, id=message.call_id, function=function)


def token_logprobs(tokens: Iterable[TokenLogprob]) -> list[ChosenToken]:
    """Return how likely each token was, and its alternatives, as OpenAI writes them."""
    return [
        ChosenToken(**_token(token.data, token.logprob), top_logprobs=[TokenReply(**_token(*one)) for one in token.top])
        for token in tokens
    ]


def _token(data: bytes, logprob: float) -> dict[str, Any]:
    told = max(logprob, LEAST_LOGPROB) if not math.isnan(logprob) else LEAST_LOGPROB
    # Half a character has no text of its own: only the bytes of all tokens together are the answer.
    return {"token": data.decode("utf-8", "replace"), "logprob": told, "bytes": list(data)}


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
