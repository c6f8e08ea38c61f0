"""A server that is full by what it measures refuses before the upgrade, says why, and lets clients resume."""

from __future__ import annotations

from typing import Any

import pytest
from house import Running
from peer import MANUAL, Peer, eventually
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from voxlane.engine.api import StepStats
from voxlane.server import limits
from voxlane.server.config import RoomConfig, VoiceConfig
from voxlane.server.room.estimate import Measure
from voxlane.server.watching.metrics import REFUSAL_REASONS

ONE_SURE = {"room": RoomConfig(sure=1, lag_ms=10_000)}  # the lag of a busy test machine counts for nothing


def steps(share: float, available: float = 1.0, seconds: float = 600.0) -> StepStats:
    """Return a report of the engine about its last seconds."""
    sums = (1, 1, 0, 1, share * seconds, 0.01, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
    return StepStats(*sums, interval_s=seconds, pressing_s=share * seconds, blocks_available=available)


def fill(running: Running) -> None:
    running.service.room.engines[0].stepped(steps(1.0))


def refused(running: Running, reason: str) -> float:
    return running.service.metrics.refusals.labels(reason)._value.get()


async def status_of(running: Running, path: str, **options: Any) -> tuple[int, str | None, bytes]:
    """Return the status, Retry-After and body with which a WebSocket is refused."""
    with pytest.raises(InvalidStatus) as refusal:
        async with connect(running.url.replace("http", "ws", 1).rstrip("/") + path, compression=None, **options):
            pass
    response = refusal.value.response
    return response.status_code, response.headers.get("retry-after"), response.body


@pytest.mark.parametrize(
    ("path", "options"), [("/v1/voice", {"subprotocols": ["voxlane.v1"]}), ("/v1/realtime", {}), ("/v1/phone", {})]
)
async def test_a_full_server_refuses_before_the_upgrade(serving: Any, path: str, options: dict[str, Any]) -> None:
    async with serving(parts=ONE_SURE) as running:
        first = await Peer.open(running.url, MANUAL)
        fill(running)
        status, retry_after, body = await status_of(running, path, **options)
        assert (status, retry_after) == (503, str(limits.ROOM_RETRY_SECONDS))
        assert b"no_room" in body
        assert refused(running, "steps") == 1
        assert await first.say("still here")  # the admitted one goes on
        await first.bye()


async def test_the_operator_reads_why(serving: Any) -> None:
    async with serving(parts=ONE_SURE) as running:
        first = await Peer.open(running.url, MANUAL)
        idle = (await running.client.get("/readyz")).json()["room"]
        assert (idle["state"], idle["tightest"] in idle["uses"]) == ("open", True)
        fill(running)
        reply = await running.client.get("/readyz")
        room = reply.json()["room"]
        assert reply.status_code == 200  # a client that resumes must still find it
        assert (room["state"], room["percent"], room["more"], room["tightest"]) == ("full", 0, 0, "steps")
        assert room["uses"]["steps"] > 1
        assert (await running.client.get("/healthz")).json()["room"]["state"] == "full"
        assert running.service.room.report.room.percent == 0
        await eventually(lambda: b"voxlane_room_percent 0.0" in running.service.metrics.text())
        await first.bye()


async def test_http_requests_give_way_to_conversations(serving: Any) -> None:
    ask = {"messages": [{"role": "user", "content": "hello"}]}
    async with serving(parts=ONE_SURE) as running:
        fill(running)
        assert (await running.client.post("/v1/chat/completions", json=ask)).status_code == 200  # none to give way to
        first = await Peer.open(running.url, MANUAL)
        fill(running)
        reply = await running.client.post("/v1/chat/completions", json=ask)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_room")
        assert reply.headers["retry-after"] == str(limits.ROOM_RETRY_SECONDS)
        assert (await running.client.get("/v1/models")).status_code == 200  # this starts no work
        await first.bye()


async def test_a_parked_conversation_is_resumed_on_a_full_server(serving: Any) -> None:
    async with serving(parts=ONE_SURE) as running:
        other, first = await Peer.open(running.url, MANUAL), await Peer.open(running.url, MANUAL)
        token = first.ready["token"]
        fill(running)
        first.drop()
        await eventually(lambda: running.service.sessions.conversations.parked)
        again = await Peer.open(running.url, {"resume": token, "last_seq": 1})
        assert again.ready["resumed"]
        assert await again.say("and on")
        await again.bye()
        await other.bye()


async def test_a_client_that_only_says_that_it_resumes_gets_no_new_conversation(serving: Any) -> None:
    async with serving(parts=ONE_SURE) as running:
        first = await Peer.open(running.url, MANUAL)
        fill(running)
        peer = await Peer.open(running.url, at="")
        await peer.send("hello", MANUAL)
        assert await peer.closed() == 1013
        assert peer.of("error")[-1][2] == "no_room"
        assert len(running.service.sessions.conversations) == 1
        await first.bye()


async def test_a_telephone_line_is_busy(serving: Any) -> None:
    async with serving(parts=ONE_SURE) as running:
        first = await Peer.open(running.url, MANUAL)
        call = {"CallSid": "CA1", "From": "+4930111111", "To": "+4930222222"}
        answers = {"twiml": b'<Reject reason="busy" />', "texml": b'<Reject reason="busy" />',
                   "plivo": b'<Hangup reason="busy" />'}  # fmt: skip
        for path in answers:
            assert b"<Stream" in (await running.client.post(f"/v1/phone/{path}", data=call)).content
        fill(running)
        for path, answer in answers.items():
            reply = await running.client.post(f"/v1/phone/{path}", data=call)
            assert reply.status_code == 200
            assert answer in reply.content
        reply = await running.client.post("/v1/phone/vonage", json={"conversation_uuid": "CON-1"})
        assert reply.json() == []
        assert refused(running, "steps") == 4
        await first.bye()


async def test_limits_and_states_are_counted_as_reasons(serving: Any) -> None:
    async with serving(parts=ONE_SURE, voice=VoiceConfig(sessions=1)) as running:
        first = await Peer.open(running.url, MANUAL)
        assert (await status_of(running, "/v1/realtime"))[0] == 503
        assert refused(running, "sessions") == 1
        await first.bye()
        await eventually(lambda: not running.service.room.conversations())
        running.service.sessions.conversations.draining = True
        assert (await status_of(running, "/v1/realtime"))[0] == 503
        assert refused(running, "draining") == 1
        assert running.service.room.report.state == "draining"
        running.service.sessions.conversations.draining = False


async def test_without_measuring_only_the_limits_count(serving: Any) -> None:
    async with serving(parts={"room": RoomConfig(measured=False, sure=0)}) as running:
        fill(running)
        peer = await Peer.open(running.url, MANUAL)
        assert (await running.client.get("/readyz")).json()["room"]["state"] == "open"
        await peer.bye()


async def test_a_slow_first_sound_is_measured(serving: Any) -> None:
    async with serving(parts={"room": RoomConfig(sure=0, first_sound_ms=0.001, lag_ms=10_000)}) as running:
        peer = await Peer.open(running.url, MANUAL)
        await peer.say("one")
        await peer.say("two")
        assert running.service.room.report.room.tightest == "first_sound"
        assert (await status_of(running, "/v1/realtime"))[0] == 503
        assert refused(running, "first_sound") == 1
        await peer.bye()


def test_every_measure_is_a_reason() -> None:
    assert set(Measure.__args__) <= set(REFUSAL_REASONS)  # type: ignore[attr-defined]
