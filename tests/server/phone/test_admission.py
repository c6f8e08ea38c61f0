"""Which calls are taken: signatures, passes, keys, sources and origins, at the handshake and at the start."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import sys
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import HTTPConnection
from twilio.request_validator import RequestValidator

from voxlane.codecs.extras import install_command
from voxlane.server.config import Config, PhoneConfig, PhoneKeys, ServerConfig, VoiceConfig
from voxlane.server.errors import ConfigError, Forbidden, InvalidRequest, Unauthorized
from voxlane.server.phone.admission import LineAdmission, PhoneAdmission
from voxlane.server.phone.passes import NextSteps, Passes
from voxlane.server.phone.phone_keys import check_keys, read_phone_keys
from voxlane.server.protocols.phone.line_events import CallFacts
from voxlane.server.protocols.phone.systems import SYSTEMS
from voxlane.server.tenants.accounts import Tenants

PUBLIC = "https://example.org"
STREAM = "wss://example.org/v1/phone"
TOKEN, KEY, API_KEY = "twilio-token", "phone-key", "api-key"
KNOWN = CallFacts("twilio", "CA1", "+4917012345678", "+4930123456")
STARTED = CallFacts("twilio", "CA-of-start", "", "", {"shop": "7"})
FAR = "203.0.113.7"


def house(
    keys: PhoneKeys | None = None, *, api_key: str = "", now: float = 1_800_000_000.0, open: bool = False, **phone: Any
) -> PhoneAdmission:
    config = Config(
        server=ServerConfig(open=open), voice=VoiceConfig(origins=("https://page.example",)), phone=PhoneConfig(**phone)
    )
    return PhoneAdmission(config, keys or PhoneKeys(), Tenants(api_key), Passes(), NextSteps(), lambda: now)


def ring(query: str = "", client: str | None = FAR, path: str = "/v1/phone", **headers: str) -> HTTPConnection:
    """Return a handshake; a header's name has _ for -."""
    named = {"host": "10.0.0.1:8000"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return HTTPConnection(
        {
            "type": "websocket",
            "scheme": "ws",
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()],
            "client": None if client is None else (client, 4000),
        }
    )


def of_twilio(url: str, token: str = TOKEN, **form: str) -> str:
    signature: str = RequestValidator(token).compute_signature(url, form)
    return signature


# ---- open lines


def test_a_server_without_keys_takes_calls_of_its_own_machine() -> None:
    for client in ("127.0.0.1", "::1"):
        admission = house().check_handshake(ring(client=client))
        assert admission.keyed
        assert house().check_start(admission, STARTED) == STARTED


def test_it_takes_no_others_without_a_token() -> None:
    for client in (FAR, "10.0.0.2", None):
        door = house()
        admission = door.check_handshake(ring(client=client))
        assert not admission.keyed
        with pytest.raises(Unauthorized):
            door.check_start(admission, STARTED)


def test_with_a_public_address_its_own_machine_may_be_a_tunnel() -> None:
    door = house(public_url=PUBLIC)
    admission = door.check_handshake(ring(client="127.0.0.1"))
    assert not admission.keyed


def test_an_operator_may_open_it_to_all() -> None:
    door = house(open=True, public_url=PUBLIC)
    assert door.check_handshake(ring()).keyed
    assert not house(PhoneKeys(phone=KEY), open=True).check_handshake(ring()).keyed


@pytest.mark.parametrize(
    "keys", [PhoneKeys(phone=KEY), PhoneKeys(systems={"twilio": TOKEN}), PhoneKeys(systems={"vonage": "s"})], ids=str
)
def test_any_key_closes_it(keys: PhoneKeys) -> None:
    assert not house(keys).check_handshake(ring(client="127.0.0.1")).keyed
    assert not house(api_key=API_KEY).check_handshake(ring(client="127.0.0.1")).keyed


def test_on_an_open_line_a_token_may_be_any_and_a_pass_tells_all_the_same() -> None:
    door = house()
    local = ring(client="127.0.0.1")
    assert door.check_start(door.check_handshake(local), replace(STARTED, token="whatever")) == STARTED
    assert door.check_handshake(ring("token=whatever", client="127.0.0.1")).keyed
    told = door.check_start(door.check_handshake(local), replace(STARTED, token=door.passes.issue(KNOWN)))
    assert (told.call_id, told.caller) == ("CA1", "+4917012345678")


