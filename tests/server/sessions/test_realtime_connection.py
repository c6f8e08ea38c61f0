"""OpenAI's dialect over real sockets, with the scripted engine: admission, limits, and the end of a session."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

import pytest
from peer import bystander, eventually
from realtime_grammar import Event, Grammar
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from voxlane.server import limits

HELLO: Event = {
    "type": "conversation.item.create",
    "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello to you all"}]},
}
MANUAL: Event = {"type": "session.update", "session": {"audio": {"input": {"turn_detection": None}}}}


class Client:
    """One socket, and the grammar that its events must follow."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.grammar = Grammar()

    @classmethod
    async def open(cls, url: str, key: str = "", *, query: str = "?model=m", **options: Any) -> Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        address = url.replace("http", "ws", 1).rstrip("/") + "/v1/realtime" + query
        return cls(await connect(address, additional_headers=headers, max_size=None, **options))

    async def send(self, *events: Event) -> None:
        for event in events:
            await self.socket.send(json.dumps(event))

    async def until(self, kind: str) -> Event:
        while True:
            event: Event = json.loads(await self.socket.recv())
            self.grammar.check(event)
            if event["type"] == kind:
                return event

    async def closed(self) -> tuple[int, Event]:
        """Read to the end; return the close code and the last event."""
        with pytest.raises(ConnectionClosed) as gone:
            await self.until("nothing of this name")
        assert gone.value.rcvd is not None
        return gone.value.rcvd.code, self.grammar.events[-1]

    async def answer(self) -> Event:
        """Type something and return the response to it."""
        await self.send(HELLO, {"type": "response.create"})
        return (await self.until("response.done"))["response"]


async def test_a_typed_turn_is_answered_aloud(serving: Any) -> None:
    async with serving() as running:
        client = await Client.open(running.url)
        created = await client.until("session.created")
        assert created["session"]["model"] == "m"
        response = await client.answer()
        assert response["status"] == "completed"
        assert response["output"][0]["content"][0]["transcript"] == "hello to you all"
        assert any(event["type"] == "response.output_audio.delta" for event in client.grammar.events)
        assert response["usage"]["output_tokens"] > 0
        client.grammar.end()
        await client.socket.close()


