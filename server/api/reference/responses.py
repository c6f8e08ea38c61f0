"""Description of POST /v1/responses, and of what can be done with the responses that are kept."""

from __future__ import annotations

from voxlane.server import limits
from voxlane.server.api import responses_request
from voxlane.server.api.reference.parts import (
    EVENTS,
    JSON,
    READING,
    WORKING,
    Facts,
    Schema,
    answer,
    body_schemas,
    choice,
    either,
    enumerated,
    events,
    fixed,
    flag,
    listing,
    media,
    number,
    operation,
    or_null,
    record,
    ref,
    request_body,
    string,
    whole,
)
from voxlane.server.errors import (
    ContextTooLong,
    InvalidRequest,
    NotInBackground,
    PreviousNotFound,
    ResponseNotFound,
    UnsupportedParameter,
)

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

_PARAMETER: Schema = {
    "name": "response_id",
    "in": "path",
    "required": True,
    "schema": string("The `id` of a response that was stored."),
    "example": "resp_0123456789abcdef",
}


def paths(facts: Facts) -> Schema:
    """Return the endpoints."""
    whole_response = {JSON: media(ref("Response"))}
    create = operation(
        "createResponse",
        "Chat",
        "Ask the model for a response, OpenAI's protocol",
        _DESCRIPTION,
        {
            "200": answer(
                "The response; with `stream`, its events.", **whole_response, **{EVENTS: events("ResponsesEvent")}
            )
        },
        (*READING, ContextTooLong, PreviousNotFound, *WORKING),
        request=request_body(JSON, "ResponsesRequest", _EXAMPLES),
    )
    get = operation(
        "getResponse",
        "Chat",
        "A response that is kept, OpenAI's protocol",
        "Only the key that asked for it finds it.",
        {"200": answer("The response.", **whole_response)},
        (ResponseNotFound, UnsupportedParameter),
        parameters=[_PARAMETER],
    )
    delete = operation(
        "deleteResponse",
        "Chat",
        "No more of a kept response, OpenAI's protocol",
        "Responses that followed it hold what it said, and stay.",
        {"200": answer("It is gone.", **{JSON: media(ref("ResponseDeleted"))})},
        (ResponseNotFound,),
        parameters=[_PARAMETER],
    )
    items = operation(
        "listInputItems",
        "Chat",
        "What led to a kept response, OpenAI's protocol",
        "All items that the model was given, those of earlier responses included. `include` has no effect.",
        {"200": answer("A page of them.", **{JSON: media(ref("ResponseItemList"))})},
        (ResponseNotFound, InvalidRequest),
        parameters=[_PARAMETER, *_query()],
    )
    cancel = operation(
        "cancelResponse",
        "Chat",
        "Refused: no response is made in the background, OpenAI's protocol",
        "To cancel a response that is being made, close its connection.",
        {"200": answer("Never, since `background` is refused.", **whole_response)},
        (NotInBackground, ResponseNotFound),
        parameters=[_PARAMETER],
    )
    return {
        "/v1/responses": {"post": create},
        "/v1/responses/{response_id}": {"get": get, "delete": delete},
        "/v1/responses/{response_id}/input_items": {"get": items},
        "/v1/responses/{response_id}/cancel": {"post": cancel},
    }


def _query() -> list[Schema]:
    """Return the parameters of a list of input items."""
    described = body_schemas("", responses_request.InputItemsQuery)[""]["properties"]
    examples = {"limit": 20, "order": "desc", "after": "msg_0123456789abcdef_i0"}
    return [
        {"name": name, "in": "query", "required": False, "schema": schema, "example": examples[name]}
        for name, schema in described.items()
    ]


def schemas(facts: Facts) -> dict[str, Schema]:
    """Return the schemas of requests and answers."""
    event = record({"type": string("As `response.output_text.delta`."), "sequence_number": whole("From 0.", 0)})
    return {
        **body_schemas("ResponsesRequest", responses_request.ResponsesBody),
        "Response": _response(),
        "ResponsesEvent": event | {"additionalProperties": True},
        "ResponseItemList": record(
            {
                "object": fixed("list"),
                "data": listing(either("", _input_message(), _message(), _call(), _result())),
                "first_id": string("Of the first item; empty if there is none."),
                "last_id": string("For `after`; empty if there is none."),
                "has_more": flag("Whether others follow."),
            }
        ),
        "ResponseDeleted": record({"id": string(), "object": fixed("response"), "deleted": flag("Always true.")}),
    }


def _response() -> Schema:
    return record(
        {
            "id": string("For `previous_response_id`."),
            "object": fixed("response"),
            "created_at": whole("When, in seconds since 1970."),
            "status": choice("", ("completed", "incomplete", "failed", "in_progress")),
            "completed_at": or_null(whole("When, in seconds since 1970; `null` unless it is complete.")),
            "error": or_null(record({"code": string(), "message": string()})),
            "incomplete_details": or_null(record({"reason": fixed("max_output_tokens")})),
            "model": string("The name that was asked for."),
            "output": listing(either("", _message(), _call()), "What the model said, and the functions to call."),
            "usage": or_null(_usage()),
            "store": flag("Whether it is kept."),
            "background": flag("Always false."),
            "service_tier": fixed("default"),
            "truncation": fixed("disabled"),
            "max_tool_calls": {"type": "null"},
            "reasoning": record({"effort": {"type": "null"}, "summary": {"type": "null"}}),
            "top_logprobs": whole("", 0),
            "instructions": or_null(string()),
            "max_output_tokens": or_null(whole("")),
            "parallel_tool_calls": flag(""),
            "previous_response_id": or_null(string()),
            "temperature": or_null(number("`null`: the model's own.")),
            "top_p": or_null(number("`null`: the model's own.")),
            "text": {"type": "object", "description": "As it was asked for."},
            "tool_choice": {"description": "As it was asked for."},
            "tools": listing({"type": "object"}, "As they were declared."),
            "metadata": {"type": "object", "additionalProperties": string()},
        }
    )


def _message() -> Schema:
    part = {
        "type": fixed("output_text"),
        "text": string(),
        "annotations": listing({}, "Always empty.", most=0),
        "logprobs": listing({"type": "object"}, "Empty unless they were asked for."),
    }
    return record(
        {
            "id": string(),
            "type": fixed("message"),
            "status": choice("", ("completed", "incomplete")),
            "role": fixed("assistant"),
            "content": listing(record(part)),
        }
    )


def _input_message() -> Schema:
    return record(
        {
            "id": string(),
            "type": fixed("message"),
            "status": fixed("completed"),
            "role": choice("", ("user", "system", "developer")),
            "content": listing(record({"type": fixed("input_text"), "text": string()})),
        }
    )


def _result() -> Schema:
    return record(
        {
            "id": string(),
            "type": fixed("function_call_output"),
            "status": fixed("completed"),
            "call_id": string("Of the call that it answers."),
            "output": string(),
        }
    )


def _call() -> Schema:
    return record(
        {
            "id": string(),
            "type": fixed("function_call"),
            "status": fixed("completed"),
            "call_id": string("For the `function_call_output`."),
            "name": string(),
            "arguments": string("A JSON object, as text."),
        }
    )


def _usage() -> Schema:
    read = {"cached_tokens": whole("Tokens that were already known."), "cache_write_tokens": whole("Always 0.")}
    return record(
        {
            "input_tokens": whole(""),
            "input_tokens_details": record(read),
            "output_tokens": whole(""),
            "output_tokens_details": record({"reasoning_tokens": whole("Always 0.")}),
            "total_tokens": whole(""),
        }
    )
