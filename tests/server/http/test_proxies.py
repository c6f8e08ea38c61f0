"""Forwarded addresses: whom a request comes from, and who may say so."""

from __future__ import annotations

import ipaddress
import logging
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from peer import MANUAL, Peer
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from voxlane.server.config import Config, LimitsConfig, PhoneConfig, ServerConfig, VoiceConfig, load
from voxlane.server.errors import ConfigError
from voxlane.server.http.proxies import FORWARDED, TrustedProxies, address_of, client_address
from voxlane.server.limits import FORWARDED_HOPS

TRUSTED = ("127.0.0.1", "10.0.0.0/8", "fd00::/8")
CLIENT = "203.0.113.7"


def corrected(peer: str | None, headers: list[tuple[bytes, bytes]], kind: str = "http") -> dict[str, Any]:
    """Return the scope that the application sees."""
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope)

    scheme = "http" if kind == "http" else "ws"
    scope = {"type": kind, "client": peer and (peer, 1234), "scheme": scheme, "headers": headers}
    run = TrustedProxies(app, TRUSTED)(scope, None, None)  # type: ignore[arg-type]
    with pytest.raises(StopIteration):
        run.send(None)  # type: ignore[attr-defined]
    return seen


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        pytest.param("127.0.0.1", [CLIENT], CLIENT, id="one proxy"),
        pytest.param("::ffff:127.0.0.1", [CLIENT], CLIENT, id="an address in an address"),
        pytest.param("127.0.0.1", [f"{CLIENT}, 10.1.2.3"], CLIENT, id="two proxies"),
        pytest.param("127.0.0.1", [CLIENT, "10.1.2.3"], CLIENT, id="two proxies, two headers"),
        pytest.param("127.0.0.1", [f"1.1.1.1, {CLIENT}"], CLIENT, id="the client claims another address"),
        pytest.param("127.0.0.1", [f"127.0.0.1, {CLIENT}"], CLIENT, id="the client claims to be this machine"),
        pytest.param("127.0.0.1", ["10.9.9.9, 10.1.2.3"], "10.9.9.9", id="proxies all the way"),
        pytest.param("127.0.0.1", [f"{CLIENT}:4711"], CLIENT, id="with a port"),
        pytest.param("fd00::1", ["[2001:db8::7]:4711"], "2001:db8::7", id="IPv6 with a port"),
        pytest.param("127.0.0.1", ["2001:db8::7"], "2001:db8::7", id="IPv6"),
        pytest.param("127.0.0.1", [], "127.0.0.1", id="the proxy itself"),
        pytest.param("127.0.0.1", [f"{CLIENT}, unknown"], "127.0.0.1", id="the proxy does not know"),
        pytest.param("127.0.0.1", [f"{CLIENT}, evil, 10.0.0.1"], "10.0.0.1", id="nonsense in between"),
        pytest.param("127.0.0.1", [""], "127.0.0.1", id="empty"),
        pytest.param(CLIENT, ["10.1.2.3"], CLIENT, id="a client that claims to be a proxy's"),
        pytest.param(CLIENT, ["127.0.0.1"], CLIENT, id="a client that claims to be this machine"),
        pytest.param("-", [CLIENT], "-", id="no address"),
    ],
)
def test_whom_a_request_comes_from(peer: str, forwarded: list[str], client: str) -> None:
    headers = [(b"x-forwarded-for", one.encode()) for one in forwarded]
    scope = corrected(peer, headers)
    assert scope["client"][0] == client
    assert bool(scope.get(FORWARDED)) is (client not in (peer, "127.0.0.1"))


@pytest.mark.parametrize(
    ("peer", "kind", "told", "scheme"),
    [
        ("127.0.0.1", "http", b"https", "https"),
        ("127.0.0.1", "websocket", b"https", "wss"),
        ("127.0.0.1", "websocket", b"wss", "wss"),
        ("127.0.0.1", "http", b"http", "http"),
        ("127.0.0.1", "http", b"https, http", "http"),
        ("127.0.0.1", "http", b"gopher", "http"),
        (CLIENT, "http", b"https", "http"),
    ],
)
def test_whether_it_came_over_tls(peer: str, kind: str, told: bytes, scheme: str) -> None:
    assert corrected(peer, [(b"x-forwarded-proto", told)], kind)["scheme"] == scheme


