"""The description at /openapi.json, held against routes, readers and real answers."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route, WebSocketRoute
from webrtc_caller import Caller

from voxlane.codecs.encode import formats
from voxlane.server.api import (
    chat_request,
    client_secrets,
    responses,
    responses_reply,
    responses_request,
    speech,
    speech_request,
    transcription_request,
    voice_request,
)
from voxlane.server.api.app import ANYWHERE, make_app
from voxlane.server.api.endpoint import Facts
from voxlane.server.api.openapi import document
from voxlane.server.api.routes import TABLE
from voxlane.server.config import LimitsConfig
from voxlane.server.errors import VoxlaneError

MODEL = "smollm2-135m-instruct"
LIMITS = LimitsConfig(speech_characters=500)
WHOLE = document(TABLE, Facts(LIMITS, with_key=True, model=MODEL))
WEBSOCKETS = {one.path for one in TABLE.sockets}
MESSAGES = [{"role": "user", "content": "hello"}]


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in WHOLE["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def schema_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = WHOLE["components"]["schemas"][name]
    return found


def closed(schema: Any) -> Any:
    """Return a schema under which an object may hold nothing that is not described."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    tight = {key: closed(value) for key, value in schema.items()}
    if schema.get("properties") and "additionalProperties" not in schema:
        tight["additionalProperties"] = False
    return tight


def check(schema: Any, value: object, *, tight: bool = True) -> None:
    """Fail unless a value is as described."""
    components = {"components": {"schemas": WHOLE["components"]["schemas"]}}
    whole = {**schema, **components}
    Draft202012Validator(closed(whole) if tight else whole).validate(value)


def is_valid(schema: Any, value: object) -> bool:
    whole = {**schema, "components": {"schemas": WHOLE["components"]["schemas"]}}
    return bool(Draft202012Validator(whole).is_valid(value))


# ---- the document itself


def test_it_is_valid_openapi() -> None:
    assert WHOLE["openapi"].startswith("3.1.")
    assert list(OpenAPIV31SpecValidator(WHOLE).iter_errors()) == []


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(WHOLE)))
    assert used == set(WHOLE["components"]["schemas"])


def test_every_schema_and_example_is_one() -> None:
    for schema in WHOLE["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    count = 0
    for _, _, operation in operations():
        for content in operation.get("requestBody", {}).get("content", {}).values():
            for example in content["examples"].values():
                check(content["schema"], example["value"], tight=False)
                count += 1
    assert count >= 10


async def test_routes_and_document_are_the_same(serving: Any) -> None:
    async with serving() as server:
        routes = make_app(server.service).routes
        served = {
            (re.sub(r":\w+}", "}", route.path), method.lower())
            for route in routes
            if isinstance(route, Route)
            for method in route.methods or ()
            if method != "HEAD"  # comes with every GET
        }
        assert served == {(path, method) for path, method, _ in operations()}
        sockets = {route.path for route in routes if isinstance(route, WebSocketRoute)} - {ANYWHERE}
        assert sockets == WEBSOCKETS
        assert all(f"`{path}`" in WHOLE["info"]["description"] for path in sockets)
        assert len(routes) == len(served) + len(sockets) + 1  # and the answer to all other WebSockets


async def test_the_key_is_asked_for_where_it_is_said(serving: Any) -> None:
    async with serving(api_key="sesame") as server:
        told = (await server.client.get("/openapi.json")).json()
        assert told["security"] == [{"key": []}]
        for path, method, operation in operations():
            status = (await server.client.request(method, path, json={})).status_code
            assert (status == 401) is (operation.get("security") != []), path
    assert "security" not in document(TABLE, Facts(LIMITS, with_key=False, model=""))


# ---- against the readers of requests


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("ChatRequest", chat_request),
        ("SpeechRequest", speech_request),
        ("TranscriptionRequest", transcription_request),
        ("TranslationRequest", transcription_request),
        ("VoiceRequest", voice_request),
        ("ClientSecretRequest", client_secrets),
    ],
)
def test_every_parameter_is_used_or_said_to_be_without_effect(name: str, module: Any) -> None:
    check_uses(name, inspect.getsource(module))


def test_every_parameter_of_a_response_is_used_or_said_to_be_without_effect() -> None:
    readers = (responses_request, responses_reply, responses)
    check_uses("ResponsesRequest", "".join(inspect.getsource(module) for module in readers))