# ---- pages


def test_a_page_of_another_site_cannot_ring() -> None:
    for door in (house(), house(PhoneKeys(phone=KEY))):
        for origin in ("https://evil.example", "null", "file://", "http://a]b"):
            with pytest.raises(Forbidden, match="origin"):
                door.check_handshake(ring(f"token={KEY}", client="127.0.0.1", origin=origin))
        assert door.check_handshake(ring(f"token={KEY}", client="127.0.0.1", origin="https://page.example"))


def test_a_name_made_ours_cannot_ring_an_open_server() -> None:
    headers = {"host": "evil.example:8000", "origin": "http://evil.example:8000"}
    with pytest.raises(Forbidden):
        house().check_handshake(ring(client="127.0.0.1", **headers))
    assert house(PhoneKeys(phone=KEY)).check_handshake(ring(f"token={KEY}", **headers)).keyed


# ---- sources


@pytest.mark.parametrize("client", ["203.0.113.7", "10.9.9.9", "2001:db8::1", "::ffff:203.0.113.7"])
def test_calls_come_from_where_they_may(client: str) -> None:
    door = house(PhoneKeys(phone=KEY), sources=("203.0.113.7", "10.0.0.0/8", "2001:db8::/32"))
    assert door.check_handshake(ring(f"token={KEY}", client=client)).keyed
    assert not door.check_handshake(ring(client=client)).keyed  # the address alone opens nothing


@pytest.mark.parametrize("client", ["203.0.113.8", "127.0.0.1", "2001:db9::1", "::1", "-", None, "fe80::1%eth0"])
def test_calls_come_from_nowhere_else(client: str | None) -> None:
    door = house(PhoneKeys(phone=KEY), sources=("203.0.113.7", "10.0.0.0/8", "2001:db8::/32"))
    with pytest.raises(Forbidden, match=r"phone\.sources"):
        door.check_handshake(ring(f"token={KEY}", client=client))
    with pytest.raises(Forbidden, match=r"phone\.sources"):
        door.check_audiosocket(client or "-")


def test_an_audiosocket_has_its_address_alone() -> None:
    door = house(PhoneKeys(phone=KEY), sources=("203.0.113.7",))
    facts = CallFacts("audiosocket", "uuid")
    assert door.check_start(door.check_audiosocket(FAR), facts) == facts
    assert house(PhoneKeys(phone=KEY)).check_audiosocket("127.0.0.1").keyed


# ---- tokens in the handshake


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"voxlane:{password}".encode()).decode()


@pytest.mark.parametrize(
    "given",
    [
        {"query": "token={}"},
        {"query": "a=b&token={}"},
        {"authorization": "Bearer {}"},
        {"authorization": "bearer  {}"},
        {"x_api_key": "{}"},
        {"authorization": "basic"},
    ],
    ids=str,
)
def test_a_token_may_come_in_many_places(given: dict[str, str]) -> None:
    def offered(token: str) -> dict[str, str]:
        return {name: basic(token) if value == "basic" else value.format(token) for name, value in given.items()}

    door = house(PhoneKeys(phone=KEY))
    assert door.check_handshake(ring(**offered(KEY))) == LineAdmission(keyed=True)
    assert door.check_start(LineAdmission(keyed=True), STARTED) == STARTED
    token = door.passes.issue(KNOWN)
    admission = door.check_handshake(ring(**offered(token)))
    assert admission.known == KNOWN
    for wrong in (token, f"{KEY}x", KEY[:-1], "é"):
        with pytest.raises(Unauthorized):
            door.check_handshake(ring(**offered(wrong)))


def test_without_a_phone_key_no_empty_token_is_right() -> None:
    door = house(PhoneKeys(systems={"twilio": TOKEN}))
    for empty in ({"query": "token="}, {"authorization": "Bearer "}, {"authorization": basic("")}, {"x_api_key": ""}):
        assert not door.check_handshake(ring(**empty)).keyed
    with pytest.raises(Unauthorized):
        door.check_start(LineAdmission(keyed=False), replace(STARTED, token=""))


