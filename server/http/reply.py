"""JSON answers, and errors in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, to_builtins
from starlette.responses import Response

from voxlane.server.errors import TooManyConnections, VoxlaneError


def to_json(value: object) -> bytes:
    """Return compact JSON, also of structs; a non-finite number in it is our bug and raises ValueError."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=to_builtins).encode()


class ErrorFacts(Struct, kw_only=True):
    """What went wrong."""

    message: Annotated[str, Meta(description="For a person.")]
    type: Annotated[str, Meta(description="OpenAI's kind of error.")]
    param: Annotated[str | None, Meta(description="Which parameter is wrong.")]
    code: Annotated[str, Meta(description="For a program.")]


class ErrorReply(Struct):
    """An error as OpenAI's clients expect it."""

    error: ErrorFacts


def error_body(error: VoxlaneError) -> ErrorReply:
    """Return the error as OpenAI's clients expect it."""
    return ErrorReply(ErrorFacts(message=error.message, type=error.kind, param=error.param, code=error.code))


def error_response(error: VoxlaneError) -> Response:
    """Return the answer for an error, with `retry-after` where another try helps."""
    headers = {"retry-after": str(error.retry_after_s)} if error.retryable else {}
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.http_status == 426:
        headers |= {"upgrade": "websocket", "connection": "upgrade"}
    if isinstance(error, TooManyConnections):
        headers["connection"] = "close"  # makes room: an open connection would wait for the next request
    return json_response(error_body(error), error.http_status, headers)


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(to_json(value), status, dict(headers or {}), "application/json")
