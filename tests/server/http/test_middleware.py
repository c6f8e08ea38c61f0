"""Pages of other sites that send requests in their visitors' names, and a house that is full."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from voxlane.server.api.routes import TABLE
from voxlane.server.config import LimitsConfig, ServerConfig, VoiceConfig
from voxlane.server.http.access import AccessTable

PAGE = "https://example.org"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 200, id="a program"),
        pytest.param({"origin": "http://localhost:3000"}, 200, id="a page of this machine"),
        pytest.param({"origin": PAGE}, 200, id="a page that may"),
        pytest.param({"host": "example.org"}, 200, id="through a proxy, under the name of a page that may"),
        pytest.param({"host": "host.docker.internal:8000"}, 200, id="a container on this machine"),
        pytest.param({"origin": "https://evil.example"}, 403, id="another site's page"),
        pytest.param({"origin": "null"}, 403, id="a page without a site"),
        pytest.param({"host": "evil.example:8000", "origin": "http://evil.example:8000"}, 403, id="a name made ours"),
        pytest.param({"host": "evil.example:8000"}, 403, id="the same, only reading"),
    ],
)
async def test_who_may_ask_where_no_key_is_asked_for(serving: Any, headers: dict[str, str], status: int) -> None:
    async with serving(voice=VoiceConfig(origins=(PAGE,))) as server:
        assert (await server.client.get("/v1/audio/voices", headers=headers)).status_code == status


async def test_a_name_made_ours_reads_nothing_but_whether_the_server_lives(serving: Any) -> None:
    async with serving() as server:
        for path in ("/", "/docs", "/openapi.json", "/metrics", "/nothing"):
            answer = await server.client.get(path, headers={"host": "evil.example:8000", "accept": "text/html"})
            assert (path, answer.status_code) == (path, 403)
        for path in ("/livez", "/readyz", "/healthz", "/client/wire.js"):
            assert (await server.client.get(path, headers={"host": "cell"})).status_code == 200


async def test_a_form_of_another_site_makes_no_voice(serving: Any) -> None:
    async with serving() as server:
        answer = await server.client.post(
            "/v1/audio/voices", data={"name": "Mum", "consent": "true"}, headers={"origin": "https://evil.example"}
        )
        assert answer.status_code == 403
        assert "voice.origins" in answer.json()["error"]["message"]


async def test_the_log_names_a_refused_origin_and_the_setting(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        await server.client.get("/v1/models", headers={"origin": "https://other.example"})
        await server.client.get("/v1/models", headers={"origin": 'https://x" setting=mine'})
    told = [record.getMessage() for record in caplog.records if "origin_refused" in record.getMessage()]
    assert told == [
        "origin_refused origin=https://other.example setting=voice.origins",
        'origin_refused origin="https://x\\" setting=mine" setting=voice.origins',
    ]


async def test_with_a_key_or_for_others_any_name_will_do(serving: Any) -> None:
    async with serving(api_key="k") as server:
        headers = {"host": "voice.example", "origin": "tauri://localhost", "authorization": "Bearer k"}
        assert (await server.client.get("/v1/models", headers=headers)).status_code == 200
    async with serving(server=ServerConfig(host="0.0.0.0", open=True)) as server:
        assert (await server.client.get("/v1/models", headers={"host": "voxlane:8000"})).status_code == 200


@pytest.mark.parametrize("name", ["host", "origin"])
async def test_what_is_no_address_is_refused_like_any_other(serving: Any, name: str) -> None:
    async with serving() as server:
        assert (await server.client.get("/v1/models", headers={name: "http://a]b"})).status_code == 403


async def test_a_full_server_says_so_as_it_says_everything(serving: Any) -> None:
    body = {"messages": [{"role": "user", "content": "wait"}], "stream": True}
    async with (
        serving(limits=LimitsConfig(connections=1)) as server,
        server.client.stream("POST", "/v1/chat/completions", json=body) as answer,  # the only one there may be
        httpx.AsyncClient(base_url=server.url, timeout=60) as other,
    ):
        assert answer.status_code == 200
        refused = await other.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
        assert refused.json()["error"]["message"].endswith("try again shortly.")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["connection"] == "close"
        assert refused.headers["x-request-id"]
        assert (await other.get("/healthz")).json()["status"] == "ready"  # operators can still look
        assert 'route="/v1/models",status="503"' in (await other.get("/metrics")).text


@pytest.mark.parametrize(
    ("path", "route", "key"),
    [
        ("/v1/models", "/v1/models", "middleware"),
        ("/v1/models/org/name", "/v1/models/{name}", "middleware"),
        ("/v1/responses/resp_1/input_items", "/v1/responses/{response_id}", "middleware"),
        ("/v1/realtime/calls/rtc_1/hangup", "/v1/realtime/calls/{name}", "endpoint"),
        ("/v1/phone/twiml", "/v1/phone/twiml", "none"),
        ("/client/demo/index.html", "/client/{name}", "none"),
        ("/v1/voice", "other", "middleware"),
        ("/v1/nothing", "other", "middleware"),
        ("/nothing", "other", "none"),
    ],
)
def test_an_address_has_one_name_in_the_metrics_and_one_rule_for_keys(path: str, route: str, key: str) -> None:
    name, access = AccessTable(TABLE.accesses()).find(path)
    assert (name, access.key) == (route, key)
