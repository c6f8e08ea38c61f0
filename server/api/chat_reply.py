"""The engine's output as OpenAI's chat completions. Pure: values in, plain objects out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from voxlane.engine.api import Finished, RequestStats, Started, Text, TokenLogprob, ToolCall
from voxlane.server.api.thoughts import ReasoningText

ChatOutput = Started | Text | ReasoningText | ToolCall | Finished

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length"}

LEAST_LOGPROB = -9999.0
"""JSON has no minus infinity; this is what OpenAI writes for an impossible token."""


@dataclass(slots=True)
class ChatChoice:
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


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that every object of one answer repeats."""

    completion_id: str
    created: int
    model: str
    fingerprint: str

    def completion(self, choices: list[ChatChoice], *, with_logprobs: bool) -> dict[str, object]:
        """Return a whole answer."""
        return {
            **self._head("chat.completion"),
            "choices": [_whole(index, choice, with_logprobs) for index, choice in enumerate(choices)],
            "usage": usage(choice.end.stats for choice in choices if choice.end is not None),
        }

    def chunk(self, choices: list[dict[str, object]], *, usage_field: dict[str, object] | None) -> dict[str, object]:
        """Return one chunk of a stream; `usage_field` holds the key `usage` where the client wants it."""
        return {**self._head("chat.completion.chunk"), "choices": choices, **(usage_field or {})}

    def _head(self, kind: str) -> dict[str, object]:
        return {
            "id": self.completion_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "service_tier": "default",
        }


def opening(index: int) -> dict[str, object]:
    """Return the delta that names the role."""
    return _delta(index, {"role": "assistant", "content": "", "refusal": None}, None)


def piece(index: int, message: Text, *, with_logprobs: bool) -> dict[str, object]:
    """Return the delta for more text."""
    return _delta(index, {"content": message.text}, None, message.logprobs if with_logprobs else None)


def reasoning(index: int, message: ReasoningText) -> dict[str, object]:
    """Return the delta for more of a thought, under the name that DeepSeek and vLLM gave it."""
    return _delta(index, {"reasoning_content": message.text}, None)


def call(index: int, message: ToolCall, number: int) -> dict[str, object]:
    """Return the delta for one whole call; `index` is its number in the answer."""
    return _delta(index, {"tool_calls": [{"index": number, **_call(message)}]}, None)


def closing(index: int, end: Finished, *, calls: int) -> dict[str, object]:
    """Return the delta that says why an answer with so many calls ended."""
    return _delta(index, {}, _reason(end, calls))


def usage(all_stats: Iterable[RequestStats]) -> dict[str, object]:
    """Return OpenAI's token counts, and what the engine measured under `voxlane` (the slowest choice's times)."""
    stats = list(all_stats)
    prompt = stats[0].prompt_tokens  # the choices share one prompt: count it once
    output = sum(item.output_tokens for item in stats)
    proposed = sum(item.lookup_proposed for item in stats)
    accepted = sum(item.lookup_accepted for item in stats)
    lookup = {"lookup_proposed": proposed, "lookup_accepted": accepted} if proposed else {}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": stats[0].cached_tokens},
        "voxlane": {
            "queue_ms": _milliseconds(max(item.queue_s for item in stats)),
            "first_token_ms": _milliseconds(max(item.first_token_s for item in stats)),
            "per_token_ms": _milliseconds(max(item.per_token_s for item in stats)),
            "total_ms": _milliseconds(max(item.total_s for item in stats)),
            "preemptions": sum(item.preemptions for item in stats),
            **lookup,
        },
    }


def _whole(index: int, choice: ChatChoice, with_logprobs: bool) -> dict[str, object]:
    assert choice.end is not None
    text = "".join(choice.text)
    message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None, "annotations": []}
    if choice.reasoning:
        message["reasoning_content"] = "".join(choice.reasoning)
    if choice.calls:
        message |= {"content": text or None, "tool_calls": [_call(made) for made in choice.calls]}
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(choice.logprobs) if with_logprobs else None,
        "finish_reason": _reason(choice.end, len(choice.calls)),
    }


def _reason(end: Finished, calls: int) -> str:
    reason = FINISH_REASONS[end.reason]
    return "tool_calls" if calls and reason == "stop" else reason


def _call(message: ToolCall) -> dict[str, object]:
    function = {"name": message.name, "arguments": message.arguments}
    return {"id": message.call_id, "type": "function", "function": function}


def _delta(
    index: int, delta: dict[str, object], reason: str | None, logprobs: Iterable[TokenLogprob] | None = None
) -> dict[str, object]:
    told = None if logprobs is None else _logprobs(logprobs)
    return {"index": index, "delta": delta, "logprobs": told, "finish_reason": reason}


def _logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, object]:
    return {"content": token_logprobs(tokens), "refusal": None}


def token_logprobs(tokens: Iterable[TokenLogprob]) -> list[dict[str, object]]:
    """Return how likely each token was, and its alternatives, as OpenAI writes them."""
    return [
        {**_token(token.data, token.logprob), "top_logprobs": [_token(data, logprob) for data, logprob in token.top]}
        for token in tokens
    ]


def _token(data: bytes, logprob: float) -> dict[str, object]:
    told = max(logprob, LEAST_LOGPROB) if not math.isnan(logprob) else LEAST_LOGPROB
    # Half a character has no text of its own: only the bytes of all tokens together are the answer.
    return {"token": data.decode("utf-8", "replace"), "logprob": told, "bytes": list(data)}


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