async def test_every_way_to_bring_a_key(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(api_key="k") as running:
        client = await Client.open(running.url, "k")
        assert client.socket.subprotocol is None
        await client.socket.close()
        offered: Any = ["realtime", "openai-insecure-api-key.k"]
        client = await Client.open(running.url, subprotocols=offered)
        assert client.socket.subprotocol == "realtime"
        assert client.socket.response is not None
        assert "insecure" not in str(client.socket.response.headers)
        await client.socket.close()
        bad: Any = ["realtime", "openai-insecure-api-key.x"]
        for options in ({}, {"key": "x"}, {"key": "ek_x"}, {"subprotocols": bad}):
            with pytest.raises(InvalidStatus) as refused:
                await Client.open(running.url, **options)
            assert refused.value.response.status_code == 401
        assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []  # a wrong key is no error of ours
        await eventually(lambda: len(running.service.sessions.conversations) == 0)


@pytest.mark.parametrize(
    "options",
    [
        {"additional_headers": {"OpenAI-Beta": "realtime=v1"}},
        {"subprotocols": ["realtime", "openai-insecure-api-key.none", "openai-beta.realtime-v1"]},
    ],
    ids=["header", "subprotocol"],
)
async def test_a_client_of_the_beta_is_told_in_an_event_and_in_the_close(serving: Any, options: Any) -> None:
    async with serving() as running:
        address = running.url.replace("http", "ws", 1).rstrip("/") + "/v1/realtime?model=m"
        client = Client(await connect(address, **options))
        error = await client.until("error")
        assert "client.realtime, not client.beta.realtime" in error["error"]["message"]
        assert "session.audio.input" in error["error"]["message"]
        code, last = await client.closed()
        assert (code, last) == (4400, error)  # nothing else was sent
        short = "The beta of Realtime is not served: use the GA client (client.realtime, not client.beta.realtime)."
        assert client.socket.close_reason == short
        assert len(running.service.sessions.conversations) == 0


async def test_another_beta_header_is_no_reason_to_refuse(serving: Any) -> None:
    async with serving() as running:
        address = running.url.replace("http", "ws", 1).rstrip("/") + "/v1/realtime?model=m"
        client = Client(await connect(address, additional_headers={"OpenAI-Beta": "traces=v1"}))
        await client.until("session.created")
        await client.socket.close()


async def test_a_client_secret_brings_its_session(serving: Any) -> None:
    async with serving(api_key="k") as running:
        session = {"type": "realtime", "instructions": "Sing.", "audio": {"output": {"voice": "nobody"}}}
        made = await running.client.post(
            "/v1/realtime/client_secrets", json={"session": session}, headers={"Authorization": "Bearer k"}
        )
        secret = made.json()["value"]
        for options in ({"key": secret}, {"subprotocols": ["realtime", f"openai-insecure-api-key.{secret}"]}):
            client = await Client.open(running.url, **options)
            created = (await client.until("session.created"))["session"]
            assert (created["instructions"], created["audio"]["output"]["voice"]) == ("Sing.", "nobody")
            assert (await client.answer())["status"] == "completed"
            await client.socket.close()


async def test_an_open_server_takes_any_key_but_no_dead_secret(serving: Any) -> None:
    async with serving() as running:
        for key in ("", "anything"):
            client = await Client.open(running.url, key)
            await client.until("session.created")
            await client.socket.close()
        with pytest.raises(InvalidStatus) as caught:  # a client with a secret expects the session it stands for
            await Client.open(running.url, "ek_anything")
        assert b"client secret is unknown or has expired" in (caught.value.response.body or b"")


async def test_compression_is_declined(serving: Any) -> None:
    async with serving() as running:
        client = await Client.open(running.url, compression="deflate")
        assert client.socket.protocol.extensions == []
        await client.socket.close()


async def test_what_is_wrong_is_told_and_the_conversation_goes_on(serving: Any) -> None:
    async with serving() as running:
        client = await Client.open(running.url)
        await client.socket.send("nonsense")
        await client.until("error")
        await client.send({"type": "session.update", "session": {"audio": {"input": 5}}, "event_id": "e"})
        assert (await client.until("error"))["error"]["event_id"] == "e"
        await client.send({"type": "response.cancel"})
        assert (await client.until("error"))["error"]["code"] == "response_cancel_not_active"
        assert (await client.answer())["status"] == "completed"
        await client.socket.close()


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [(b"{}", 4400, "invalid_request"), (" " * limits.REALTIME_FRAME_BYTES + "  ", 1009, None)],
    ids=["binary", "giant"],
)
async def test_what_ends_the_connection(serving: Any, data: bytes | str, code: int, said: str | None) -> None:
    async with serving() as running, bystander(running):
        client = await Client.open(running.url)
        await client.socket.send(data)
        closed, last = await client.closed()
        assert closed == code
        assert said is None or last["error"]["code"] == said
        await eventually(lambda: len(running.service.sessions.conversations) == 1)


async def test_a_recording_may_be_sent_at_once_but_not_an_hour(serving: Any) -> None:
    second = base64.b64encode(bytes(48_000 * 20)).decode()
    async with serving() as running, bystander(running):
        client = await Client.open(running.url)
        append = {"type": "input_audio_buffer.append", "audio": second}
        await client.send(MANUAL, *[append] * 5, {"type": "input_audio_buffer.commit"})
        await client.until("input_audio_buffer.committed")
        await client.send(*[append] * 2)
        closed, last = await client.closed()
        assert (closed, last["error"]["code"]) == (4429, "too_fast")


async def test_nobody_comes_back_to_it(serving: Any) -> None:
    async with serving() as running:
        client = await Client.open(running.url)
        await client.until("session.created")
        client.socket.transport.abort()
        await eventually(lambda: len(running.service.sessions.conversations) == 0)


async def test_a_lost_engine_is_no_error(serving: Any) -> None:
    async with serving() as running:
        client = await Client.open(running.url)
        assert (await client.answer())["status"] == "completed"
        before = running.kill_engine()
        await eventually(lambda: running.service.engine.pid not in (None, before))
        await running.service.engine.wait_ready()
        assert (await client.answer())["status"] == "completed"
        await client.socket.close()


async def test_before_the_engine_is_there(serving: Any) -> None:
    async with serving(model="never-ready", wait=False) as running:
        with pytest.raises(InvalidStatus) as refused:
            await Client.open(running.url)
        assert refused.value.response.status_code == 503
        assert b"engine_not_ready" in (refused.value.response.body or b"")
