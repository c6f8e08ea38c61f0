"""Client secrets: how they are kept, and POST /v1/realtime/client_secrets as the stock `openai` client asks for it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.realtime import ClientSecretCreateResponse
from stock_client import blocking_client, stock_client

from voxlane.server import limits
from voxlane.server.sessions.client_secrets import PREFIX, ClientSecrets
from voxlane.server.tenants.accounts import Account

PATH = "/v1/realtime/client_secrets"


class Clock:
    """A time that only passes when told to."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


HOLDER = Account()


def opened(kept: ClientSecrets, value: str) -> dict[str, Any] | None:
    """Return the session that a secret opens."""
    grant = kept.redeem(value)
    return None if grant is None else grant.session


# ---- kept


def test_a_secret_is_good_until_it_expires_and_for_several_uses() -> None:
    clock = Clock()
    kept = ClientSecrets(clock, wall_clock=clock)
    value, expires_at = kept.issue({"instructions": "Be brief.", "audio": None}, 10, HOLDER)
    assert value.startswith(PREFIX)
    assert expires_at == clock.now + 10
    for _ in range(3):
        assert opened(kept, value) == {"instructions": "Be brief.", "audio": None}
    clock.now = expires_at - 0.001
    assert opened(kept, value) is not None
    clock.now = expires_at
    assert opened(kept, value) is None
    assert len(kept) == 0
    clock.now -= 5
    assert opened(kept, value) is None, "a clock that was set back brings nothing back"


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_wall_clock_that_jumps_changes_no_expiry(jump_s: float) -> None:
    clock, wall = Clock(), Clock()
    kept = ClientSecrets(clock, wall_clock=wall)
    value, expires_at = kept.issue({}, 10, HOLDER)
    assert expires_at == wall.now + 10  # clients are told wall time
    wall.now += jump_s
    clock.now += 9.9
    assert kept.redeem(value) is not None
    clock.now += 0.1
    assert kept.redeem(value) is None


def test_a_secret_ends_with_the_key_that_made_it() -> None:
    kept, holder = ClientSecrets(), Account()
    value, _ = kept.issue({}, 10, holder)
    assert kept.redeem(value) is not None
    holder.revoked = True
    assert kept.redeem(value) is None


@pytest.mark.parametrize("value", ["", "ek_", "ek_nothing", "\udc00", "x" * 100_000])
def test_what_was_never_issued_opens_nothing(value: str) -> None:
    kept = ClientSecrets(Clock())
    kept.issue({}, 10, HOLDER)
    assert opened(kept, value) is None


def test_each_use_has_a_session_of_its_own() -> None:
    kept = ClientSecrets(Clock())
    asked: dict[str, Any] = {"tools": [], "instructions": "für alle 🎉"}
    value, _ = kept.issue(asked, 10, HOLDER)
    asked["tools"].append("changed by who asked")
    first = opened(kept, value)
    assert first is not None
    first["tools"].append("changed by who connected")
    assert opened(kept, value) == {"tools": [], "instructions": "für alle 🎉"}


def test_the_secrets_themselves_are_not_kept() -> None:
    kept = ClientSecrets(Clock())
    value, _ = kept.issue({}, 10, HOLDER)
    assert value not in repr(vars(kept))
    assert value.removeprefix(PREFIX) not in repr(vars(kept))


def test_expired_ones_make_room_before_the_oldest_does() -> None:
    clock = Clock()
    kept = ClientSecrets(clock, 3, clock)
    oldest, _ = kept.issue({"number": 0}, 7200, HOLDER)
    brief, _ = kept.issue({"number": 1}, 10, HOLDER)
    third, _ = kept.issue({"number": 2}, 7200, HOLDER)
    clock.now += 10
    fourth, _ = kept.issue({"number": 3}, 7200, HOLDER)
    assert [opened(kept, value) is not None for value in (oldest, brief, third, fourth)] == [True, False, True, True]
    kept.issue({"number": 4}, 7200, HOLDER)
    assert opened(kept, oldest) is None
    assert opened(kept, third) == {"number": 2}


@given(st.lists(st.tuples(st.integers(10, 100), st.floats(0, 60)), max_size=40), st.integers(1, 8))
def test_there_are_never_too_many_and_none_outlives_its_time(steps: list[tuple[int, float]], most: int) -> None:
    clock = Clock()
    kept = ClientSecrets(clock, most, clock)
    issued: list[tuple[str, float, int]] = []
    for number, (seconds, pause) in enumerate(steps):
        value, told_end = kept.issue({"number": number}, seconds, HOLDER)
        assert clock.now + seconds - 1 < told_end <= clock.now + seconds
        issued.append((value, clock.now + seconds, number))
        assert len(kept) <= most
        assert opened(kept, value) == {"number": number}
        clock.now += pause
        for known, expiry, told in issued:
            assert opened(kept, known) in ([{"number": told}, None] if expiry > clock.now else [None])
    assert len({value for value, _, _ in issued}) == len(issued)


# ---- asked for


