"""POST /v1/responses, and what can be done with kept responses: chat completions in the words of the Responses API.

Parameters are read by responses_request.py, answers are written by responses_reply.py, chat_engine.py asks the engine.
"""

from __future__ import annotations

import secrets
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from voxlane.server import limits
from voxlane.server.api import responses_request
from voxlane.server.api.chat_engine import Outputs, check_allowed, submitted
from voxlane.server.api.chat_request import ChatRequest
from voxlane.server.api.disconnect import unless_disconnected
from voxlane.server.api.endpoint import EVENTS, JSON, READING, WORKING, Answer, Schema, Sent, endpoint, enumerated
from voxlane.server.api.outgoing import EVENT_STREAM, Outgoing
from voxlane.server.api.responses_reply import (
    RESPONSE_PREFIX,
    Event,
    KeptResponse,
    ResponseDeleted,
    ResponseItemList,
    ResponseObject,
    ResponseWriter,
    item_page,
    response_of_item,
)
from voxlane.server.api.responses_request import InputItem, ResponsesRequest
from voxlane.server.api.service import Service, service_of
from voxlane.server.errors import (
    ContextTooLong,
    InvalidRequest,
    NotInBackground,
    PreviousNotFound,
    ResponseNotFound,
    StoreUnavailable,
    UnsupportedParameter,
    VoxlaneError,
)
from voxlane.server.http.body import read_object
from voxlane.server.http.middleware import account_of
from voxlane.server.http.reply import json_response, to_json
from voxlane.server.tenants.accounts import Account

_DESCRIPTION = f"""What `/v1/chat/completions` does, in the words of the newer API: the same model, the same limits.

A response is kept unless `store` is false, so that `previous_response_id` can name it: in memory, for the key that
asked for it alone, the last {limits.RESPONSES_KEPT}, for {limits.RESPONSE_KEPT_SECONDS // 60} minutes, and only if it
has at most {limits.RESPONSE_KEPT_BYTES // 1024} KiB with all that went before it. `store` in the answer tells whether
it was kept.

Known and refused, unless set to what happens anyway: {enumerated(responses_request.UNSUPPORTED)}; and images, files,
built-in tools.

With `stream`, the answer is server-sent events: each is a `ResponsesEvent`, and the last is `response.completed`,
`response.incomplete` or `response.failed`."""

_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}

_EXAMPLES: dict[str, Schema] = {
    "A question": {"input": "What is the capital of France?", "max_output_tokens": 64},
    "A stream, with instructions": {"instructions": "Be brief.", "input": "Hello!", "stream": True, "store": False},
    "A function to call": {"input": "What is the weather in Paris?", "tools": [_WEATHER], "tool_choice": "required"},
    "What the function said": {
        "input": [
            {"role": "user", "content": "What is the weather in Paris?"},
            {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Paris"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "Sunny."},
        ],
        "tools": [_WEATHER],
    },
    "An answer that follows a schema": {
        "input": "Name a colour.",
        "text": {
            "format": {
                "type": "json_schema",
                "name": "colour",
                "schema": {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]},
            }
        },
    },
}

_KEPT = ("The `id` of a response that was stored.", "resp_0123456789abcdef")
_PAGE = (responses_request.InputItemsQuery, {"limit": 20, "order": "desc", "after": "msg_0123456789abcdef_i0"})


@endpoint(
    "createResponse",
    "Chat",
    "Ask the model for a response, OpenAI's protocol",
    _DESCRIPTION,
    {200: Answer("The response; with `stream`, its events.", {JSON: ResponseObject, EVENTS: Event})},
    (*READING, ContextTooLong, PreviousNotFound, *WORKING),
    request={JSON: Sent(responses_request.ResponsesBody, _EXAMPLES)},
)
async def create_response(request: Request) -> ResponsesResponse:
    """Answer POST /v1/responses."""
    service = service_of(request)
    service.request_limit.check()  # if the request would be refused, do not read its body
    ask = responses_request.parse(await read_object(request, service.config.limits))
    account = account_of(request.scope)
    desk = ResponseDesk(service, account)
    before, own = desk.before(ask.body.previous_response_id), desk.resolved(ask.items)
    chat = responses_request.chat_request(ask, [*before, *own])
    check_allowed(service, chat, account)
    return ResponsesResponse(desk, ask, chat, before, own)


@endpoint(
    "getResponse",
    "Chat",
    "A response that is kept, OpenAI's protocol",
    "Only the key that asked for it finds it.",
    {200: Answer("The response.", {JSON: ResponseObject})},
    (ResponseNotFound, UnsupportedParameter),
    parameter=_KEPT,
)
async def get_response(request: Request) -> Response:
    """Answer GET /v1/responses/{response_id}."""
    if request.query_params.get("stream", "").lower() == "true":
        raise UnsupportedParameter("stream: only a response that is being made is streamed.", param="stream")
    desk = ResponseDesk(service_of(request), account_of(request.scope))
    kept = desk.kept(request.path_params["response_id"])
    if kept is None:
        raise ResponseNotFound
    return json_response(kept.response)


@endpoint(
    "deleteResponse",
    "Chat",
    "No more of a kept response, OpenAI's protocol",
    "Responses that followed it hold what it said, and stay.",
    {200: Answer("It is gone.", {JSON: ResponseDeleted})},
    (ResponseNotFound,),
    parameter=_KEPT,
)
async def delete_response(request: Request) -> Response:
    """Answer DELETE /v1/responses/{response_id}."""
    service, response_id = service_of(request), request.path_params["response_id"]
    if not service.responses.drop(account_of(request.scope).salt, response_id):
        raise ResponseNotFound
    return json_response(ResponseDeleted(id=response_id))


