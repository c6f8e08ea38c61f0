"""Addresses that people try: each answer names the right one."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stock_client import stock_client
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from voxlane.server.api.addresses import instead_of, other_methods

SERVED = ("/", "/healthz", "/v1/models", "/v1/chat/completions", "/v1/responses", "/v1/audio/speech", "/v1/realtime")

TRIED = [
    ("GET", "/v1", "GET /v1/models"),
    ("GET", "/v1/", "GET /v1/models"),
    ("POST", "/v1/completions", "POST /v1/chat/completions"),
    ("POST", "/completions", "/v1/completions"),
    ("POST", "/chat/completions", "Use /v1/chat/completions: the base URL ends with /v1"),
    ("POST", "/v1/v1/chat/completions", "Use /v1/chat/completions: the base URL ends with /v1, once"),
    ("POST", "/responses", "Use /v1/responses"),
    ("GET", "/models", "Use /v1/models"),
    ("POST", "/audio/speech", "Use /v1/audio/speech"),
    ("GET", "/realtime", "Use /v1/realtime"),
    ("POST", "/v1/embeddings", "no model that makes embeddings"),
    ("POST", "/v1/realtime/sessions", "POST /v1/realtime/client_secrets"),
    ("POST", "/v1/realtime/transcription_sessions", "`type` transcription"),
    ("POST", "/v1/images/generations", "images are not served here"),
    ("GET", "/v1/files", "files are not served here"),
    ("POST", "/v1/chat/completion", "Did you mean /v1/chat/completions?"),
    ("GET", "/health", "/healthz"),
    ("POST", "/api/chat", "POST /v1/chat/completions"),
    ("GET", "/wp-login.php", "GET / lists all addresses"),
]


async def test_an_address_without_an_endpoint_names_the_right_one(serving: Any) -> None:
    async with serving() as server:
        for method, path, words in TRIED:
            answer = await server.client.request(method, path, follow_redirects=True)
            assert answer.status_code == 404, path
            error = answer.json()["error"]
            assert error["code"] == "not_found"
            assert words in error["message"], error["message"]


async def test_a_wrong_method_names_the_right_one(serving: Any) -> None:
    async with serving() as server:
        for method, path, words in (
            ("GET", "/v1/chat/completions", "Use POST."),
            ("PUT", "/v1/audio/voices", "Use GET or POST."),
            ("PUT", "/v1/responses/resp_1", "Use DELETE or GET."),
        ):
            answer = await server.client.request(method, path)
            assert answer.status_code == 405
            assert words in answer.json()["error"]["message"]


async def test_the_stock_client_shows_the_sentence(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        with pytest.raises(openai.NotFoundError, match="no model that makes embeddings"):
            await client.embeddings.create(input="x", model="text-embedding-3-small")
        with pytest.raises(openai.NotFoundError, match="POST /v1/chat/completions"):
            await client.completions.create(prompt="x", model="m")
    async with serving() as server, stock_client(server, path="") as client:
        with pytest.raises(openai.NotFoundError, match="the base URL ends with /v1"):
            await client.chat.completions.create(messages=[{"role": "user", "content": "x"}], model="m")


@given(st.text(max_size=200))
def test_any_path_gets_a_sentence_without_the_path_in_it(text: str) -> None:
    path = f"/{text}"
    told = instead_of(path, SERVED)
    assert told.endswith(".")
    named = {"/v1/completions", *SERVED}
    assert len(path) < 12 or path not in told or path.rstrip("/") in named


def test_methods_are_named() -> None:
    assert other_methods(["HEAD", "GET"]) == "Use GET."
    assert other_methods([]) == ""


async def test_a_second_connection_to_a_call_is_refused_by_name(serving: Any) -> None:
    async with serving() as server:
        address = f"{server.url.replace('http', 'ws', 1)}/v1/realtime?call_id=rtc_1"
        with pytest.raises(InvalidStatus) as refused:
            await connect(address)
        assert refused.value.response.status_code == 400
        error = json.loads(refused.value.response.body)["error"]
        assert error["param"] == "call_id"
        assert "cannot join a call" in error["message"]


async def test_a_websocket_to_an_address_without_one_is_told_the_right_one(serving: Any) -> None:
    async with serving() as server:
        for path, words in (("/realtime", "Use /v1/realtime"), ("/v1/realtime/x", "GET / lists all addresses")):
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"{server.url.replace('http', 'ws', 1)}{path}")
            assert refused.value.response.status_code == 404
            assert words in json.loads(refused.value.response.body)["error"]["message"]
