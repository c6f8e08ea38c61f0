"""GET / for browsers and GET /client/…: the page to talk on, and the client library that it is made of.

It sets the headers that limit what a browser may do with our files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, cast

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from voxlane.server.api.assets import TYPES, Asset
from voxlane.server.api.bodies import JsonReply
from voxlane.server.api.endpoint import JSON, Answer, endpoint
from voxlane.server.api.openapi import summaries, table_of
from voxlane.server.api.service import service_of
from voxlane.server.config import VERSION
from voxlane.server.errors import NotFound
from voxlane.server.http.reply import json_response

PAGE = "demo/index.html"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Only our own files, no script or style inside the page, no frame around it. 'self' includes our WebSocket (in Safari
from version 16)."""

HEADERS = {
    "content-security-policy": POLICY,
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    # Browsers keep the files but ask again each time: an old page must not meet a new server.
    "cache-control": "no-cache",
}


class EndpointList(JsonReply, kw_only=True):
    """What is here."""

    name: Literal["voxlane"] = "voxlane"
    version: str = VERSION
    status: Annotated[str, Meta(description="As in `/healthz`.")]
    endpoints: Annotated[dict[str, str], Meta(description="What each does.")]


@endpoint(
    "index",
    "Description",
    "What is here",
    "A short list of the endpoints. Needs no key.",
    {200: Answer("The list; a browser gets the page to talk on.", {JSON: EndpointList, "text/html": str})},
)
async def index(request: Request) -> Response:
    """Answer a browser with the page, and a program with the list of endpoints."""
    page = _assets(request).get(PAGE)
    if page is not None and "text/html" in request.headers.get("accept", ""):
        answer = _send(page, request)
    else:
        status = service_of(request).engine.state
        answer = json_response(EndpointList(status=status, endpoints=summaries(table_of(request))))
    answer.headers["vary"] = "accept"
    return answer


@endpoint(
    "clientFile",
    "Description",
    "The browser client, file by file",
    'For pages of this server: `import { VoiceClient } from "/client/index.js"`. Needs no key.',
    {200: Answer("The file.", dict.fromkeys(TYPES.values(), str))},
    (NotFound,),
    parameter=("A file of the client; `demo/` holds those of the page alone.", "index.js"),
)
async def file(request: Request) -> Response:
    """Answer with one of the files."""
    asset = _assets(request).get(request.path_params["name"])
    if asset is None:
        raise NotFound
    return _send(asset, request)


def _assets(request: Request) -> Mapping[str, Asset]:
    return cast(Mapping[str, Asset], request.app.state.assets)


def _send(asset: Asset, request: Request) -> Response:
    headers = {**HEADERS, "etag": asset.tag}
    if asset.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers=headers, media_type=asset.media_type)
