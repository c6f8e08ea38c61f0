"""GET /docs: the OpenAPI document as a page to read, without scripts and without requests elsewhere."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from voxlane.server.api.docs_template import STYLE, TEMPLATE
from voxlane.server.api.endpoint import FORM, JSON, Answer, Facts, RouteTable, Schema, endpoint
from voxlane.server.api.openapi import document, facts_of, table_of
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

_RULES = {
    "minimum": "from", "maximum": "to", "minLength": "characters from", "maxLength": "characters to",
    "minItems": "items from", "maxItems": "items to", "maxProperties": "entries to", "default": "default",
}  # fmt: skip


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
    sections: dict[str, list[Schema]] = {tag["name"]: [] for tag in whole["tags"]}
    objects: dict[str, Schema] = whole["components"]["schemas"]
    for path, methods in whole["paths"].items():
        for method, one in methods.items():
            bodies = one.get("requestBody", {}).get("content", {}).values()
            # The fields of a request stand beside its endpoint, those of other objects at the end of the page.
            fields = [objects.pop(_name(body["schema"]), body["schema"]) for body in bodies]
            commands = list(_commands(path, method, one, facts))
            sections[one["tags"][0]].append(
                {
                    "parameters": [],
                    **one,
                    "path": path,
                    "method": method.upper(),
                    "fields": fields,
                    "commands": commands,
                }
            )
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"prose": prose, "kind": kind}
    # The policy names the style's hash: the style must not be escaped.
    return environment.from_string(TEMPLATE).render(
        **whole, sections=sections, objects=objects, style=Markup(STYLE), with_key=facts.with_key, rules=_RULES
    )


def prose(text: str) -> Markup:
    """Return a description as HTML: paragraphs, and code between backticks. That is all the Markdown we write."""
    html = re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text)))
    return Markup("".join(f"<p>{paragraph}</p>" for paragraph in html.split("\n\n") if paragraph))


def kind(schema: Schema) -> Markup:
    """Return a schema's kind in words."""
    if name := _name(schema):
        return Markup('<a href="#{0}">{0}</a>').format(name)
    if "anyOf" in schema:
        return Markup(" or ").join(map(kind, schema["anyOf"]))
    if "items" in schema:
        return Markup("list of {}").format(kind(schema["items"]))
    if "enum" in schema:
        return escape(" | ".join(map(json.dumps, schema["enum"])))
    return escape("file" if "contentMediaType" in schema else schema.get("type", "anything"))


def _name(schema: Schema) -> str:
    """Return the name of the object that a schema refers to, "" if it does not."""
    name: str = schema.get("$ref", "").rpartition("/")[2]
    return name


def _commands(path: str, method: str, one: Schema, facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield the summary and the command of each example."""
    for parameter in (each for each in one.get("parameters", ()) if each["in"] == "path"):
        path = path.replace(f"{{{parameter['name']}}}", quote(parameter["example"]))
    head = [f"curl {shlex.quote(USUAL_ORIGIN + path)}"]
    if facts.with_key and "security" not in one:
        head.append('-H "Authorization: Bearer $VOXLANE_API_KEY"')
    contents = one.get("requestBody", {}).get("content", {})
    if method != ("post" if contents else "get"):  # what curl does by itself
        head.append(f"-X {method.upper()}")
    if not contents:
        yield "", " \\\n  ".join(head)
    for media, content in contents.items():
        for example in content["examples"].values():
            yield example["summary"], " \\\n  ".join([*head, *_sent(one, media, example["value"])])


def _sent(one: Schema, media: str, value: Schema | str) -> Iterator[str]:
    """Yield the options of curl that take an example's answer, and those that send its body."""
    if isinstance(value, str):  # a text of its own kind, in a file
        yield f"-H 'Content-Type: {media}'"
        yield f"--data-binary @{media.rpartition('/')[2]}.txt"
        return
    if value.get("stream") or value.get("stream_format") == "sse":
        yield "-N"
    elif any(kind.startswith("audio/") for kind in one["responses"].get("200", {"content": ()})["content"]):
        yield f"-o speech.{value['response_format']}"
    if media == JSON:
        line = json.dumps(value, ensure_ascii=False)
        yield f"-H 'Content-Type: {JSON}'"
        yield f"-d {shlex.quote(line if len(line) < 64 else json.dumps(value, ensure_ascii=False, indent=2))}"
        return
    option = "--data-urlencode" if media == FORM else "-F"
    for name, given in value.items():
        for each in given if isinstance(given, list) else [given]:
            yield f"{option} {shlex.quote(f'{name}={each if isinstance(each, str) else json.dumps(each)}')}"
