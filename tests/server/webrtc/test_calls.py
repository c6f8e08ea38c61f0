"""Calls over WebRTC against a real server with the scripted engine: an aiortc client, real UDP, real Opus."""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
import threading
from typing import Any

import numpy as np
import pytest
from aiortc.codecs.opus import OpusDecoder
from peer import eventually
from realtime_grammar import Event
from webrtc_caller import RATE, Caller, calling

from voxlane.codecs.extras import install_command
from voxlane.server import limits
from voxlane.server.config import VoiceConfig, WebRtcConfig
from voxlane.server.protocols.openai_realtime.call_codec import MicrophoneSound
from voxlane.server.sessions.connection import Connection

MANUAL: Event = {"type": "session.update", "session": {"audio": {"input": {"turn_detection": None}}}}


def typed(text: str, **fields: str) -> Event:
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content, **fields}
    return {"type": "conversation.item.create", "item": item}


def loud(seconds: float) -> np.ndarray:
    return np.asarray(0.4 * np.sin(2 * np.pi * 440 * np.arange(round(seconds * RATE)) / RATE))


async def answered(caller: Caller, text: str) -> Event:
    caller.send(typed(text), {"type": "response.create"})
    return (await caller.until("response.done"))["response"]


async def test_a_typed_turn_is_answered_on_the_track(serving: Any) -> None:
    async with serving() as running, calling(running.client) as caller:
        assert caller.location.startswith("/v1/realtime/calls/rtc_")
        assert (await caller.until("session.created"))["session"]["model"] == "m"
        response = await answered(caller, "flood 1")  # two seconds of sound
        assert response["status"] == "completed"
        started = next(one for one in caller.grammar.events if one["type"] == "output_audio_buffer.started")
        stopped = await caller.until("output_audio_buffer.stopped")
        assert started["response_id"] == stopped["response_id"] == response["id"]
        await eventually(lambda: sum(map(len, caller.heard)) > RATE)
        caller.grammar.end()


async def test_a_voice_turn_is_heard_through_opus(serving: Any) -> None:
    async with serving(asr_model="loudness") as running, calling(running.client) as caller:
        await caller.until("session.created")
        transcribed = {"type": "session.update", "session": {"audio": {"input": {"transcription": {"model": "x"}}}}}
        caller.send(MANUAL, transcribed)
        await caller.until("session.updated")
        await caller.until("session.updated")
        conversation = next(iter(running.service.sessions.conversations.values()))
        caller.microphone.say(loud(0.8))
        await eventually(lambda: caller.microphone.silent)  # a busy machine says it late, and the server fills the gaps
        said_s = conversation.codec.heard_s()
        await eventually(lambda: conversation.codec.heard_s() > said_s + 0.8)
        caller.send({"type": "input_audio_buffer.commit"})
        completed = await caller.until("conversation.item.input_audio_transcription.completed")
        assert completed["transcript"] == "hello to you all"
        assert completed["usage"]["seconds"] >= 0.8
        caller.send({"type": "response.create"})
        assert (await caller.until("response.done"))["response"]["status"] == "completed"