def test_the_api_key_is_taken_where_clients_send_it() -> None:
    door = house(api_key=API_KEY)
    admitted = door.check_handshake(ring(authorization=f"Bearer {API_KEY}"))
    assert admitted.keyed
    assert admitted.account is not None  # the call counts for the tenant of the key
    assert admitted.account.name == "default"
    for elsewhere in ({"query": f"token={API_KEY}"}, {"x_api_key": API_KEY}, {"authorization": basic(API_KEY)}):
        with pytest.raises(Unauthorized):
            door.check_handshake(ring(**elsewhere))
    with pytest.raises(Unauthorized):
        door.check_start(door.check_handshake(ring()), replace(STARTED, token=API_KEY))


@settings(max_examples=examples(100), deadline=None)
@given(st.text(st.characters(max_codepoint=255)), st.text(max_size=20))
def test_whatever_the_headers_hold_they_open_nothing(authorization: str, token: str) -> None:
    door = house(PhoneKeys(phone=KEY), api_key=API_KEY)
    with pytest.raises(Unauthorized):
        door.check_start(door.check_handshake(ring(authorization=authorization)), replace(STARTED, token=token))


# ---- tokens with the start


def test_a_token_may_come_with_the_start() -> None:
    door = house(PhoneKeys(phone=KEY))
    admission = door.check_handshake(ring())
    assert not admission.keyed
    assert door.check_start(admission, replace(STARTED, token=KEY)) == STARTED
    assert door.check_start(admission, replace(STARTED, token=door.passes.issue(KNOWN))) == replace(
        STARTED, call_id="CA1", caller="+4917012345678", called="+4930123456"
    )
    for wrong in ("", "x", KEY[:-1], f"{KEY} "):
        with pytest.raises(Unauthorized):
            door.check_start(admission, replace(STARTED, token=wrong))


def test_a_pass_of_a_start_is_good_once() -> None:
    door = house(PhoneKeys(phone=KEY))
    token = door.passes.issue(KNOWN)
    facts = replace(STARTED, token=token)
    door.check_start(door.check_handshake(ring()), facts)
    with pytest.raises(Unauthorized, match="used before"):
        door.check_start(door.check_handshake(ring()), facts)
    with pytest.raises(Unauthorized):
        door.check_handshake(ring(f"token={token}"))


def test_a_pass_in_both_places_counts_once() -> None:
    door = house(PhoneKeys(phone=KEY))
    token = door.passes.issue(KNOWN)
    admission = door.check_handshake(ring(f"token={token}"))
    assert door.check_start(admission, replace(STARTED, token=token)).call_id == "CA1"


def test_what_a_pass_does_not_know_the_start_may_tell() -> None:
    door = house(PhoneKeys(phone=KEY))
    token = door.passes.issue(CallFacts("telnyx"))
    facts = CallFacts("telnyx", "v3:1", "+1", "+2", {}, token)
    assert door.check_start(LineAdmission(keyed=False), facts) == replace(facts, token="")


# ---- Twilio's signature


def test_a_handshake_that_twilio_signed() -> None:
    door = house(PhoneKeys(systems={"twilio": TOKEN}), public_url=PUBLIC)
    admission = door.check_handshake(ring(x_twilio_signature=of_twilio(STREAM)))
    assert admission == LineAdmission(keyed=True)
    assert door.check_start(admission, STARTED) == STARTED
    assert door.check_handshake(ring(x_signalwire_signature=of_twilio(STREAM))).keyed


def test_a_signed_call_with_a_used_pass_is_a_replay() -> None:
    door = house(PhoneKeys(systems={"twilio": TOKEN}), public_url=PUBLIC)
    handshake = ring(x_twilio_signature=of_twilio(STREAM))
    facts = replace(STARTED, token=door.passes.issue(KNOWN))
    assert door.check_start(door.check_handshake(handshake), facts).caller == KNOWN.caller
    with pytest.raises(Unauthorized, match="used before"):
        door.check_start(door.check_handshake(handshake), facts)


@pytest.mark.parametrize(
    ("public_url", "signed"),
    [
        ("https://example.org", "wss://example.org/v1/phone"),
        ("https://example.org/", "wss://example.org/v1/phone"),
        ("https://example.org/voice", "wss://example.org/voice/v1/phone"),
        ("https://example.org:8443", "wss://example.org:8443/v1/phone"),
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/phone"),
    ],
)
def test_behind_a_proxy_the_configured_address_counts(public_url: str, signed: str) -> None:
    door = house(PhoneKeys(systems={"twilio": TOKEN}), public_url=public_url)
    handshake = ring(host="127.0.0.1:8000", x_forwarded_host="evil.example", x_twilio_signature=of_twilio(signed))
    assert door.check_handshake(handshake).keyed
    assert door.stream_url(handshake) == signed