def test_nothing_else_is_touched() -> None:
    assert corrected(None, [(b"x-forwarded-for", b"1.1.1.1")])["client"] is None
    assert "client" in corrected("127.0.0.1", [(b"x-forwarded-for", b"1.1.1.1")], "lifespan")


def test_a_long_list_costs_little() -> None:
    header = b"10.0.0.1," * 7000 + b"10.0.0.2"
    assert corrected("127.0.0.1", [(b"x-forwarded-for", header)])["client"][0] == "10.0.0.1"


ADDRESSES = st.one_of(st.ip_addresses(v=4).map(str), st.sampled_from(["10.0.0.1", "127.0.0.1", "fd00::9", "junk", ""]))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(ADDRESSES, max_size=30), st.ip_addresses())
def test_no_claim_of_a_client_changes_its_address(claims: list[str], real: Any) -> None:
    networks = [ipaddress.ip_network(one) for one in TRUSTED]
    real = address_of(str(real))
    peer = ipaddress.ip_address("127.0.0.1")
    found = client_address(peer, [*claims, str(real), "10.0.0.1"], networks)
    if not any(real in network for network in networks):
        assert found == real
    assert client_address(peer, ["10.0.0.1"] * (FORWARDED_HOPS + 5), networks) == ipaddress.ip_address("10.0.0.1")


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    found = address_of(text)
    assert found is None or address_of(str(found)) == found


def test_a_wrong_network_is_refused_at_start(tmp_path: Any) -> None:
    file = tmp_path / "voxlane.toml"
    file.write_text('[server]\ntrusted_proxies = ["10.0.0.0/8", "proxy.example"]\n')
    with pytest.raises(ConfigError, match=r"server\.trusted_proxies must be addresses and networks"):
        load(file)
    assert Config().server.trusted_proxies == ()


# ---- on a server

BEHIND = ServerConfig(trusted_proxies=("127.0.0.1",))


def come_from(address: str) -> dict[str, str]:
    return {"x-forwarded-for": address}


async def test_connections_count_for_the_client_behind_the_proxy(serving: Any) -> None:
    allowed = LimitsConfig(connections_per_address=1)
    async with serving(server=BEHIND, limits=allowed) as server:
        body = {"messages": [{"role": "user", "content": "wait"}], "stream": True}
        first = server.client.stream("POST", "/v1/chat/completions", json=body, headers=come_from(CLIENT))
        async with first as answer:
            assert answer.status_code == 200
            statuses = [
                (await server.client.get("/v1/models", headers=come_from(address))).status_code
                for address in (CLIENT, "203.0.113.8", CLIENT, f"{CLIENT}, 203.0.113.9")
            ]
            assert statuses == [503, 200, 503, 200]


async def test_conversations_count_for_the_client_behind_the_proxy(
    serving: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "voxlane")
    async with serving(server=BEHIND, voice=VoiceConfig(sessions_per_address=1)) as server:
        peers = [
            await Peer.open(server.url, MANUAL, additional_headers=come_from(address))
            for address in (CLIENT, "203.0.113.8")
        ]
        with pytest.raises(InvalidStatus) as refused:
            await Peer.open(server.url, MANUAL, additional_headers=come_from(CLIENT))
        assert refused.value.response.status_code == 503
        for peer in peers:
            await peer.bye()
    assert f"client={CLIENT}" in caplog.text


async def test_a_stranger_is_not_believed(serving: Any) -> None:
    untrusting = ServerConfig(trusted_proxies=("192.0.2.1",))
    async with serving(server=untrusting, voice=VoiceConfig(sessions_per_address=1)) as server:
        peer = await Peer.open(server.url, MANUAL, additional_headers=come_from(CLIENT))
        with pytest.raises(InvalidStatus):
            await Peer.open(server.url, MANUAL, additional_headers=come_from("203.0.113.8"))
        await peer.bye()


async def test_calls_have_their_own_address_behind_the_proxy(serving: Any) -> None:
    phone = PhoneConfig(sources=("203.0.113.0/24",))
    async with serving(server=ServerConfig(trusted_proxies=("127.0.0.1",), open=True), phone=phone) as server:
        address = server.url.replace("http", "ws", 1) + "/v1/phone"
        async with connect(address, additional_headers=come_from(CLIENT)):
            pass
        with pytest.raises(InvalidStatus) as refused:
            await connect(address, additional_headers=come_from("198.51.100.1"))
        assert refused.value.response.status_code == 403