def check_uses(name: str, source: str) -> None:
    used = set(re.findall(r"\b(?:body|ask)\.(\w+)", source))
    for key, schema in schema_of(name)["properties"].items():
        if "contentMediaType" in schema or len(schema.get("enum", "ab")) == 1:
            continue  # the file is read elsewhere; one allowed value means nothing
        without_effect = schema.get("description", "").startswith("Accepted, without effect")
        assert (key.removesuffix("[]") in used) is not without_effect, key


def probes(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield values in and around what a schema lets through."""
    yield from (True, False, 0, 1, -1, 0.5, 1e9 + 0.5, "x", "no such thing", [], ["x"], [7], {}, {"x": 1})
    yield from schema.get("enum", ())
    for edge in ("minimum", "maximum"):
        if edge in schema:
            yield from (schema[edge], schema[edge] - 1, schema[edge] + 1)
    if "maxLength" in schema:
        yield from ("", "x" * schema["maxLength"], "x" * (schema["maxLength"] + 1))
    if "maxItems" in schema:
        item = schema["items"].get("$ref", "")
        one = {"SentMessage": MESSAGES[0], "ChatTool": TOOL}.get(item.rpartition("/")[2], "x")
        yield from ([one] * schema["maxItems"], [one] * (schema["maxItems"] + 1))
    for one in schema.get("anyOf", ()):
        yield from probes(one)


TOOL = {"type": "function", "function": {"name": "f"}}
FLAT_TOOL = {"type": "function", "name": "f"}
NEEDED = {"top_logprobs": {"logprobs": True}, "stream_options": {"stream": True}, "tool_choice": {"tools": [TOOL]}}
SPECIAL: dict[str, list[Any]] = {
    "tool_choice": [{"type": "function", "function": {"name": "f"}}, {"type": "function"}],
    "stream_options": [{"include_usage": True}, {"include_usage": "yes"}, {"include_obfuscation": False}],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "n"}},
        {"type": "json_schema", "json_schema": {"schema": {}, "colour": "red"}},
    ],
    "logit_bias": [{"5": 3}, {"5": 101}, {"5": -100}, {"-5": 1}, {str(token): 0 for token in range(1025)}],
    "tools": [
        [TOOL],
        [{"type": "function", "function": {}}],
        [{"type": "function", "function": {"name": "f", "a": 1}}],
    ],
    "messages": [
        [{"role": "critic", "content": "x"}],
        [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "user", "content": []}],
        [{"role": "assistant", "content": None, "tool_calls": None}],
        [{"role": "user", "content": "x", "colour": "red"}],
        [{"role": "user", "content": "x", "audio": {"id": "a"}}],
        [{"role": "tool", "content": "x", "tool_call_id": ""}],
    ],
    "expires_after": [{"seconds": 9}, {"seconds": 10}, {"seconds": 7200}, {"seconds": 7201}, {"anchor": "now"}],
    "seed": [1 << 40],
}


def accepts(parse: Callable[[Any], object], body: Mapping[str, Any]) -> bool:
    try:
        parse(body)
    except VoxlaneError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "base", "parse"),
    [
        ("ChatRequest", {"messages": MESSAGES}, chat_request.parse),
        ("ResponsesRequest", {"input": "x"}, responses_request.parse),
        ("SpeechRequest", {"input": "x"}, lambda body: speech_request.parse(body, 500, ("one",), formats())),
        ("ClientSecretRequest", {}, client_secrets.parse),
    ],
)
def test_what_is_described_is_what_is_accepted(name: str, base: dict[str, Any], parse: Any) -> None:
    schema = schema_of(name)
    outcomes = set()
    for key, described in schema["properties"].items():
        if (name, key) in {("SpeechRequest", "voice"), ("SpeechRequest", "language")}:  # the engine knows which
            continue
        if key == "pronunciations":  # its entries have a grammar that a schema cannot express
            continue
        for value in (*probes(described), *SPECIAL.get(key, ())):
            body = {**base, **NEEDED.get(key, {}), key: value}
            accepted = accepts(parse, body)
            outcomes.add(accepted)
            assert accepted == is_valid(schema, body), f"{key}: {str(value)[:80]} is accepted: {accepted}"
    assert outcomes == {True, False}
    for key in schema.get("required", ()):
        assert not accepts(parse, {name: value for name, value in base.items() if name != key})
    assert not accepts(parse, {**base, "no_such_parameter": 1})


def test_only_formats_that_this_installation_writes_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech, "formats", lambda: ("wav", "pcm"))
    found = document(TABLE, Facts(LIMITS, with_key=True, model=MODEL))["components"]["schemas"]["SpeechRequest"]
    assert found["properties"]["response_format"]["enum"] == ["wav", "pcm"]
    assert found["properties"]["response_format"]["default"] == "wav"


def test_a_form_is_accepted_as_it_is_described() -> None:
    """In a form all is text, so that only values of the right type can be compared."""
    schema = schema_of("TranscriptionRequest")
    kinds = {"string": (str,), "number": (int, float), "boolean": (bool,)}
    for key, described in schema["properties"].items():
        if key in ("file", "language") or described.get("type") not in kinds:
            continue
        for value in probes(described):
            if value == "" or type(value) not in (str, *kinds[described["type"]]):
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            accepted = accepts(lambda text, key=key: transcription_request.parse([(key, text)], ()), text)  # type: ignore[misc]
            assert accepted == is_valid(described, value), f"{key}: {value!r:.80} is accepted: {accepted}"


# ---- against real answers


def checked_answer(operation: Mapping[str, Any], answer: Any) -> str:
    """Fail unless an answer is one of those described; return its kind."""
    responses = operation["responses"]
    assert str(answer.status_code) in responses, answer.text
    kind = answer.headers["content-type"].partition(";")[0]
    media = responses[str(answer.status_code)]["content"][kind]
    if kind == "application/json":
        check(media["schema"], answer.json())
    elif kind == "text/event-stream":
        lines = [line for line in answer.text.split("\n") if line.startswith("data: ") and line != "data: [DONE]"]
        told = [line.removeprefix("data: ") for line in lines]
        assert told
        for event in told:
            check(media["x-event-schema"], json.loads(event))
    elif kind.startswith("text/") or kind == "application/sdp":
        assert answer.text or media["schema"].get("minLength") == 0
    else:
        assert media["schema"] == {"type": "string", "contentMediaType": "application/octet-stream"}
        assert len(answer.content) > 10
    return kind


async def send(server: Any, path: str, method: str, kind: str, value: Mapping[str, Any], file: bytes) -> Any:
    if kind == "application/json":
        return await server.client.request(method, path, json=value)
    files = {key: ("speech.wav", file) for key, one in value.items() if one == "@speech.wav"}
    rest = {key: str(one).lower() if isinstance(one, bool) else one for key, one in value.items() if key not in files}
    return await server.client.request(method, path, data=rest, files=files)


async def test_every_example_is_answered_as_described(serving: Any, recording: Any) -> None:
    kinds: dict[str, set[str]] = {}
    async with serving(model=MODEL) as server:
        kept = (await server.client.post("/v1/responses", json={"input": "hello"})).json()["id"]
        for path, method, operation in sorted(operations(), key=lambda one: one[1] == "delete"):
            if path.startswith("/v1/realtime/calls"):
                continue  # they need a true offer: see below
            address = path
            for parameter in operation.get("parameters", ()):
                example = kept if parameter["name"] == "response_id" else parameter["example"]
                address = address.replace(f"{{{parameter['name']}}}", str(example))
            found = kinds.setdefault(path, set())
            if "requestBody" not in operation:
                answer = await server.client.request(method, address)
                assert answer.status_code == (400 if path.endswith("/cancel") else 200), path
                found.add(checked_answer(operation, answer))
                continue
            for kind, content in operation["requestBody"]["content"].items():
                for example in content["examples"].values():
                    answer = await send(server, address, method, kind, example["value"], recording("hello there"))
                    assert answer.status_code == 200, answer.text
                    found.add(checked_answer(operation, answer))
        metrics = (await server.client.get("/metrics")).text
    assert 'route="other"' not in metrics
    assert kinds["/v1/chat/completions"] == {"application/json", "text/event-stream"}
    assert kinds["/v1/responses"] == {"application/json", "text/event-stream"}
    assert kinds["/v1/audio/transcriptions"] == {"application/json", "text/event-stream", "text/vtt"}
    assert kinds["/v1/audio/speech"] == {"audio/wav", "text/event-stream"}


async def test_calls_are_answered_as_described(serving: Any) -> None:
    calls = WHOLE["paths"]["/v1/realtime/calls"]
    one_call = WHOLE["paths"]["/v1/realtime/calls/{name}"]
    hang_up = WHOLE["paths"]["/v1/realtime/calls/{name}/hangup"]["post"]
    async with serving() as server:
        for end, described in (("", one_call["delete"]), ("/hangup", hang_up)):
            caller = Caller(server.client)
            session = {"type": "realtime"} if end else None  # as a form, and as plain SDP
            answer = await caller.post(session=session)
            assert answer.status_code == 201
            assert checked_answer(calls["post"], answer) == "application/sdp"
            assert calls["post"]["responses"]["201"]["headers"].keys() == {"Location"}
            method = "post" if end else "delete"
            address = f"{answer.headers['location']}{end}"
            assert (await server.client.request(method, address)).status_code == 200
            assert described["responses"]["200"]["content"] == {}
            checked_answer(described, await server.client.request(method, address))  # it is over
            await caller.close()
        checked_answer(calls["post"], await server.client.post("/v1/realtime/calls", json={}))
        for path in ("/v1/realtime/calls", "/v1/realtime/calls/rtc_x"):
            answer = await server.client.options(path, headers={"origin": server.url})
            assert str(answer.status_code) in calls["options"]["responses"] | one_call["options"]["responses"]
            assert answer.status_code == 204
            refused = await server.client.options(path, headers={"origin": "https://evil.example"})
            checked_answer(calls["options"], refused)
            assert refused.status_code == 403


WORTH_A_LOOK: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/chat/completions", {"tools": [TOOL], "messages": [{"role": "user", "content": "call"}]}, 200),
    ("/v1/chat/completions", {"tools": [TOOL], "messages": [{"role": "user", "content": "call"}], "stream": True}, 200),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "logprobs"}], "logprobs": True, "n": 2}, 200),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "lookup"}]}, 200),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "refuse too_long"}]}, 400),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "refuse overloaded"}]}, 429),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "fail"}]}, 500),
    ("/v1/chat/completions", {"messages": MESSAGES, "model": "gpt-9"}, 404),
    ("/v1/chat/completions", {"messages": MESSAGES, "verbosity": "low"}, 400),
    ("/v1/responses", {"input": "call", "tools": [FLAT_TOOL]}, 200),
    ("/v1/responses", {"input": "logprobs", "include": ["message.output_text.logprobs"]}, 200),
    ("/v1/responses", {"input": "x", "previous_response_id": "resp_none"}, 400),
    ("/v1/responses", {"input": "x", "background": True}, 400),
    ("/v1/responses", {"input": "fail"}, 500),
    ("/v1/audio/speech", {"input": "x" * 100_001}, 400),
    ("/v1/audio/speech", {"input": "fail"}, 500),
    ("/v1/realtime/client_secrets", {"session": 5}, 400),
    ("/v1/realtime/client_secrets", {"session": {"instructions": "x" * 70_000}}, 413),
    ("/v1/realtime/client_secrets", {"session": {"instructions": "x" * 2_000_000}}, 413),
]


async def test_other_answers_and_errors_are_as_described(serving: Any) -> None:
    async with serving(model=MODEL) as server:
        for path, body, status in WORTH_A_LOOK:
            answer = await server.client.post(path, json=body)
            assert answer.status_code == status, (path, body, answer.text)
            checked_answer(WHOLE["paths"][path]["post"], answer)
        for kind in formats():
            answer = await server.client.post("/v1/audio/speech", json={"input": "Hello!", "response_format": kind})
            checked_answer(WHOLE["paths"]["/v1/audio/speech"]["post"], answer)
        form = {"files": {"file": ("a.mp3", b"no music")}}
        path = "/v1/audio/transcriptions"
        checked_answer(WHOLE["paths"][path]["post"], await server.client.post(path, **form))
        checked_answer(WHOLE["paths"]["/v1/models/{name}"]["get"], await server.client.get("/v1/models/none"))
    async with serving(model=MODEL, adapter="peter") as server:
        checked_answer(WHOLE["paths"]["/v1/models"]["get"], await server.client.get("/v1/models"))
    async with serving(model="never-ready", wait=False) as server:
        for path, method, operation in operations():
            if method == "get" and "{" not in path:
                answer = await server.client.get(path)
                checked_answer(operation, answer)
                assert answer.status_code == (503 if path in ("/healthz", "/readyz", "/v1/models") else 200)


async def test_the_index_lists_everything(serving: Any) -> None:
    async with serving() as server:
        told = (await server.client.get("/")).json()["endpoints"]
        assert told.keys() == {f"{method.upper()} {path}" for path, method, _ in operations()} | {
            f"WebSocket {path}" for path in WEBSOCKETS
        }