@pytest.mark.parametrize(
    "signed",
    ["https://example.org/v1/phone", "wss://example.org/v1/phone/", "ws://10.0.0.1:8000/v1/phone", "wss://example.org"],
)
def test_a_signature_for_another_address_is_refused(signed: str) -> None:
    door = house(PhoneKeys(phone=KEY, systems={"twilio": TOKEN}), public_url=PUBLIC)
    with pytest.raises(Forbidden, match="signature"):
        door.check_handshake(ring(x_twilio_signature=of_twilio(signed)))
    with pytest.raises(Forbidden, match="signature"):  # a right key does not make a wrong signature right
        door.check_handshake(ring(f"token={KEY}", x_twilio_signature=of_twilio(signed)))


def test_without_twilios_token_its_signature_says_nothing() -> None:
    door = house(PhoneKeys(phone=KEY), public_url=PUBLIC)
    assert not door.check_handshake(ring(x_twilio_signature=of_twilio(STREAM))).keyed


def test_without_a_public_address_the_host_counts() -> None:
    door = house(PhoneKeys(systems={"twilio": TOKEN}))
    assert door.check_handshake(ring(x_twilio_signature=of_twilio("ws://10.0.0.1:8000/v1/phone"))).keyed
    for host in ("", "a b", "a:b:c", "[", "a/b", "a?b", "x@y"):
        with pytest.raises(InvalidRequest, match="Host"):
            door.check_handshake(ring(host=host, x_twilio_signature="x"))


# ---- Genesys

GENESYS = {
    "audiohook_organization_id": "d7934305-0972-4844-938e-9060eef73d05",
    "audiohook_correlation_id": "e160e428-53e2-487c-977d-96989bf5c99d",
    "audiohook_session_id": "30b0e395-84d3-4570-ac13-9a62d8f514c0",
    "x_api_key": KEY,
}
SECRET = base64.b64encode(b"a client secret").decode()


def of_genesys(now: float, target: str = "/v1/phone", nonce: str = "n" * 22) -> dict[str, str]:
    names = ["@request-target", "@authority", *(name.replace("_", "-") for name in GENESYS)]
    values = [target, "example.org", *GENESYS.values()]
    listed = " ".join(f'"{name}"' for name in names)
    parameters = f'({listed});keyid="{KEY}";nonce="{nonce}";alg="hmac-sha256";created={int(now)}'
    lines = [f'"{name}": {value}' for name, value in zip(names, values, strict=True)]
    text = "\n".join([*lines, f'"@signature-params": {parameters}'])
    mac = base64.b64encode(hmac.new(base64.b64decode(SECRET), text.encode(), hashlib.sha256).digest()).decode()
    return {**GENESYS, "signature_input": f"sig1={parameters}", "signature": f"sig1=:{mac}:"}


def test_a_handshake_that_genesys_signed_is_good_once() -> None:
    door = house(PhoneKeys(phone=KEY, systems={"genesys": SECRET}), public_url=PUBLIC)
    headers = of_genesys(1_800_000_000.0)
    admission = door.check_handshake(ring(**headers))
    assert door.check_start(admission, STARTED) == STARTED
    with pytest.raises(Forbidden, match="used before"):
        door.check_handshake(ring(**headers))
    assert door.check_handshake(ring(**of_genesys(1_800_000_000.0, nonce="m" * 22))).keyed


def test_what_genesys_did_not_sign_is_refused() -> None:
    door = house(PhoneKeys(phone=KEY, systems={"genesys": SECRET}), public_url=PUBLIC)
    now = 1_800_000_000.0
    for headers in (
        GENESYS,
        of_genesys(now - 301),
        of_genesys(now, "/v1/phone?a=b"),
        of_genesys(now) | {"signature": ""},
    ):
        with pytest.raises(Forbidden):
            door.check_handshake(ring(**headers))
    with pytest.raises(Unauthorized):
        door.check_handshake(ring(**(of_genesys(now) | {"x_api_key": "another"})))
    assert door.check_handshake(ring("a=b", **of_genesys(now, "/v1/phone?a=b"))).keyed