async def test_the_stock_client_gets_a_whole_session(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        raw = await client.realtime.client_secrets.with_raw_response.create()
        answer = ClientSecretCreateResponse.model_validate_json(raw.content)
        assert answer.value.startswith("ek_")
        session = answer.session
        assert (session.type, session.object) == ("realtime", "realtime.session")
        assert session.id.startswith("sess_")
        assert session.model == "scripted"  # type: ignore[union-attr]
        assert session.instructions == server.service.sessions.offer.defaults.instructions  # type: ignore[union-attr]
        assert session.audio.input.turn_detection.type == "server_vad"  # type: ignore[union-attr]
        assert opened(server.service.sessions.secrets, answer.value) == {}
        usual = limits.CLIENT_SECRET_USUAL_SECONDS
        made = (await client.realtime.client_secrets.create(expires_after={"seconds": usual})).expires_at
        assert 0 <= made - answer.expires_at < 60


async def test_the_blocking_client_gets_one_too(serving: Any) -> None:
    async with serving() as server:

        def ask() -> str:
            with blocking_client(server) as client:
                return client.realtime.client_secrets.create(session={"type": "realtime"}).value

        value = await asyncio.to_thread(ask)
        assert opened(server.service.sessions.secrets, value) == {"type": "realtime"}


async def test_what_is_asked_for_is_kept_and_told(serving: Any) -> None:
    asked: Any = {
        "type": "realtime",
        "model": "gpt-realtime",
        "instructions": "Be brief.",
        "audio": {"input": {"turn_detection": None}, "output": {"voice": "marin", "speed": 1.2}},
    }
    async with serving() as server, stock_client(server) as client:
        after: Any = {"anchor": "created_at", "seconds": 10}
        raw = await client.realtime.client_secrets.with_raw_response.create(session=asked, expires_after=after)
        answer = ClientSecretCreateResponse.model_validate_json(raw.content)
        session: Any = answer.session
        assert (session.model, session.instructions) == ("gpt-realtime", "Be brief.")
        assert session.audio.input.turn_detection is None
        assert (session.audio.output.voice, session.audio.output.speed) == ("marin", 1.2)
        assert opened(server.service.sessions.secrets, answer.value) == asked


async def test_a_session_that_only_transcribes(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        raw = await client.realtime.client_secrets.with_raw_response.create(session={"type": "transcription"})
        answer = ClientSecretCreateResponse.model_validate_json(raw.content)
        assert answer.session.type == "transcription"
        assert answer.session.object == "realtime.transcription_session"


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"tools": value}
    return value


REFUSED: list[tuple[Any, int, str]] = [
    ({"session": []}, 400, "session"),
    ({"session": "realtime"}, 400, "session"),
    ({"session": {"type": "translation"}}, 400, "session.type"),
    ({"session": {"instructions": 5}}, 400, "session.instructions"),
    ({"session": {"tools": [{"type": "function", "name": "a b"}]}}, 400, "session.tools"),
    ({"session": {"instructions": "x" * limits.CLIENT_SECRET_SESSION_BYTES}}, 413, "session"),
    ({"expires_after": 600}, 400, "expires_after"),
    ({"expires_after": {"seconds": 9}}, 400, "expires_after.seconds"),
    ({"expires_after": {"seconds": 7201}}, 400, "expires_after.seconds"),
    ({"expires_after": {"seconds": 60.5}}, 400, "expires_after.seconds"),
    ({"expires_after": {"anchor": "tomorrow"}}, 400, "expires_after.anchor"),
    ({"expires_after": {"days": 1}}, 400, "expires_after.days"),
    ({"colour": "red"}, 400, "colour"),
]


async def test_what_cannot_be_is_refused_by_name(serving: Any) -> None:
    async with serving() as server:
        for body, status, param in REFUSED:
            answer = await server.client.post(PATH, json=body)
            assert answer.status_code == status, (str(body)[:80], answer.text)
            assert answer.json()["error"]["param"].startswith(param)
        assert len(server.service.sessions.secrets) == 0


async def test_nesting_has_an_end(serving: Any) -> None:
    async with serving() as server:
        most = limits.CLIENT_SECRET_SESSION_LEVELS
        for levels, deep in ((most, False), (most + 1, True), (900, True)):
            answer = await server.client.post(PATH, json={"session": nested(levels)})
            assert answer.status_code == 400
            assert ("levels deep" in answer.text) is deep


async def test_the_key_is_needed_and_a_secret_is_no_key(serving: Any) -> None:
    async with serving(api_key="sesame") as server:
        assert (await server.client.post(PATH, json={})).status_code == 401
        async with stock_client(server, "sesame") as client:
            value = (await client.realtime.client_secrets.create()).value
        server.client.headers["authorization"] = f"Bearer {value}"
        hello = {"messages": [{"role": "user", "content": "hello"}]}
        for path, body in ((PATH, {}), ("/v1/chat/completions", hello), ("/v1/audio/speech", {"input": "hello"})):
            assert (await server.client.post(path, json=body)).status_code == 401
        assert (await server.client.get("/v1/models")).status_code == 401
        async with stock_client(server, value) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.realtime.client_secrets.create()


async def test_no_secret_is_logged(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="voxlane")
    async with serving() as server:
        session = {"instructions": "a private matter"}
        value = (await server.client.post(PATH, json={"session": session})).json()["value"]
        refused = {"session": {"instructions": "a private matter", "voice": 5}}
        assert (await server.client.post(PATH, json=refused)).status_code == 400
        server.service.sessions.secrets.redeem(value)
    assert f"route={PATH}" in caplog.text
    assert value[3:] not in caplog.text
    assert "private" not in caplog.text


async def test_a_server_that_goes_down_gives_none_away(serving: Any) -> None:
    async with serving() as server:
        server.service.sessions.conversations.draining = True
        answer = await server.client.post(PATH, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert answer.headers["retry-after"]


async def test_before_the_engine_is_ready_there_is_no_session_to_tell(serving: Any) -> None:
    async with serving(model="never-ready", wait=False) as server:
        answer = await server.client.post(PATH, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_not_ready")