async def test_the_server_decodes_no_opus_of_a_track_itself(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    class Counted(OpusDecoder):
        def __init__(self) -> None:
            made.append(self)
            super().__init__()

    monkeypatch.setattr("aiortc.codecs.OpusDecoder", Counted)
    async with serving() as running, calling(running.client) as caller:
        await caller.until("session.created")
        conversation = next(iter(running.service.sessions.conversations.values()))
        await eventually(lambda: conversation.codec.heard_s() > 0.1 and len(made) > 0)
        assert len(made) == 1  # the caller's
        # The private name that peer.py replaces is still the library's.
        assert "_RTCRtpReceiver__jitter_buffer" in vars(caller.connection.getTransceivers()[0].receiver)


async def test_a_clear_drops_the_sound_at_once_and_the_ledger_knows(serving: Any) -> None:
    async with serving() as running, calling(running.client) as caller:
        await caller.until("session.created")
        caller.send(typed("flood 20"), {"type": "response.create"})  # forty seconds of sound
        started = await caller.until("output_audio_buffer.started")
        conversation = next(iter(running.service.sessions.conversations.values()))
        await eventually(lambda: conversation.acked is not None and conversation.acked.samples > 0)
        before = conversation.acked
        caller.send({"type": "output_audio_buffer.clear"})
        cleared = await caller.until("output_audio_buffer.cleared")
        assert cleared["response_id"] == started["response_id"]
        done = (await caller.until("response.done"))["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        truncated = await caller.until("conversation.item.truncated")
        assert truncated["item_id"] == done["output"][0]["id"]
        after = conversation.acked
        assert before is not None
        assert after is not None
        # It lies between the frames that had been sent, with the one that was being sent.
        assert before.samples // 24 <= truncated["audio_end_ms"] <= after.samples // 24 + 20
        frames = len(caller.heard)
        await eventually(lambda: len(caller.heard) > frames + 5)
        assert conversation.acked == after  # no more of it was sent
        caller.grammar.end()


async def test_a_cancel_ends_the_sound_and_a_second_clear_does_nothing(serving: Any) -> None:
    async with serving() as running, calling(running.client) as caller:
        await caller.until("session.created")
        caller.send(typed("flood 20", id="asked"), {"type": "response.create"})
        await caller.until("output_audio_buffer.started")
        caller.send({"type": "response.cancel"}, {"type": "output_audio_buffer.clear"})  # as agents-realtime does
        await caller.until("output_audio_buffer.cleared")
        assert (await caller.until("response.done"))["response"]["status"] == "cancelled"
        caller.send({"type": "conversation.item.delete", "item_id": "asked"})
        assert (await answered(caller, "hello"))["status"] == "completed"
        assert caller.kinds().count("output_audio_buffer.cleared") == 1
        assert "error" not in caller.kinds()


async def test_the_session_of_a_form_and_of_a_client_secret(serving: Any) -> None:
    async with serving(api_key="k") as running:
        session = {"type": "realtime", "instructions": "Sing.", "output_modalities": ["text"]}
        async with calling(running.client, key="k", session=session) as caller:
            assert (await caller.until("session.created"))["session"]["instructions"] == "Sing."
        made = await running.client.post(
            "/v1/realtime/client_secrets", json={"session": session}, headers={"Authorization": "Bearer k"}
        )
        async with calling(running.client, key=made.json()["value"], session={"instructions": "Hum."}) as caller:
            created = (await caller.until("session.created"))["session"]
            assert (created["instructions"], created["output_modalities"]) == ("Hum.", ["text"])


async def test_hang_up_and_the_end_of_the_peer_end_the_conversation(serving: Any) -> None:
    async with serving(api_key="k") as running:
        for method, ending in (("POST", "/hangup"), ("DELETE", "")):
            async with calling(running.client, key="k") as caller:
                await caller.until("session.created")
                address, headers = f"{caller.location}{ending}", {"authorization": "Bearer k"}
                assert (await running.client.request(method, address)).status_code == 401
                assert (
                    await running.client.request(method, address.replace("rtc_", "rtc_0"), headers=headers)
                ).status_code == 404
                assert (await running.client.request(method, address, headers=headers)).status_code == 200
                assert len(running.service.sessions.conversations) == len(running.service.calls) == 0
                await caller.closed.wait()
                assert (await running.client.request(method, address, headers=headers)).status_code == 404
        async with calling(running.client, key="k") as caller:
            await caller.until("session.created")
        await eventually(lambda: len(running.service.sessions.conversations) == len(running.service.calls) == 0)


async def caught(running: Any, part: str) -> float:
    """Return how many errors that nothing foresaw a part of the server has counted."""
    figures = (await running.client.get("/metrics")).text
    return float(re.search(f'voxlane_caught_errors_total{{part="{part}"}} (.*)', figures)[1])  # type: ignore[index]


async def test_what_is_refused(serving: Any) -> None:
    async with serving(api_key="k") as running:
        key = {"authorization": "Bearer k", "content-type": "application/sdp"}
        caller = Caller(running.client)
        offer = await caller.offer()
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": "Bearer ek_x"}):
            answer = await running.client.post("/v1/realtime/calls", content=offer, headers={**key, **headers})
            assert (answer.status_code == 401) == bool(headers), answer.text
            if not headers:
                hung = await running.client.delete(answer.headers["location"], headers=key)
                assert hung.status_code == 200
        wrong = {
            "hello": "must begin with v=0",
            "v=0\r\n": "one audio track",
            offer.replace("opus", "speex"): "must have Opus",
            offer.replace("a=fingerprint", "a=nothing"): "a=fingerprint",
            offer.replace("UDP/TLS/RTP/SAVPF", "nonsense and more"): "cannot be answered",
            f"{offer}{offer[offer.index('m=audio') :]}": "one audio track",
            "v=0\r\n" + "a" * limits.SDP_BYTES: "at most",
        }
        for content, reason in wrong.items():
            answer = await running.client.post("/v1/realtime/calls", content=content, headers=key)
            assert answer.status_code in (400, 413)
            assert reason in answer.json()["error"]["message"]
        assert await caught(running, "webrtc_offer") == 1  # the one that the library could not read
        json_body = await running.client.post("/v1/realtime/calls", json={}, headers={"authorization": "Bearer k"})
        assert "must be application/sdp" in json_body.json()["error"]["message"]
        bad = await caller.http.post(
            "/v1/realtime/calls",
            files={"sdp": (None, offer), "session": (None, '{"voice": "x"}')},
            headers={"authorization": "Bearer k"},
        )
        assert bad.status_code == 400
        assert "session.voice" in bad.json()["error"]["message"]
        assert len(running.service.calls) == 0
        await caller.close()


async def test_a_call_counts_as_a_socket_of_its_address(serving: Any) -> None:
    async with serving(voice=VoiceConfig(sessions_per_address=1)) as running, calling(running.client) as caller:
        await caller.until("session.created")
        second = Caller(running.client)
        assert (await second.post()).status_code == 503
        await second.close()


async def test_a_page_of_another_origin_reads_answers_and_errors(serving: Any) -> None:
    voice = VoiceConfig(origins=("https://app.example",))
    async with serving(api_key="k", voice=voice) as running:
        page = {"origin": "https://app.example"}
        asked = await running.client.options("/v1/realtime/calls", headers=page)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (204, "https://app.example")
        assert "Authorization" in asked.headers["access-control-allow-headers"]
        refused = await running.client.post("/v1/realtime/calls", content="x", headers=page)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://app.example")
        other = await running.client.options("/v1/realtime/calls", headers={"origin": "https://other.example"})
        assert (other.status_code, other.headers.get("access-control-allow-origin")) == (403, None)


async def test_without_the_extra_or_switched_off(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(parts={"webrtc": WebRtcConfig(on=False)}) as running:
        headers = {"content-type": "application/sdp"}
        answer = await running.client.post("/v1/realtime/calls", content="v=0", headers=headers)
        assert (answer.status_code, "webrtc.on" in answer.text) == (404, True)
    monkeypatch.setitem(sys.modules, "aiortc", None)
    async with serving() as running:
        answer = await running.client.post("/v1/realtime/calls", content="v=0", headers=headers)
        assert answer.status_code == 501
        assert install_command("webrtc") in answer.json()["error"]["message"]


async def test_a_relay_that_does_not_answer_is_named_in_the_log(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = "turn:127.0.0.1:9?transport=tcp"
    webrtc = WebRtcConfig(ice_servers=(server,), ice_username="me")
    async with serving(parts={"webrtc": webrtc}) as running, calling(running.client) as caller:
        await caller.until("session.created")  # the server can be reached without it
    (logged,) = [one.getMessage() for one in caplog.records if one.name == "voxlane.server.webrtc.peer"]
    assert server in logged


async def test_a_binary_message_ends_the_call(serving: Any) -> None:
    async with serving() as running, calling(running.client) as caller:
        await caller.until("session.created")
        caller.channel.send(b"\x92\x01\x90")  # what the tracks say inside of the server
        assert (await caller.until("error"))["error"]["code"] == "invalid_request"
        await caller.closed.wait()
        await eventually(lambda: len(running.service.calls) == 0)


async def test_a_message_whose_parts_wait_too_long_ends_the_call(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as running, calling(running.client) as caller:
        await caller.until("session.created")
        monkeypatch.setattr(limits, "CALL_HELD_PARTS", 4)
        caller.send(typed("x" * 20_000))  # some seventeen parts
        assert (await caller.until("error"))["error"]["code"] == "too_large"
        await caller.closed.wait()
        await eventually(lambda: len(running.service.calls) == 0)


async def test_a_lost_part_before_a_burst_of_messages_does_not_end_the_call(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as running, calling(running.client) as caller:
        await caller.until("session.created")
        caller.send(MANUAL)
        await caller.until("session.updated")
        monkeypatch.setattr(limits, "CALL_HELD_PARTS", 4)
        sctp = caller.connection.sctp
        assert sctp is not None
        send, lost = sctp.transport._send_data, list[bytes]()

        async def send_all_but_one(data: bytes) -> None:
            if b"conversation.item.create" in data and not lost:
                lost.append(data)
            else:
                await send(data)

        sctp.transport._send_data = send_all_but_one  # type: ignore[method-assign]
        for number in range(40):
            caller.send(typed("x" * 1000, id=f"item_{number}"))
        placed = [(await caller.until("conversation.item.done"))["item"]["id"] for _ in range(40)]
        assert lost
        assert placed == [f"item_{number}" for number in range(40)]
        assert "error" not in caller.kinds()


async def test_silence_in_the_place_of_a_track_that_sends_nothing_is_not_the_client_s(serving: Any) -> None:
    voice = VoiceConfig(idle_s=2.0)
    async with serving(voice=voice) as running, calling(running.client) as caller:
        await caller.until("session.created")
        conversation = next(iter(running.service.sessions.conversations.values()))
        await eventually(lambda: conversation.codec.heard_s() > 0.1)
        (sender,) = caller.connection.getSenders()
        sender.replaceTrack(None)
        await eventually(lambda: conversation.codec._silence > 0)  # turns end by it
        counted = running.service.metrics.tenant_audio.labels(conversation.account.name)
        before = counted._value.get()
        silence = conversation.codec._silence
        await eventually(lambda: conversation.codec._silence > silence)
        assert counted._value.get() == before
        error = (await caller.until("error"))["error"]
        assert "Nothing was received for 2 s" in error["message"]
        await caller.closed.wait()


async def test_sound_that_comes_late_behind_made_up_silence_is_not_too_fast(serving: Any) -> None:
    async with serving() as running, calling(running.client) as caller:
        await caller.until("session.created")
        conversation = next(iter(running.service.sessions.conversations.values()))
        (call,) = running.service.calls._calls.values()
        silence = round((limits.CALL_AUDIO_BURST_SECONDS + 1) * RATE)
        call.peer.socket.take_sound(MicrophoneSound(silence))  # as after several stalls of a network
        await eventually(lambda: conversation.codec._silence >= silence)
        heard_s = conversation.codec.heard_s()
        await eventually(lambda: conversation.codec.heard_s() > heard_s + 0.2)
        assert (await answered(caller, "hello"))["status"] == "completed"
        assert "error" not in caller.kinds()


async def test_a_drain_ends_calls_and_an_offer_that_never_connects_goes(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as running, calling(running.client) as caller:
        await caller.until("session.created")
        monkeypatch.setattr(limits, "CALL_CONNECT_SECONDS", 0.1)
        silent = Caller(running.client)
        assert (await silent.post()).status_code == 201
        await eventually(lambda: len(running.service.calls) == 1)
        await silent.close()
        await running.service.sessions.drain.run(0.0)
        assert (await caller.until("error"))["error"]["code"] == "draining"
        await asyncio.wait_for(caller.closed.wait(), 10)
        late = Caller(running.client)
        assert (await late.post()).status_code == 503
        await late.close()


async def test_a_call_that_hangs_up_before_it_is_connected_begins_no_conversation(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Connection] = []

    async def run(connection: Connection) -> None:
        ran.append(connection)

    monkeypatch.setattr(Connection, "run", run)
    async with serving() as running:
        silent = Caller(running.client)
        answer = await silent.post()
        assert (await running.client.delete(answer.headers["location"])).status_code == 200
        assert (len(running.service.calls), ran) == (0, [])
        await silent.close()


async def test_a_call_that_connects_while_the_server_goes_down_is_told(serving: Any) -> None:
    async with serving() as running:
        caller = Caller(running.client)
        answer = await caller.post()
        running.service.sessions.conversations.draining = True
        await caller.connect(answer)
        event = await asyncio.wait_for(caller._received.get(), 10)
        assert event["error"]["code"] == "draining"
        await asyncio.wait_for(caller.closed.wait(), 10)
        await caller.close()


async def test_a_bug_in_a_call_is_logged_and_ends_it(
    serving: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(_: Connection) -> None:
        raise TimeoutError

    monkeypatch.setattr(Connection, "run", run)
    async with serving() as running, calling(running.client) as caller:
        await asyncio.wait_for(caller.closed.wait(), 10)
        await eventually(lambda: len(running.service.calls) == 0)
        assert await caught(running, "webrtc_call") == 1
    logged = [one.getMessage() for one in caplog.records if one.name == "voxlane.server.webrtc.calls"]
    assert len(logged) == 1
    assert logged[0].startswith("bug")


async def test_the_library_is_imported_beside_the_event_loop(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def noted(name: str) -> Any:
        threads.append(threading.current_thread())
        return importlib.import_module(name)

    monkeypatch.setattr("voxlane.server.webrtc.calls.import_module", noted)
    async with serving() as running, calling(running.client) as caller:
        await caller.until("session.created")
    assert threads
    assert threading.current_thread() not in threads
