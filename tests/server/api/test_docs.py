"""The page at /docs: what it must not do, what it must show, and commands that can be copied."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from voxlane.server.api.docs import USUAL_ORIGIN
from voxlane.server.api.endpoint import Facts
from voxlane.server.api.openapi import document
from voxlane.server.api.routes import TABLE
from voxlane.server.config import LimitsConfig

MODEL = "smollm2-135m-instruct"
WHOLE = document(TABLE, Facts(LimitsConfig(), with_key=True, model=MODEL))


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in WHOLE["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


async def test_the_page_asks_for_nothing_and_runs_nothing(serving: Any) -> None:
    async with serving() as server:
        answer = await server.client.get("/docs")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        page = answer.text
        for forbidden in ("<script", "<link", "<img", "<iframe", "@import", "url(", " style=", " onclick="):
            assert forbidden not in page, forbidden
        addresses = re.findall(r'(?:href|src)="([^"]*)"', page)
        assert {one for one in addresses if not one.startswith("#")} == {"/openapi.json"}
        anchors = set(re.findall(r'id="([^"]*)"', page))
        assert {one[1:] for one in addresses if one.startswith("#")} == anchors
        assert anchors > {operation["operationId"] for _, _, operation in operations()}


async def test_the_page_shows_every_parameter_and_error(serving: Any) -> None:
    async with serving() as server:
        articles = dict(
            re.findall(r'<article id="(\w+)">(.*?)</article>', (await server.client.get("/docs")).text, re.DOTALL)
        )
    for path, method, operation in operations():
        shown = articles[operation["operationId"]]
        assert f"{method.upper()}</span> <code>{path}</code>" in shown
        for status in operation["responses"]:
            assert f"<strong>{status}</strong>" in shown
        for content in operation.get("requestBody", {}).get("content", {}).values():
            schema = content["schema"]
            if "$ref" in schema:
                schema = WHOLE["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            for key in schema.get("properties", ()):
                assert f'<code class="name">{key}</code>' in shown


def commands_of(page: str) -> list[list[str]]:
    found = re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    return [shlex.split(html.unescape(one).replace("\\\n", "")) for one in found]


async def test_the_commands_send_the_examples(serving: Any) -> None:
    async with serving(model=MODEL, api_key="sesame") as server:
        found = commands_of((await server.client.get("/docs")).text)
    expected = []
    for path, method, operation in operations():
        key = [] if operation.get("security") == [] else ["Authorization: Bearer $VOXLANE_API_KEY"]
        contents = operation.get("requestBody", {}).get("content", {})
        named = {one["name"]: one["example"] for one in operation.get("parameters", [])}
        address = f"{server.url}{path.format(**named)}"
        if not contents:
            expected.append((method, address, key, None))
        for kind, content in contents.items():
            for example in content["examples"].values():
                named_kind = kind in ("application/json", "application/sdp")
                headers = [*key, f"Content-Type: {kind}"] if named_kind else key
                sent = "@sdp.txt" if kind == "application/sdp" else example["value"]
                expected.append((method, address, headers, sent))
    assert [read_command(command) for command in found] == sorted(
        expected, key=lambda one: [read_command(command)[:2] for command in found].index(one[:2])
    )


def read_command(words: list[str]) -> tuple[str, str, list[str], Any]:
    """Return a command's method, its address, its headers, and what it sends."""
    assert words[0] == "curl"
    headers: list[str] = []
    form: dict[str, Any] = {}
    sent: Any = None
    method = ""
    rest = iter(words[2:])
    for word in rest:
        if word == "-H":
            headers.append(next(rest))
        elif word == "-X":
            method = next(rest).lower()
        elif word == "--data-binary":
            sent = next(rest)
        elif word == "-d":
            sent = json.loads(next(rest))
        elif word in ("-F", "--data-urlencode"):
            name, _, value = next(rest).partition("=")
            value_read: Any = {"true": True}.get(value, value)
            form[name] = [*form.get(name, []), value_read] if name.endswith("[]") else value_read
        else:
            assert word == "-N" or (word == "-o" and next(rest).startswith("speech."))
    return method or ("post" if form or sent is not None else "get"), words[1], headers, form or sent


@pytest.mark.parametrize("host", ["voice.example.org", '"><script>alert(1)</script>', "a;rm -rf $HOME", "[::1]"])
async def test_the_readers_address_is_shown_if_it_is_one(serving: Any, host: str) -> None:
    async with serving() as server:
        page = (await server.client.get("/docs", headers={"host": host})).text
        origins = {words[1].removesuffix("/docs") for words in commands_of(page) if words[1].endswith("/docs")}
        # What is no address is replaced by ours, here or before it gets here.
        assert origins <= ({f"http://{host}"} if host == "voice.example.org" else {USUAL_ORIGIN, server.url})
        assert "alert" not in page
        assert "$HOME" not in page
