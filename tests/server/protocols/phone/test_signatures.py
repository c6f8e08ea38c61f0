"""Signatures of telephone systems: those of their own libraries are accepted, and nothing that differs in a byte."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from twilio.request_validator import RequestValidator

from voxlane.server.protocols.phone.genesys import GENESYS as SYSTEM
from voxlane.server.protocols.phone.genesys import genesys_nonce
from voxlane.server.protocols.phone.plivo import plivo_signed
from voxlane.server.protocols.phone.signing import CryptographyMissing, check_cryptography
from voxlane.server.protocols.phone.telnyx import telnyx_key, telnyx_signed
from voxlane.server.protocols.phone.twilio import twilio_signed
from voxlane.server.protocols.phone.vonage import vonage_signed

NOW = 1_800_000_000.0
TOKEN = "a-token-of-thirty-two-characters"
STREAM = "wss://example.org/v1/phone"
WEBHOOK = "https://example.org/v1/phone/twiml"
FORM = [("CallSid", "CA1"), ("From", "+4917012345678"), ("To", "+4930123456"), ("CallerName", "Jürgen & Söhne")]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def changed(text: str, place: int, char: str) -> str:
    """Return a text with another character at a place."""
    place %= len(text)
    assume(text[place] != char)
    return text[:place] + char + text[place + 1 :]


# ---- Twilio


def of_twilio(url: str, form: dict[str, str] | None = None, algorithm: str | None = None) -> str:
    signature: str = RequestValidator(TOKEN).compute_signature(url, form or {}, algorithm)
    return signature


def test_a_stream_that_twilio_signed_is_accepted() -> None:
    assert twilio_signed(TOKEN, STREAM, of_twilio(STREAM))


@pytest.mark.parametrize(
    "signed",
    [
        pytest.param("https://example.org/v1/phone", id="https instead of wss"),
        pytest.param("ws://example.org/v1/phone", id="ws instead of wss"),
        pytest.param("wss://example.org/v1/phone/", id="a slash at the end"),
        pytest.param("wss://example.com/v1/phone", id="another host"),
        pytest.param("wss://example.org:8443/v1/phone", id="another port"),
        pytest.param("wss://example.org:80/v1/phone", id="the port of ws"),
        pytest.param("wss://example.org/v1/phone?token=x", id="a query"),
    ],
)
def test_a_stream_under_another_url_is_refused(signed: str) -> None:
    assert not twilio_signed(TOKEN, STREAM, of_twilio(signed))
    assert not twilio_signed(TOKEN, signed, of_twilio(STREAM))


def test_the_standard_port_may_be_named_or_not() -> None:
    for url, named in ((STREAM, "wss://example.org:443/v1/phone"), (WEBHOOK, "https://example.org:443/v1/phone/twiml")):
        assert twilio_signed(TOKEN, url, of_twilio(named))
        assert twilio_signed(TOKEN, named, of_twilio(url))
    assert RequestValidator(TOKEN).validate(WEBHOOK, {}, of_twilio("https://example.org:443/v1/phone/twiml"))


def test_nothing_is_signed_with_nothing() -> None:
    assert not twilio_signed(TOKEN, STREAM, "")
    assert not twilio_signed(TOKEN, STREAM, "é")
    assert not twilio_signed("another token", STREAM, of_twilio(STREAM))


def test_a_form_is_signed_with_its_url() -> None:
    signature = of_twilio(WEBHOOK, dict(FORM))
    assert twilio_signed(TOKEN, WEBHOOK, signature, FORM)
    assert twilio_signed(TOKEN, WEBHOOK, signature, FORM[::-1])  # the order on the wire does not matter
    assert not twilio_signed(TOKEN, WEBHOOK, signature, FORM[1:])
    assert not twilio_signed(TOKEN, WEBHOOK, signature)
    assert not twilio_signed(TOKEN, f"{WEBHOOK}/", signature, FORM)
    with_query = f"{WEBHOOK}?a=1&b=%20"
    assert twilio_signed(TOKEN, with_query, of_twilio(with_query, dict(FORM)), FORM)
    assert not twilio_signed(TOKEN, f"{WEBHOOK}?a=1&b=+", of_twilio(with_query, dict(FORM)), FORM)


def test_a_field_that_comes_twice() -> None:
    class Repeated(dict[str, list[str]]):
        def getlist(self, name: str) -> list[str]:
            return self[name]

    signature = RequestValidator(TOKEN).compute_signature(WEBHOOK, Repeated({"b": ["2", "1", "1"], "a": ["x"]}))
    assert twilio_signed(TOKEN, WEBHOOK, signature, [("b", "2"), ("a", "x"), ("b", "1"), ("b", "1")])


def test_a_body_is_signed_by_its_hash_in_the_url() -> None:
    body = b'{"CallSid": "CA1"}'
    url = f"{WEBHOOK}?bodySHA256={hashlib.sha256(body).hexdigest()}"
    signature = of_twilio(url)
    assert RequestValidator(TOKEN).validate(url, body.decode(), signature)
    assert twilio_signed(TOKEN, url, signature, body=body)
    assert not twilio_signed(TOKEN, url, signature, body=body + b" ")
    assert not twilio_signed(TOKEN, WEBHOOK, of_twilio(WEBHOOK), body=body)  # a body that nothing covers


def test_the_algorithm_is_the_one_that_twilio_names() -> None:
    settings_header = "key=webhooks_sharedkey_1,algorithm=HMAC_SHA256"
    signature = of_twilio(WEBHOOK, dict(FORM), "HMAC_SHA256")
    assert twilio_signed(TOKEN, WEBHOOK, signature, FORM, settings=settings_header)
    assert not twilio_signed(TOKEN, WEBHOOK, signature, FORM)
    assert not twilio_signed(TOKEN, WEBHOOK, signature, FORM, settings="algorithm=HMAC_MD5")


@settings(max_examples=examples(200), deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
        st.text(st.characters(codec="utf-8"), max_size=12),
        max_size=6,
    ),
    st.text(LETTERS, max_size=10),
)
def test_we_agree_with_twilio_about_every_form(form: dict[str, str], path: str) -> None:
    url = f"https://example.org/{path}"
    assert twilio_signed(TOKEN, url, of_twilio(url, form), list(form.items()))


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(["url", "value", "signature"]), st.integers(0, 1000), st.sampled_from("abcXYZ019+/="))
def test_a_changed_byte_is_refused_for_twilio(part: str, place: int, char: str) -> None:
    url, form, signature = WEBHOOK, list(FORM), of_twilio(WEBHOOK, dict(FORM))
    if part == "url":
        start = len("https://example.org/")
        url = url[:start] + changed(url[start:], place, char)
    elif part == "value":
        name, value = form[place % len(form)]
        form[place % len(form)] = name, changed(value, place, char)
    else:
        signature = changed(signature, place, char)
    assert not twilio_signed(TOKEN, url, signature, form)


# ---- Telnyx

SIGNER = Ed25519PrivateKey.generate()
PUBLIC = base64.b64encode(SIGNER.public_key().public_bytes_raw()).decode()
BODY = b"CallSid=v3%3Aabc&From=%2B4917012345678&To=%2B4930123456"


def of_telnyx(body: bytes = BODY, at: float = NOW) -> tuple[str, str]:
    timestamp = str(int(at))
    return timestamp, base64.b64encode(SIGNER.sign(timestamp.encode() + b"|" + body)).decode()


def test_telnyx_signs_the_time_and_the_body() -> None:
    timestamp, signature = of_telnyx()
    assert telnyx_signed(PUBLIC, timestamp, signature, BODY, NOW)
    assert telnyx_signed(PUBLIC, *of_telnyx(b""), b"", NOW)
    other = base64.b64encode(Ed25519PrivateKey.generate().public_key().public_bytes_raw()).decode()
    assert not telnyx_signed(other, timestamp, signature, BODY, NOW)


def test_telnyx_signatures_are_good_for_five_minutes() -> None:
    timestamp, signature = of_telnyx()
    for away in (-300, 300):
        assert telnyx_signed(PUBLIC, timestamp, signature, BODY, NOW + away)
    for away in (-301, 301, 86400, -NOW):
        assert not telnyx_signed(PUBLIC, timestamp, signature, BODY, NOW + away)


@pytest.mark.parametrize("timestamp", ["", "soon", "-1", "1e9", "١٨٠٠٠٠٠٠٠٠", "9" * 400, " 1800000000"])
def test_a_time_that_is_none_is_refused(timestamp: str) -> None:
    signature = base64.b64encode(SIGNER.sign(timestamp.encode() + b"|" + BODY)).decode()
    assert not telnyx_signed(PUBLIC, timestamp, signature, BODY, NOW)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(["time", "body", "signature"]), st.integers(0, 1000), st.sampled_from("abcXYZ019+/= "))
def test_a_changed_byte_is_refused_for_telnyx(part: str, place: int, char: str) -> None:
    (timestamp, signature), body = of_telnyx(), BODY
    if part == "time":
        timestamp = changed(timestamp, place, char)
    elif part == "body":
        body = changed(body.decode(), place, char).encode()
    else:
        signature = changed(signature, place, char)  # also where base64 would still give the same bytes
    assert not telnyx_signed(PUBLIC, timestamp, signature, body, NOW)


def test_another_spelling_of_the_same_signature_is_refused() -> None:
    timestamp, signature = of_telnyx()
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    last = digits.index(signature[-3])  # four of its six bits mean nothing
    respelled = signature[:-3] + digits[last ^ 1] + "=="
    assert base64.b64decode(respelled) == base64.b64decode(signature)
    assert not telnyx_signed(PUBLIC, timestamp, respelled, BODY, NOW)


@settings(max_examples=examples(100), deadline=None)
@given(st.text(max_size=100), st.text(max_size=30))
def test_whatever_is_sent_instead_of_a_signature_is_refused(signature: str, timestamp: str) -> None:
    assert not telnyx_signed(PUBLIC, timestamp, signature, BODY, NOW)


def test_a_public_key_is_thirty_two_bytes() -> None:
    assert len(telnyx_key(PUBLIC)) == 32
    for wrong in ("", "secret", base64.b64encode(b"x" * 31).decode(), PUBLIC.rstrip("="), "é" * 32):
        with pytest.raises(ValueError, match="base64 of 32 bytes"):
            telnyx_key(wrong)


def test_without_its_library_the_check_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(CryptographyMissing):
        check_cryptography()
    with pytest.raises(CryptographyMissing):
        telnyx_signed(PUBLIC, *of_telnyx(), BODY, NOW)


# ---- Plivo: the right signatures are from Plivo's own library

PLIVO_URL = "https://example.org/v1/phone/plivo"
PLIVO_FORM = [("CallUUID", "c1"), ("From", "4917012345678"), ("To", "4930123456"), ("Direction", "inbound")]
PLIVO_NONCE = "05429567804466091622"


@pytest.mark.parametrize(
    ("method", "query", "form", "signature"),
    [
        ("POST", "", PLIVO_FORM, "XQTvDMcuAzw1gqThXIqwmIMBGlrSCJ/18KKzk57hvKU="),
        ("POST", "?b=2&a=1", PLIVO_FORM, "QJJEq+L+X7FGv1iH9Ygls6wfqqbzKm3FRFU7SBnOmUI="),
        ("POST", "?b=2&a=1", [], "3c7LaO2isnOVS1wocqk0d26YQW9oACJWBZ596FJ1bnc="),
        ("POST", "", [], "TVDbfOI1O7XYR7PHk9VxwNDghBO7xDEtoAgRdYnFX3M="),
        ("GET", "?b=2&a=1", [], "3c7LaO2isnOVS1wocqk0d26YQW9oACJWBZ596FJ1bnc="),
    ],
)
def test_plivo_signs_url_query_form_and_nonce(
    method: str, query: str, form: list[tuple[str, str]], signature: str
) -> None:
    def signed(*, nonce: str = PLIVO_NONCE, signatures: str = signature, token: str = "plivo-token") -> bool:
        return plivo_signed(token, method, PLIVO_URL + query, nonce, signatures, form[::-1])

    assert signed()
    assert signed(signatures=f"another, {signature}")
    assert not signed(nonce=PLIVO_NONCE[:-1])
    assert not signed(nonce="")
    assert not signed(signatures="")
    assert not signed(token="another")


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(["url", "value", "nonce", "signature"]), st.integers(0, 1000), st.sampled_from("abcXYZ019"))
def test_a_changed_byte_is_refused_for_plivo(part: str, place: int, char: str) -> None:
    url, nonce, form = PLIVO_URL, PLIVO_NONCE, list(PLIVO_FORM)
    signature = "XQTvDMcuAzw1gqThXIqwmIMBGlrSCJ/18KKzk57hvKU="
    if part == "url":
        start = len("https://example.org/")
        url = url[:start] + changed(url[start:], place, char)
    elif part == "value":
        name, value = form[place % len(form)]
        form[place % len(form)] = name, changed(value, place, char)
    elif part == "nonce":
        nonce = changed(nonce, place, char)
    else:
        signature = changed(signature, place, char)
    assert not plivo_signed("plivo-token", "POST", url, nonce, signature, form)


# ---- Vonage

SECRET = "a-signature-secret-of-more-than-the-64-characters-that-HS512-wants-to-have"
VONAGE_BODY = b'{"from":"4917012345678","to":"4930123456","conversation_uuid":"CON-1"}'


def of_vonage(secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    usual = {"iat": int(NOW), "jti": "1", "iss": "Vonage", "payload_hash": hashlib.sha256(VONAGE_BODY).hexdigest()}
    given = {name: value for name, value in (usual | claims).items() if value is not None}
    return jwt.encode(given, secret, algorithm=algorithm)


def test_vonage_signs_a_token_for_the_body() -> None:
    assert vonage_signed(SECRET, of_vonage(), NOW, body=VONAGE_BODY)
    assert vonage_signed(SECRET, of_vonage(exp=int(NOW) + 60), NOW, body=VONAGE_BODY)
    assert not vonage_signed(SECRET, of_vonage(), NOW, body=VONAGE_BODY + b" ")
    assert not vonage_signed(SECRET, of_vonage("another-secret-of-more-than-32-characters"), NOW, body=VONAGE_BODY)
    assert not vonage_signed(SECRET, of_vonage(payload_hash=None), NOW, body=VONAGE_BODY)
    assert not vonage_signed(SECRET, of_vonage(payload_hash=7), NOW, body=VONAGE_BODY)


def test_a_token_for_a_query() -> None:
    query = [("from", "4917012345678"), ("to", "4930123456")]
    as_json = b'{"from":"4917012345678","to":"4930123456"}'
    token = of_vonage(payload_hash=hashlib.sha256(as_json).hexdigest())
    assert vonage_signed(SECRET, token, NOW, query=query)
    assert not vonage_signed(SECRET, token, NOW, query=query[::-1])
    for empty in (None, hashlib.sha256(b"").hexdigest()):
        assert vonage_signed(SECRET, of_vonage(payload_hash=empty), NOW, query=query)
        assert not vonage_signed(SECRET, of_vonage(payload_hash=empty), NOW, body=VONAGE_BODY)


@pytest.mark.parametrize(
    "claims",
    [{"iat": None}, {"iat": int(NOW) - 301}, {"iat": int(NOW) + 301}, {"iat": True}, {"exp": int(NOW) - 1}],
    ids=str,
)
def test_a_token_of_another_time_is_refused(claims: dict[str, Any]) -> None:
    assert not vonage_signed(SECRET, of_vonage(**claims), NOW, body=VONAGE_BODY)


def test_only_one_algorithm_is_accepted() -> None:
    for algorithm in ("HS384", "HS512"):
        assert not vonage_signed(SECRET, of_vonage(algorithm=algorithm), NOW, body=VONAGE_BODY)
    unsigned = jwt.encode({"iat": int(NOW)}, "", algorithm="none")
    assert not vonage_signed(SECRET, unsigned, NOW)
    # The right signature, on a head that names another algorithm.
    parts = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in ({"alg": "none"}, {"iat": NOW})]
    mac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(b".".join(parts), SECRET.encode())
    forged = b".".join([*parts, base64.urlsafe_b64encode(mac).rstrip(b"=")]).decode()
    assert not vonage_signed(SECRET, forged, NOW)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(["token", "body"]), st.integers(0, 1000), st.sampled_from("abcXYZ019-_=."))
def test_a_changed_byte_is_refused_for_vonage(part: str, place: int, char: str) -> None:
    token, body = of_vonage(), VONAGE_BODY
    if part == "token":
        token = changed(token, place, char)
    else:
        body = changed(body.decode(), place, char).encode()
    assert not vonage_signed(SECRET, token, NOW, body=body)


@settings(max_examples=examples(100), deadline=None)
@given(st.text())
def test_a_text_that_is_no_token_is_refused(token: str) -> None:
    assert not vonage_signed(SECRET, token, NOW)


# ---- Genesys: the example in its documentation

CLIENT_SECRET = "TXlTdXBlclNlY3JldEtleVRlbGxOby0xITJAMyM0JDU="
GENESYS_NOW = 1_641_013_205.0
GENESYS: dict[str, str] = {
    "host": "audiohook.example.com",
    "audiohook-organization-id": "d7934305-0972-4844-938e-9060eef73d05",
    "audiohook-correlation-id": "e160e428-53e2-487c-977d-96989bf5c99d",
    "audiohook-session-id": "30b0e395-84d3-4570-ac13-9a62d8f514c0",
    "x-api-key": "SGVsbG8sIEkgYW0gdGhlIEFQSSBrZXkh",
    "signature": "sig1=:NZBwyBHRRyRoeLqy1IzOa9VYBuI8TgMFt2GRDkDuJh4=:",
    "signature-input": 'sig1=("@request-target" "@authority" "audiohook-organization-id" "audiohook-session-id"'
    ' "audiohook-correlation-id" "x-api-key");keyid="SGVsbG8sIEkgYW0gdGhlIEFQSSBrZXkh"'
    ';nonce="VGhpc0lzQVVuaXF1ZU5vbmNl";alg="hmac-sha256";created=1641013200;expires=3282026430',
}
TARGET, AUTHORITY = "/api/v1/voicebiometrics/ws", "audiohook.example.com"


def genesys(headers: dict[str, str] | None = None, **others: Any) -> str:
    usual: dict[str, Any] = {"request_target": TARGET, "authority": AUTHORITY, "now": GENESYS_NOW}
    return genesys_nonce(others.pop("secret", CLIENT_SECRET), headers or GENESYS, **(usual | others))


def test_the_example_of_genesys_is_right() -> None:
    assert genesys() == "VGhpc0lzQVVuaXF1ZU5vbmNl"


@pytest.mark.parametrize(
    "others",
    [
        {"request_target": "/v1/phone"},
        {"request_target": f"{TARGET}?a=b"},
        {"authority": "audiohook.example.com:443"},
        {"now": GENESYS_NOW + 301},
        {"now": GENESYS_NOW - 320},
        {"secret": "TXlTdXBlclNlY3JldEtleVRlbGxOby0xITJAMyM0JDY="},
        {"secret": ""},
        {"secret": "not base64"},
    ],
    ids=str,
)
def test_another_address_time_or_secret_is_refused(others: dict[str, Any]) -> None:
    assert genesys(**others) == ""


def signed_again(change: Callable[[str], str], headers: dict[str, str] | None = None) -> dict[str, str]:
    """Return the example with another signature-input, signed with the right secret."""
    found = dict(headers or GENESYS)
    found["signature-input"] = change(found["signature-input"])
    label, _, rest = found["signature-input"].partition("=")
    names = rest[1 : rest.index(")")].replace('"', "").split(" ")
    values = {"@request-target": TARGET, "@authority": AUTHORITY, **found}
    text = "\n".join([*(f'"{name}": {values.get(name, "")}' for name in names), f'"@signature-params": {rest}'])
    mac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(
        text.encode(), base64.b64decode(CLIENT_SECRET)
    )
    return found | {"signature": f"{label}=:{base64.b64encode(mac).decode()}:"}


def test_a_signature_must_cover_everything_and_be_of_now() -> None:
    assert genesys(signed_again(lambda text: text))
    assert genesys(signed_again(lambda text: text.replace('"x-api-key")', '"x-api-key" "host")')))
    wrong: list[Callable[[str], str]] = [
        lambda text: text.replace(' "@authority"', ""),
        lambda text: text.replace(' "x-api-key"', ""),
        lambda text: text.replace('"x-api-key")', '"x-api-key" "no-such-header")'),
        lambda text: text.replace('"x-api-key")', '"x-api-key" "@method")'),
        lambda text: text.replace("hmac-sha256", "hmac-sha512"),
        lambda text: text.replace("created=1641013200", "created=1641012000"),
        lambda text: text.replace(";created=1641013200", ""),
        lambda text: text.replace("expires=3282026430", "expires=1641013204"),
        lambda text: text.replace("VGhpc0lzQVVuaXF1ZU5vbmNl", "short"),
        lambda text: text.replace('keyid="SGVs', 'keyid="aGVs'),
        lambda text: f"{text}, sig2=()",
    ]
    for change in wrong:
        assert change(GENESYS["signature-input"]) != GENESYS["signature-input"]
        assert genesys(signed_again(change)) == ""


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(sorted(set(GENESYS) - {"host"})), st.integers(0, 1000), st.sampled_from('abcXYZ019+/=":;'))
def test_a_changed_byte_is_refused_for_genesys(name: str, place: int, char: str) -> None:
    assert genesys(GENESYS | {name: changed(GENESYS[name], place, char)}) == ""


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.sampled_from(["signature", "signature-input", "x-api-key"]), st.text()))
def test_whatever_the_headers_hold_it_is_refused(headers: dict[str, str]) -> None:
    assert genesys({"audiohook-session-id": "1"} | headers) == ""


def test_a_client_secret_is_base64() -> None:
    assert SYSTEM.key is not None
    SYSTEM.key.check(CLIENT_SECRET)
    for wrong in ("secret!", ""):
        with pytest.raises(ValueError, match="base64"):
            SYSTEM.key.check(wrong)