@endpoint(
    "listInputItems",
    "Chat",
    "What led to a kept response, OpenAI's protocol",
    "All items that the model was given, those of earlier responses included. `include` has no effect.",
    {200: Answer("A page of them.", {JSON: ResponseItemList})},
    (ResponseNotFound, InvalidRequest),
    parameter=_KEPT,
    query=_PAGE,
)
async def list_input_items(request: Request) -> Response:
    """Answer GET /v1/responses/{response_id}/input_items."""
    desk = ResponseDesk(service_of(request), account_of(request.scope))
    kept = desk.kept(request.path_params["response_id"])
    if kept is None:
        raise ResponseNotFound
    query = responses_request.read_query(request.query_params.multi_items())
    return json_response(item_page(kept.context(), query))


@endpoint(
    "cancelResponse",
    "Chat",
    "Refused: no response is made in the background, OpenAI's protocol",
    "To cancel a response that is being made, close its connection.",
    {200: Answer("Never, since `background` is refused.", {JSON: ResponseObject})},
    (NotInBackground, ResponseNotFound),
    parameter=_KEPT,
)
async def cancel_response(request: Request) -> Response:
    """Answer POST /v1/responses/{response_id}/cancel: no response is made in the background, so none can be."""
    desk = ResponseDesk(service_of(request), account_of(request.scope))
    if desk.kept(request.path_params["response_id"]) is None:
        raise ResponseNotFound
    raise NotInBackground


class ResponseDesk:
    """The responses that are kept for one tenant."""

    def __init__(self, service: Service, account: Account) -> None:
        self.service = service
        self.account = account

    def kept(self, response_id: str) -> KeptResponse | None:
        """Return a response that this tenant may go on from."""
        data = self.service.responses.get(self.account.salt, response_id)
        return None if data is None else msgspec.json.decode(data, type=KeptResponse)

    def keep(self, kept: KeptResponse) -> None:
        """Keep a response; one that is too large, or finds no room, says that it is not stored."""
        data = msgspec.json.encode(kept)
        try:
            stored = self.service.responses.keep(self.account.salt, kept.response.id, data)
        except StoreUnavailable:  # the answer itself is not lost
            stored = False
        if not stored:
            kept.response.store = False

    def before(self, previous_id: str | None) -> list[InputItem]:
        """Return the items of the conversation that a request goes on with."""
        if previous_id is None:
            return []
        kept = self.kept(previous_id)
        if kept is None:
            raise PreviousNotFound(param="previous_response_id")
        return kept.conversation()

    def resolved(self, items: tuple[InputItem, ...]) -> list[InputItem]:
        """Return items, with those in place of references that they refer to; each may be referred to once."""
        known: dict[str, dict[str | None, InputItem]] = {}  # the items of the responses that are referred to
        return [
            self._referred(index, item, known) if item.type == "item_reference" else item
            for index, item in enumerate(items)
        ]

    def _referred(self, index: int, reference: InputItem, known: dict[str, dict[str | None, InputItem]]) -> InputItem:
        response_id = response_of_item(reference.id or "")
        if response_id not in known:
            kept = self.kept(response_id)
            items = () if kept is None else (*kept.input, *kept.output())
            known[response_id] = {item.id: item for item in items}
        found = known[response_id].pop(reference.id, None)
        if found is None:
            raise responses_request.no_reference(index)
        return found


class ResponsesResponse:
    """The ASGI response to one request for a response."""

    def __init__(
        self,
        desk: ResponseDesk,
        ask: ResponsesRequest,
        chat: ChatRequest,
        before: list[InputItem],
        own: list[InputItem],
    ) -> None:
        self._desk = desk
        self._ask = ask
        self._chat = chat
        self._before = before
        key = secrets.token_hex(24)
        self._id = f"{RESPONSE_PREFIX}{key}"
        self._own = responses_request.named(own, key)
        model = chat.model or desk.service.model_names[0]
        self._writer = ResponseWriter(ask, self._id, int(time.time()), model)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; if the client leaves, cancel it in the engine, and keep nothing."""
        # Admitted only with its whole body: a client that sends half a body must not take a place.
        with self._desk.service.request_limit.admit():
            await unless_disconnected(receive, self._run(scope, receive, send))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._desk.service
        async with submitted(service, self._chat, self._desk.account, self._id) as outputs:
            outgoing = Outgoing(send, service.config.limits.write_s, EVENT_STREAM)
            if self._chat.stream:
                await self._send_events(outputs, outgoing)
                return
            async for _, output in outputs:
                for _event in self._writer.write(output, int(time.time())):
                    pass
            self._keep()
            await json_response(self._writer.response)(scope, receive, outgoing.write)

    async def _send_events(self, outputs: Outputs, outgoing: Outgoing) -> None:
        # The first output decides between an HTTP status and a stream: a refusal is still a plain error.
        _, first = await anext(outputs)
        try:
            for event in (*self._writer.begin(), *self._writer.write(first, int(time.time()))):
                await _send(outgoing, event)
            async for _, output in outputs:
                events = list(self._writer.write(output, int(time.time())))
                if self._writer.response.usage is not None:
                    self._keep()  # before the client learns of the end, and goes on from it
                for event in events:
                    await _send(outgoing, event)
        except VoxlaneError as error:
            for event in self._writer.fail(error):
                await _send(outgoing, event)
        await outgoing.end()

    def _keep(self) -> None:
        if self._ask.body.store:
            self._desk.keep(KeptResponse(self._writer.response, self._before, self._own))


async def _send(outgoing: Outgoing, event: Event) -> None:
    await outgoing.event(to_json(event), event["type"])
