"""GET /docs: the OpenAPI document as a page to read.

The page has no script and makes no request elsewhere: it works offline and under the strictest policy.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from functools import lru_cache

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from voxlane.server.api.endpoint import Answer, Facts, RouteTable, endpoint
from voxlane.server.api.openapi import document, facts_of, table_of
from voxlane.server.api.reference.template import STYLE, TEMPLATE
from voxlane.server.api.reference.view import sections
from voxlane.server.api.service import service_of

_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}

USUAL_ORIGIN = "http://127.0.0.1:8000"
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]{1,255}(:[0-9]{1,5})?")


@endpoint(
    "docs",
    "Description",
    "This description, to read",
    "A page without scripts and without requests elsewhere. Needs no key.",
    {200: Answer("The page.", {"text/html": str})},
)
async def docs(request: Request) -> Response:
    """Answer GET /docs."""
    # In a thread, and once: it takes 50 ms, most of it to compile the template.
    page = await asyncio.to_thread(_page, table_of(request), facts_of(service_of(request)))
    origin = str(request.base_url).rstrip("/")
    # The address in the examples is the one that the reader typed, unless a header makes it more than an address.
    if _ORIGIN.fullmatch(origin):
        page = page.replace(USUAL_ORIGIN, origin)
    return Response(page, headers=HEADERS, media_type="text/html")


@lru_cache(maxsize=4)
def _page(table: RouteTable, facts: Facts) -> str:
    whole = document(table, facts)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["prose"] = prose
    template = environment.from_string(TEMPLATE)
    view = sections(whole, USUAL_ORIGIN)
    # The policy names the style's hash: the style must not be escaped.
    return template.render(info=whole["info"], sections=view, style=Markup(STYLE), with_key=facts.with_key)


def prose(text: str, *, inline: bool = False) -> Markup:
    """Return a description as HTML: paragraphs, and code between backticks. That is all the Markdown we write."""
    paragraphs = [
        Markup("").join(
            Markup("<code>{}</code>").format(piece) if index % 2 else escape(piece)
            for index, piece in enumerate(paragraph.split("`"))
        )
        for paragraph in text.split("\n\n")
    ]
    if inline:
        return Markup(" ").join(paragraphs)
    return Markup("\n").join(Markup("<p>{}</p>").format(paragraph) for paragraph in paragraphs)