def test_without_a_phone_key_no_api_key_of_genesys_is_right() -> None:
    door = house(PhoneKeys(systems={"genesys": SECRET}), public_url=PUBLIC)
    for key in ("", KEY):
        with pytest.raises(Unauthorized):
            door.check_handshake(ring(**(of_genesys(1_800_000_000.0) | {"x_api_key": key})))


def test_without_the_client_secret_the_api_key_is_enough() -> None:
    assert house(PhoneKeys(phone=KEY)).check_handshake(ring(**GENESYS)).keyed
    with pytest.raises(Unauthorized):
        house(PhoneKeys(phone="another")).check_handshake(ring(**GENESYS))


# ---- keys and configuration

TELNYX = base64.b64encode(Ed25519PrivateKey.generate().public_key().public_bytes_raw()).decode()


@pytest.mark.parametrize(
    ("keys", "phone", "says"),
    [
        (PhoneKeys(systems={"twilio": "x"}), {}, r"phone\.public_url must be given with VOXLANE_TWILIO_TOKEN"),
        (PhoneKeys(systems={"plivo": "x"}), {}, r"phone\.public_url must be given with VOXLANE_PLIVO_TOKEN"),
        (PhoneKeys(systems={"vonage": "x"}), {}, r"phone\.public_url must be given with VOXLANE_VONAGE_SECRET"),
        (PhoneKeys(systems={"telnyx": TELNYX}), {}, r"phone\.public_url must be given with VOXLANE_TELNYX_KEY"),
        (PhoneKeys(), {"public_url": PUBLIC}, r"phone\.public_url is given: one of VOXLANE_PHONE_KEY, .* must be set"),
        (
            PhoneKeys(systems={"telnyx": "x"}),
            {"public_url": PUBLIC},
            r"VOXLANE_TELNYX_KEY: the public key is the base64 of 32 bytes",
        ),
        (PhoneKeys(phone="x", systems={"genesys": "x"}), {}, r"VOXLANE_GENESYS_SECRET: the client secret is base64"),
        (PhoneKeys(systems={"genesys": SECRET}), {}, r"VOXLANE_GENESYS_SECRET needs VOXLANE_PHONE_KEY"),
    ],
)
def test_keys_that_cannot_be_used_are_named(keys: PhoneKeys, phone: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        check_keys(Config(phone=PhoneConfig(**phone)), keys, Tenants())
    for secret in filter(None, (keys.systems.get("telnyx"), keys.systems.get("genesys"))):
        assert len(secret) < 2 or secret not in str(caught.value)


def test_keys_that_can_be_used() -> None:
    public = Config(phone=PhoneConfig(public_url=PUBLIC))
    check_keys(Config(), PhoneKeys(), Tenants())
    check_keys(Config(), PhoneKeys(phone=KEY), Tenants())
    check_keys(public, PhoneKeys(), Tenants(API_KEY))
    check_keys(
        public,
        PhoneKeys(phone=KEY, systems={"twilio": "x", "telnyx": TELNYX, "plivo": "x", "vonage": "x", "genesys": SECRET}),
        Tenants(),
    )
    check_keys(replace(public, server=ServerConfig(open=True)), PhoneKeys(), Tenants())


def test_telnyx_needs_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(ConfigError, match=re.escape(install_command("phone"))):
        check_keys(Config(phone=PhoneConfig(public_url=PUBLIC)), PhoneKeys(systems={"telnyx": TELNYX}), Tenants())


def test_telephone_keys_are_read_by_their_names_and_never_shown() -> None:
    asked: list[str] = []

    def read(variable: str) -> str:
        asked.append(variable)
        return f"secret of {variable}"

    found = read_phone_keys(read)
    assert found.systems["vonage"] == "secret of VOXLANE_VONAGE_SECRET"
    assert found.phone == "secret of VOXLANE_PHONE_KEY"
    assert asked[0] == "VOXLANE_PHONE_KEY"
    assert set(asked[1:]) == {system.key.variable for system in SYSTEMS.values() if system.key}
    assert "secret" not in f"{found!r} {found} {[found]}"
    assert found
    assert not PhoneKeys()
    assert PhoneKeys(systems={"genesys": "x"})
