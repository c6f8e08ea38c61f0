"""POST /v1/chat/completions: one HTTP request in, one engine request per choice, one answer or a stream of events.

Parameters are read by chat_request.py, answers are written by chat_reply.py, chat_engine.py asks the engine.
"""

from __future__ import annotations

import secrets
import time

from msgspec import UNSET
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from voxlane.engine.api import Finished, Started, Text, ToolCall
from voxlane.server.api import chat_reply, chat_request
from voxlane.server.api.chat_engine import Outputs, check_allowed, submitted
from voxlane.server.api.chat_reply import ChatChoice, ChatCompletion, ChatOutput, ChoiceDelta, Envelope
from voxlane.server.api.chat_request import ChatRequest
from voxlane.server.api.disconnect import unless_disconnected
from voxlane.server.api.endpoint import EVENTS, JSON, READING, WORKING, Answer, Schema, Sent, endpoint, enumerated
from voxlane.server.api.outgoing import EVENT_STREAM, Outgoing
from voxlane.server.api.service import Service, service_of
from voxlane.server.api.thoughts import ReasoningText
from voxlane.server.errors import ContextTooLong, VoxlaneError
from voxlane.server.http.body import read_object
from voxlane.server.http.middleware import account_of
from voxlane.server.http.reply import error_body, json_response, to_json
from voxlane.server.tenants.accounts import Account

_DESCRIPTION = f"""A parameter is honoured, or listed as one without effect, or refused by name: none is silently
ignored. `null` counts as absent.

How tokens are drawn where the request does not say is the model's own affair: `generation_config.json` or the GGUF
file's `general.sampling.*` decide, and where they are silent the temperature is 0.3 for models of fewer than 3 billion
parameters and 0.7 for others. Each parameter is by itself: a request that gives only a `temperature` has the model's
`top_p`. A `temperature` of 0 is greedy, whatever the model recommends.

Known and refused, unless set to what happens anyway: {enumerated(chat_request.UNSUPPORTED)}.

With `stream`, the answer is server-sent events: each is a `ChatCompletionChunk`, the last is `data: [DONE]`. What goes
wrong after the first of them comes as an event with an `error`."""

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

_EXAMPLES: dict[str, Schema] = {
    "A question": {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 64},
    "A stream, in the interrupt lane": {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "priority": "critical",
    },
    "A function to call": {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [_WEATHER],
        "tool_choice": "required",
    },
    "An answer that follows a schema": {
        "messages": [{"role": "user", "content": "Name a colour."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "colour",
                "schema": {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]},
            },
        },
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
    },
}


@endpoint(
    "createChatCompletion",
    "Chat",
    "Chat with the model, OpenAI's protocol",
    _DESCRIPTION,
    {
        200: Answer(
            "The completion; with `stream`, its events.", {JSON: ChatCompletion, EVENTS: chat_reply.ChatCompletionChunk}
        )
    },
    (*READING, ContextTooLong, *WORKING),
    request={JSON: Sent(chat_request.ChatBody, _EXAMPLES)},
)
async def completions(request: Request) -> ChatResponse:
    """Answer POST /v1/chat/completions."""
    service = service_of(request)
    service.request_limit.check()  # if the request would be refused, do not read its body
    ask = chat_request.parse(await read_object(request, service.config.limits))
    account = account_of(request.scope)
    check_allowed(service, ask, account)
    return ChatResponse(service, ask, account)


class ChatResponse:
    """The ASGI response to one chat request."""

    def __init__(self, service: Service, ask: ChatRequest, account: Account) -> None:
        self._service = service
        self._ask = ask
        self._account = account
        self._with_logprobs = ask.sampling.logprobs >= 0
        self._calls = [0] * ask.choices  # sent so far
        self._envelope = Envelope(
            completion_id=f"chatcmpl-{secrets.token_hex(12)}",
            created=int(time.time()),
            model=ask.model or service.model_names[0],
            fingerprint=service.fingerprint,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; if the client leaves, cancel it in the engine."""
        # Admitted only with its whole body: a client that sends half a body must not take a place.
        with self._service.request_limit.admit():
            await unless_disconnected(receive, self._run(scope, receive, send))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = self._envelope.completion_id
        async with submitted(self._service, self._ask, self._account, request_id) as outputs:
            outgoing = Outgoing(send, self._service.config.limits.write_s, EVENT_STREAM)
            if self._ask.stream:
                await self._send_events(outputs, outgoing)
            else:
                answer = json_response(await self._collect(outputs))
                await answer(scope, receive, outgoing.write)

    async def _collect(self, outputs: Outputs) -> ChatCompletion:
        choices = [ChatChoice() for _ in range(self._ask.choices)]
        async for index, output in outputs:
            match output:
                case Text():
                    choices[index].add(output)
                case ReasoningText():
                    choices[index].reasoning.append(output.text)
                case ToolCall():
                    choices[index].calls.append(output)
                case Finished():
                    choices[index].end = output
        return self._envelope.completion(choices, with_logprobs=self._with_logprobs)

    async def _send_events(self, outputs: Outputs, outgoing: Outgoing) -> None:
        # The first output decides between an HTTP status and a stream: a refusal is still a plain error.
        first = await anext(outputs)
        try:
            await outgoing.event(self._chunk([chat_reply.opening(index) for index in range(self._ask.choices)]))
            ends: list[Finished] = []
            await self._output_event(outgoing, *first, ends)
            async for index, output in outputs:
                await self._output_event(outgoing, index, output, ends)
            if self._ask.include_usage:
                usage = chat_reply.usage_of(end.stats for end in ends)
                await outgoing.event(to_json(self._envelope.chunk([], usage)))
            await outgoing.event(b"[DONE]")
        except VoxlaneError as error:
            await outgoing.event(to_json(error_body(error)))
        await outgoing.end()

    async def _output_event(self, outgoing: Outgoing, index: int, output: ChatOutput, ends: list[Finished]) -> None:
        match output:
            case Started():
                return
            case Text():
                choice = chat_reply.piece(index, output, with_logprobs=self._with_logprobs)
            case ReasoningText():
                choice = chat_reply.reasoning(index, output)
            case ToolCall():
                choice = chat_reply.call(index, output, self._calls[index])
                self._calls[index] += 1
            case Finished():
                ends.append(output)
                choice = chat_reply.closing(index, output, calls=self._calls[index])
        await outgoing.event(self._chunk([choice]))

    def _chunk(self, choices: list[ChoiceDelta]) -> bytes:
        return to_json(self._envelope.chunk(choices, None if self._ask.include_usage else UNSET))
