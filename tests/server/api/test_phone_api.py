"""Documents over HTTP: which requests are answered, what the answers hold, and what is never read or logged."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode
from xml.etree.ElementTree import fromstring

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from peer import eventually
from phone_caller import calling
from starlette.applications import Starlette
from starlette.middleware import Middleware
from twilio.request_validator import RequestValidator
from websockets.exceptions import InvalidStatus

from voxlane.server.api.endpoint import RouteTable
from voxlane.server.api.phone import ADDRESSES, PhoneDesk
from voxlane.server.config import Config, PhoneConfig, PhoneKeys
from voxlane.server.http.middleware import HttpMiddleware
from voxlane.server.phone.admission import PhoneAdmission
from voxlane.server.phone.passes import NextSteps, Passes
from voxlane.server.tenants.accounts import Tenants
from voxlane.server.watching.metrics import Metrics

PUBLIC = "https://example.org"
SIGNER = Ed25519PrivateKey.generate()
VONAGE_SECRET = "a-signature-secret-of-more-than-32-characters"
SINCH_SECRET = base64.b64encode(b"the application's secret").decode()
KEYS = PhoneKeys(
    phone="phone-key",
    systems={
        "twilio": "twilio-token",
        "telnyx": base64.b64encode(SIGNER.public_key().public_bytes_raw()).decode(),
        "plivo": "plivo-token",
        "vonage": VONAGE_SECRET,
        "sinch": SINCH_SECRET,
    },
)
CALL = {"CallSid": "CA1", "From": "+4917012345678", "To": "+4930123456"}


@dataclass(slots=True)
class Desk:
    """The documents of a server, and a client of theirs."""

    admission: PhoneAdmission
    metrics: Metrics
    client: httpx.AsyncClient


@asynccontextmanager
async def desk(
    keys: PhoneKeys = KEYS, *, api_key: str = "sesame", public_url: str = PUBLIC, client: str = "203.0.113.7"
) -> AsyncIterator[Desk]:
    config = Config(phone=PhoneConfig(public_url=public_url))
    admission = PhoneAdmission(config, keys, Tenants(api_key), Passes(), NextSteps())
    metrics = Metrics()
    table = RouteTable(ADDRESSES, ())
    options = {"config": config, "metrics": metrics, "tenants": Tenants(api_key), "open_connections": lambda: 0}
    middleware = Middleware(HttpMiddleware, **options, accesses=table.accesses())
    app = Starlette(routes=table.routes(), middleware=[middleware])
    app.state.phone_desk = PhoneDesk(config, admission)
    transport = httpx.ASGITransport(app, client=(client, 4000))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        yield Desk(admission, metrics, http)


def by_twilio(path: str, form: dict[str, str]) -> dict[str, str]:
    return {"X-Twilio-Signature": RequestValidator(KEYS.systems["twilio"]).compute_signature(PUBLIC + path, form)}


def by_telnyx(body: bytes, at: float | None = None) -> dict[str, str]:
    timestamp = str(int(time.time() if at is None else at))
    signature = base64.b64encode(SIGNER.sign(timestamp.encode() + b"|" + body)).decode()
    kind = "application/x-www-form-urlencoded"
    return {"telnyx-timestamp": timestamp, "telnyx-signature-ed25519": signature, "content-type": kind}


def by_vonage(body: bytes, jti: str = "1") -> dict[str, str]:
    claims = {"iat": int(time.time()), "jti": jti, "payload_hash": hashlib.sha256(body).hexdigest()}
    token = jwt.encode(claims, VONAGE_SECRET, algorithm="HS256")
    return {"authorization": f"Bearer {token}", "content-type": "application/json"}


def by_sinch(body: bytes) -> dict[str, str]:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    digest = base64.b64encode(hashlib.md5(body).digest()).decode()
    text = f"POST\n{digest}\napplication/json\nx-timestamp:{stamp}\n/v1/phone/sinch"
    mac = base64.b64encode(hmac.new(base64.b64decode(SINCH_SECRET), text.encode(), hashlib.sha256).digest()).decode()
    return {"authorization": f"application KEY:{mac}", "x-timestamp": stamp, "content-type": "application/json"}


# ---- Twilio


async def test_a_call_of_twilio_is_connected_with_a_pass() -> None:
    async with desk() as server:
        path = "/v1/phone/twiml"
        answer = await server.client.post(path, data=CALL, headers=by_twilio(path, CALL))
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/xml")
        assert answer.headers["cache-control"] == "no-store"
        connect = fromstring(answer.content)[0]
        assert connect[0].get("url") == "wss://example.org/v1/phone"
        known = server.admission.passes.redeem(connect[0][0].get("value", ""))
        assert known is not None
        assert (known.system, known.call_id, known.caller, known.called) == ("twilio", *CALL.values())
        action = connect.get("action", "")
        assert action.startswith("https://example.org/v1/phone/twiml/next?ticket=")


async def test_what_follows_is_a_transfer_or_the_end() -> None:
    async with desk() as server:
        path = f"/v1/phone/twiml/next?ticket={server.admission.next_steps.ticket('CA1')}"
        server.admission.next_steps.transfer("CA1", "+4930111111")
        form = {"CallSid": "CA1"}
        first = await server.client.post(path, data=form, headers=by_twilio(path, form))
        assert b"<Dial><Number>+4930111111</Number></Dial>" in first.content
        form["SessionDuration"] = "9"
        second = await server.client.post(path, data=form, headers=by_twilio(path, form))
        assert b"<Hangup />" in second.content
        other = {"CallSid": "CA2"}
        assert b"<Hangup />" in (await server.client.post(path, data=other, headers=by_twilio(path, other))).content


async def test_a_request_that_was_served_is_not_served_again() -> None:
    async with desk() as server:
        path = "/v1/phone/twiml"
        headers = by_twilio(path, CALL)
        assert (await server.client.post(path, data=CALL, headers=headers)).status_code == 200
        again = await server.client.post(path, data=CALL, headers=headers)
        assert (again.status_code, again.json()["error"]["code"]) == (403, "not_allowed")
        assert "served before" in again.json()["error"]["message"]
        assert len(server.admission.passes) == 1


async def test_a_wrong_signature_gives_no_pass() -> None:
    async with desk() as server:
        path = "/v1/phone/twiml"
        right = by_twilio(path, CALL)
        wrong: list[tuple[str, dict[str, str], dict[str, str]]] = [
            (path, CALL | {"From": "+491"}, right),
            (f"{path}?a=b", CALL, right),
            ("/v1/phone/texml", CALL, right),
            (path, CALL, by_twilio(f"{path}/", CALL)),
            (path, CALL, {"X-Twilio-Signature": "x"}),
            (f"{path}?token=phone-key", CALL, right),  # a right key does not make a wrong signature right
        ]
        for url, form, headers in wrong:
            answer = await server.client.post(url, data=form, headers=headers)
            assert answer.status_code == 403, (url, form)
        assert len(server.admission.passes) == 0


async def test_behind_a_proxy_the_configured_address_counts() -> None:
    async with desk(public_url="https://example.org/voice/") as server:
        path = "/v1/phone/twiml"
        signature = RequestValidator(KEYS.systems["twilio"]).compute_signature(f"https://example.org/voice{path}", CALL)
        headers = {"X-Twilio-Signature": signature, "host": "internal:8000", "x-forwarded-host": "evil.example"}
        answer = await server.client.post(path, data=CALL, headers=headers)
        assert fromstring(answer.content)[0][0].get("url") == "wss://example.org/voice/v1/phone"


async def test_a_pass_from_a_document_opens_one_call(serving: Any) -> None:
    phone, keys = PhoneConfig(public_url=PUBLIC, silence_s=0), PhoneKeys(systems={"twilio": KEYS.systems["twilio"]})
    async with serving(api_key="sesame", phone=phone, phone_keys=keys) as running:
        path = "/v1/phone/twiml"
        answer = await running.client.post(path, data=CALL, headers=by_twilio(path, CALL))
        stream = fromstring(answer.content)[0][0]
        signature = RequestValidator(KEYS.systems["twilio"]).compute_signature(stream.get("url"), {})
        headers = {"X-Twilio-Signature": signature}
        parameters = {"token": stream[0].get("value", "")}
        async with calling(running.url, parameters, additional_headers=headers) as caller:
            await eventually(lambda: len(running.service.sessions.conversations) == 1)
            async with calling(running.url, parameters, additional_headers=headers) as replayed:
                assert await replayed.gone() == 1008
            assert len(running.service.sessions.conversations) == 1
            await caller.stop()
            assert await caller.gone() == 1000
        with pytest.raises(InvalidStatus) as refused:
            async with calling(running.url, parameters, additional_headers={"X-Twilio-Signature": "x"}):
                pass
        assert refused.value.response.status_code == 403
        await eventually(lambda: len(running.service.sessions.conversations) == 0)


# ---- the others


async def test_a_call_of_telnyx() -> None:
    async with desk() as server:
        body = urlencode(CALL).encode()
        headers = by_telnyx(body)
        answer = await server.client.post("/v1/phone/texml", content=body, headers=headers)
        stream = fromstring(answer.content)[0][0]
        assert stream.get("bidirectionalMode") == "rtp"
        known = server.admission.passes.redeem(stream[0].get("value", ""))
        assert known is not None
        assert (known.system, known.call_id) == ("telnyx", "CA1")
        again = await server.client.post("/v1/phone/texml", content=body, headers=headers)
        assert again.status_code == 403
        for late in (by_telnyx(body, time.time() - 400), by_telnyx(body, time.time() + 400), by_telnyx(body + b"&a=b")):
            assert (await server.client.post("/v1/phone/texml", content=body, headers=late)).status_code == 403
        ended = b"CallSid=CA1"
        server.admission.next_steps.transfer("CA1", "sip:desk@example.org")
        answer = await server.client.post("/v1/phone/texml/next", content=ended, headers=by_telnyx(ended))
        assert b"<Dial><Sip>sip:desk@example.org</Sip></Dial>" in answer.content


async def test_a_call_of_plivo() -> None:
    async with desk() as server:
        form = {"CallUUID": "c1", "From": "4917012345678", "To": "4930123456"}
        # From Plivo's own library, for this form under https://example.org/v1/phone/plivo.
        headers = {
            "X-Plivo-Signature-V3": "uiq/YUlXxAr9xeYFfwsovRgiXCMkHa+cCKEDdpWLkUk=",
            "X-Plivo-Signature-V3-Nonce": "05429567804466091622",
        }
        answer = await server.client.post("/v1/phone/plivo", data=form, headers=headers)
        stream = fromstring(answer.content)[0]
        known = server.admission.passes.redeem(stream.get("extraHeaders", "").removeprefix("token="))
        assert known is not None
        assert (known.call_id, known.caller) == ("c1", "4917012345678")
        again = headers | {"X-Plivo-Signature-V3": f"other,{headers['X-Plivo-Signature-V3']}"}
        for repeated in (headers, again):
            answer = await server.client.post("/v1/phone/plivo", data=form, headers=repeated)
            assert "served before" in answer.json()["error"]["message"]
        del headers["X-Plivo-Signature-V3-Nonce"]
        assert (await server.client.post("/v1/phone/plivo", data=form, headers=headers)).status_code == 403


async def test_a_call_of_vonage() -> None:
    async with desk() as server:
        call = {"from": "4917012345678", "to": "4930123456", "uuid": "u1", "conversation_uuid": "CON-1"}
        body = json.dumps(call).encode()
        answer = await server.client.post("/v1/phone/vonage", content=body, headers=by_vonage(body))
        assert answer.headers["content-type"] == "application/json"
        (connect,) = answer.json()
        known = server.admission.passes.redeem(connect["endpoint"][0]["headers"]["token"])
        assert known is not None
        assert (known.call_id, known.caller, known.called) == ("CON-1", "4917012345678", "4930123456")
        assert connect["eventUrl"][0].startswith("https://example.org/v1/phone/vonage/next?ticket=")
        again = await server.client.post("/v1/phone/vonage", content=body, headers=by_vonage(body))
        assert again.status_code == 403  # the same token within a second


async def test_a_call_of_sinch() -> None:
    async with desk() as server:
        call = {"event": "ice", "callid": "S-1", "cli": "4917012345678", "to": {"type": "number", "endpoint": "4930"}}
        body = json.dumps(call).encode()
        answer = await server.client.post("/v1/phone/sinch", content=body, headers=by_sinch(body))
        action = answer.json()["action"]
        known = server.admission.passes.redeem(action["callHeaders"][0]["value"])
        assert known is not None
        assert (known.call_id, known.caller, known.called) == ("S-1", "4917012345678", "4930")
        assert action["destination"]["endpoint"] == "wss://example.org/v1/phone"
        ended = json.dumps({"event": "dice", "callid": "S-1"}).encode()
        answer = await server.client.post("/v1/phone/sinch", content=ended, headers=by_sinch(ended))
        assert (answer.status_code, answer.content) == (204, b"")
        wrong = {**by_sinch(body), "authorization": "application KEY:bm8="}
        assert (await server.client.post("/v1/phone/sinch", content=body, headers=wrong)).status_code == 403


async def test_vonage_is_told_what_follows_only_at_the_end() -> None:
    async with desk() as server:
        server.admission.next_steps.transfer("CON-1", "+4930111111", "4930123456")
        statuses = ("started", "ringing", "answered", "completed", "completed")
        answers = []
        for number, status in enumerate(statuses):
            body = json.dumps({"conversation_uuid": "CON-1", "uuid": "w1", "status": status}).encode()
            headers = by_vonage(body, str(number))
            answers.append(await server.client.post("/v1/phone/vonage/next", content=body, headers=headers))
        assert [answer.status_code for answer in answers] == [204, 204, 204, 200, 200]
        assert answers[3].json()[0]["endpoint"] == [{"type": "phone", "number": "4930111111"}]
        assert answers[4].json() == []


async def test_vonage_may_ask_by_get() -> None:
    async with desk() as server:
        query = {"from": "4917012345678", "to": "4930123456", "conversation_uuid": "CON-1"}
        body = json.dumps(query, separators=(",", ":")).encode()
        answer = await server.client.get("/v1/phone/vonage", params=query, headers=by_vonage(body))
        (connect,) = answer.json()
        known = server.admission.passes.redeem(connect["endpoint"][0]["headers"]["token"])
        assert known is not None
        assert known.call_id == "CON-1"
        other = by_vonage(body, "2")
        assert (await server.client.get("/v1/phone/vonage", params={"from": "1"}, headers=other)).status_code == 403


# ---- without a signature


async def test_a_request_that_shows_nothing_is_refused_before_its_body_is_read() -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    async with desk() as server:
        for path in sorted({one.path for one in ADDRESSES} - {"/v1/phone/next"}):
            answer = await server.client.post(path, content=body())
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed")
        assert (await server.client.get("/v1/phone/vonage")).status_code == 403
        assert (await server.client.get("/v1/phone/next?call=1")).status_code == 403
        # Our API key is not for telephone systems, and Vonage's signature is in the same header.
        answer = await server.client.post("/v1/phone/twiml", data=CALL, headers={"authorization": "Bearer sesame"})
        assert answer.status_code == 403


async def test_a_dialplan_is_told_the_next_number_once() -> None:
    async with desk(PhoneKeys(phone="phone-key")) as server:
        server.admission.next_steps.transfer("17.3", "+4930111111")
        assert (await server.client.get("/v1/phone/next?call=17.3&token=wrong")).status_code == 403
        answers = [await server.client.get("/v1/phone/next?call=17.3&token=phone-key") for _ in range(2)]
        assert [(answer.status_code, answer.text) for answer in answers] == [(200, "+4930111111"), (200, "")]
        assert answers[0].headers["content-type"] == "text/plain; charset=utf-8"


async def test_the_phone_key_does_for_systems_that_do_not_sign() -> None:
    async with desk(PhoneKeys(phone="phone-key")) as server:
        for path, form in (("/v1/phone/twiml", CALL), ("/v1/phone/texml", CALL), ("/v1/phone/plivo", CALL)):
            assert (await server.client.post(f"{path}?token=phone-key", data=form)).status_code == 200
            for wrong in ("phone-ke", "", "phone-key2"):
                assert (await server.client.post(f"{path}?token={wrong}", data=form)).status_code == 403
        answer = await server.client.post("/v1/phone/vonage?token=phone-key", json={"conversation_uuid": "CON-1"})
        assert answer.status_code == 200
        assert len(server.admission.passes) == 4


async def test_a_ticket_is_for_its_own_call() -> None:
    async with desk(PhoneKeys(phone="phone-key")) as server:
        answer = await server.client.post("/v1/phone/twiml?token=phone-key", data=CALL)
        action = fromstring(answer.content)[0].get("action", "").removeprefix(PUBLIC)
        assert "phone-key" not in answer.text
        server.admission.next_steps.transfer("CA2", "+4930111111")
        other = await server.client.post(action, data={"CallSid": "CA2"})
        assert other.status_code == 403
        assert b"<Hangup />" in (await server.client.post(action, data={"CallSid": "CA1"})).content
        assert (await server.client.post("/v1/phone/twiml/next?ticket=x", data={"CallSid": "CA1"})).status_code == 403
        # It says what follows; it does not announce a call.
        announced = await server.client.post(action.replace("/next", ""), data=CALL)
        assert announced.status_code == 403


async def test_a_server_without_keys_answers_its_own_machine() -> None:
    async with desk(PhoneKeys(), api_key="", public_url="", client="127.0.0.1") as server:
        answer = await server.client.post("/v1/phone/twiml", data=CALL)
        assert fromstring(answer.content)[0][0].get("url") == "ws://127.0.0.1:8000/v1/phone"
        for headers in ({"origin": "https://evil.example"}, {"host": "evil.example:8000"}):
            assert (await server.client.post("/v1/phone/twiml", data=CALL, headers=headers)).status_code == 403
    async with desk(PhoneKeys(), api_key="", public_url="") as server:
        assert (await server.client.post("/v1/phone/twiml", data=CALL)).status_code == 403
    async with desk(PhoneKeys(), api_key="", client="127.0.0.1") as server:  # a public address, and no key
        assert (await server.client.post("/v1/phone/twiml", data=CALL)).status_code == 403


# ---- bodies


@pytest.mark.parametrize(
    ("path", "content", "kind", "status"),
    [
        ("twiml", b"a" * 65_537, "application/x-www-form-urlencoded", 413),
        ("twiml", b"\xff=\xff", "application/x-www-form-urlencoded", 400),
        ("twiml", b"a=%FF", "application/x-www-form-urlencoded", 400),
        ("twiml", b"&".join(b"a=%d" % number for number in range(300)), "application/x-www-form-urlencoded", 400),
        ("twiml", b"CallSid=CA1", "text/plain", 200),  # no form: a call that nothing is known about
        ("twiml", b"", "", 200),
        ("vonage", b"[1]", "application/json", 400),
        ("vonage", b"{", "application/json", 400),
        ("vonage", b'{"conversation_uuid": {"a": 1}}', "application/json", 200),
        ("vonage", b"", "", 200),
    ],
)
async def test_bodies_of_all_kinds(path: str, content: bytes, kind: str, status: int) -> None:
    async with desk(PhoneKeys(phone="k")) as server:
        headers = {"content-type": kind} if kind else {}
        answer = await server.client.post(f"/v1/phone/{path}?token=k", content=content, headers=headers)
        assert answer.status_code == status, answer.text


async def test_a_body_that_no_signature_covers_is_refused() -> None:
    async with desk() as server:
        path = "/v1/phone/twiml"
        headers = by_twilio(path, {}) | {"content-type": "application/json"}
        assert (await server.client.post(path, content=b'{"CallSid": "CA1"}', headers=headers)).status_code == 403


async def test_long_fields_are_cut() -> None:
    async with desk(PhoneKeys(phone="k")) as server:
        answer = await server.client.post("/v1/phone/twiml?token=k", data={"CallSid": "x" * 9000, "From": "y" * 9000})
        known = server.admission.passes.redeem(fromstring(answer.content)[0][0][0].get("value", ""))
        assert known is not None
        assert (len(known.call_id), len(known.caller)) == (256, 256)


# ---- privacy


async def test_numbers_and_passes_are_in_no_log_and_no_metric(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "voxlane"):
        async with desk(replace(KEYS)) as server:
            path = "/v1/phone/twiml"
            answer = await server.client.post(path, data=CALL, headers=by_twilio(path, CALL))
            token = fromstring(answer.content)[0][0][0].get("value", "")
            server.admission.next_steps.transfer("CA1", "+4930111111")
            url = f"{path}/next?token=phone-key"
            await server.client.post(url, data={"CallSid": "CA1"})
            metrics = server.metrics.text().decode()
    assert "call announced system=twilio caller=...78" in caplog.text
    assert "call follow-up system=twilio transferred=...11" in caplog.text
    assert f"route={path}/next" in caplog.text
    for secret in (*CALL.values(), "4917012345678", "4930111111", token, "phone-key", "twilio-token", "ticket"):
        assert secret not in caplog.text
        assert secret not in metrics
    assert f'route="{path}",status="200"' in metrics


def test_systems_have_addresses_of_their_own() -> None:
    paths = [address.path for address in ADDRESSES]
    assert len(set(paths)) == len(paths)
