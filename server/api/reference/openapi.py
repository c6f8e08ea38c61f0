"""GET /openapi.json: one OpenAPI 3.1 document of every HTTP endpoint, as this server is set up.

The files beside this one describe the endpoints; the tests compare them with the routes, with the readers of requests,
and with real answers.
"""

from __future__ import annotations

from functools import lru_cache

from starlette.requests import Request
from starlette.responses import Response

from voxlane.codecs.encode import formats
from voxlane.server.api.reference import audio, calls, chat, other, phone, responses, voices
from voxlane.server.api.reference.parts import JSON, Facts, Schema
from voxlane.server.api.service import VERSION, Service, service_of
from voxlane.server.http.reply import to_json

WEBSOCKETS = {
    "/v1/voice": "Conversations in our own protocol, MessagePack: `docs/protocol.md`.",
    "/v1/realtime": "Conversations in OpenAI's Realtime protocol, JSON: `docs/openai.md`.",
    "/v1/phone": "Telephone calls, in the protocol of the telephone system that connects them: `docs/telephony.md`.",
    "/v1/phone/{name}": "The same, for systems that append a name: Genesys.",
}
"""Endpoints that OpenAPI cannot describe."""

TAGS = {
    "Chat": "Text in, text out.",
    "Audio": "Speech to text and text to speech.",
    "Conversations": "Spoken ones are held over WebSockets or WebRTC; HTTP hands out keys, and takes offers.",
    "Telephone": "Telephone systems ask here what to do with a call.",
    "Models": "What is served.",
    "Health": "For the machines that look after this one.",
    "Description": "This documentation.",
}

_DESCRIPTION = """A real-time voice service: speech recognition, chat and speech synthesis. Chat and audio speak
OpenAI's protocols, so that programs written for OpenAI need only another address.

{websockets}

Errors have OpenAI's shape and a stable `code`. Answers carry an `x-request-id`, which is also in the server's log. An
answer with `retry-after` is worth another try."""


async def openapi(request: Request) -> Response:
    """Answer GET /openapi.json."""
    return Response(_json(facts_of(service_of(request))), media_type=JSON)


def facts_of(service: Service) -> Facts:
    """Return the facts of a server that its description depends on."""
    return Facts(service.config.limits, service.tenants.key_needed, service.chat_model, formats())


def document(facts: Facts) -> Schema:
    """Return the whole document."""
    parts = (chat, responses, audio, voices, calls, phone, other)
    websockets = "\n\n".join(f"WebSocket `{path}`: {text}" for path, text in WEBSOCKETS.items())
    return {
        "openapi": "3.1.0",
        "info": {"title": "voxlane", "version": VERSION, "description": _DESCRIPTION.format(websockets=websockets)},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        **({"security": [{"key": []}]} if facts.with_key else {}),
        "paths": {path: item for part in parts for path, item in part.paths(facts).items()},
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "The server's API key."}},
            "schemas": {name: schema for part in parts for name, schema in part.schemas(facts).items()},
        },
    }


@lru_cache(maxsize=4)
def endpoints(facts: Facts) -> dict[str, str]:
    """Return a short summary of each endpoint."""
    paths: dict[str, Schema] = document(facts)["paths"]
    found = {
        f"{method.upper()} {path}": operation["summary"]
        for path, item in paths.items()
        for method, operation in item.items()
    }
    return found | {f"WebSocket {path}": text for path, text in WEBSOCKETS.items()}


@lru_cache(maxsize=4)
def _json(facts: Facts) -> bytes:
    return to_json(document(facts))
