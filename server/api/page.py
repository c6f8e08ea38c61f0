"""GET / for browsers and GET /client/…: the page to talk on, and the client library that it is made of.

It sets the headers that limit what a browser may do with our files.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from voxlane.server.api import health
from voxlane.server.api.assets import Asset
from voxlane.server.errors import NotFound

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


class PageEndpoints:
    """The endpoints."""

    def __init__(self, assets: Mapping[str, Asset]) -> None:
        self._assets = assets

    async def index(self, request: Request) -> Response:
        """Answer a browser with the page, and a program with the list of endpoints."""
        page = self._assets.get(PAGE)
        wants_page = "text/html" in request.headers.get("accept", "")
        answer = _send(page, request) if page is not None and wants_page else await health.index(request)
        answer.headers["vary"] = "accept"
        return answer

    async def file(self, request: Request) -> Response:
        """Answer with one of the files."""
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            raise NotFound
        return _send(asset, request)


def _send(asset: Asset, request: Request) -> Response:
    headers = {**HEADERS, "etag": asset.tag}
    if asset.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers=headers, media_type=asset.media_type)
