"""Conversations over real sockets, with the scripted engine: every message, every abuse, breaks, faults and the end."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Any

import pytest
from peer import MANUAL, Peer, bystander, eventually, speech
from websockets.exceptions import InvalidStatus

from voxlane.engine.api import ConverseModel
from voxlane.engine.api import Ready as EngineReady
from voxlane.server.commands.serve import drain
from voxlane.server.config import ChatConfig, Config, LimitsConfig, ServerConfig, VoiceConfig
from voxlane.server.conversation.session import Session
from voxlane.server.engine_client.engine_process import EngineProcess
from voxlane.server.sessions.offer import dated
from voxlane.server.sessions.registry import SessionRegistry
from voxlane.server.watching.metrics import Metrics

SLOW: dict[str, Any] = {"config": {"voice": "two", "turns": {"mode": "manual"}, "buffer_s": 0.5}}


def names(messages: list[list[Any]]) -> list[str]:
    return [message[0] for message in messages]


async def test_a_typed_turn_is_answered_in_order_and_numbered(serving: Any) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, MANUAL)
        assert peer.ready["capabilities"]["chat_model"] == "scripted"
        told = await peer.say("hello to you all")
        assert names(told) == [
            "user_turn", "reply", "state", "reply_text", "reply_text", "reply_text", "reply_text",
            "audio", "state", "audio_done", "reply_done", "latency", "turn_done",
        ]  # fmt: skip
        audio = next(message for message in told if message[0] == "audio")
        assert audio[2:4] == [1, 0]
        assert audio[4] == "hello to you all".encode("utf-16-le")
        assert audio[5] == [[0, 5, 0, 5], [6, 8, 6, 8], [9, 12, 9, 12], [13, 16, 13, 16]]
        await peer.until("state")
        assert [message[1] for message in peer.seen] == list(range(1, len(peer.seen) + 1))
        await peer.bye()
        assert len(running.service.sessions.conversations) == 0


async def test_push_to_talk(serving: Any) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, MANUAL)
        await peer.send("start")
        for piece in ("what ", "is ", "this"):
            await peer.send("audio", speech(piece))
        await peer.send("end")
        assert (await peer.until("user_turn"))[3] == "what is this"
        assert (await peer.until("reply_done"))[3] == "what is this"
        assert {"speech_started", "speech_stopped", "user_words"} <= set(names(peer.seen))
        await peer.bye()


async def test_every_format_is_heard_and_spoken(serving: Any) -> None:
    async with serving() as running:
        for codec, rate in (("pcm16", 8000), ("pcm16", 48000), ("mulaw", 8000), ("alaw", 8000), ("opus", 48000)):
            form = {"codec": codec, "rate": rate}
            peer = await Peer.open(running.url, {**SLOW, "output": form})
            told = await peer.say("one two")
            total = next(message for message in told if message[0] == "audio_done")[3]
            assert total == 7 * rate // 20
            end = 0
            for message in (message for message in told if message[0] == "audio"):
                assert message[3] == end
                end += rate // 50 if codec == "opus" else len(message[4]) // (2 if codec == "pcm16" else 1)
            assert total <= end < total + 2 * rate // 50
            words = [word for message in told if message[0] == "audio" for word in message[5]]
            assert words == [[0, 3, 0, 3 * rate // 20], [4, 7, 4 * rate // 20, 7 * rate // 20]]
            await peer.bye()


async def test_configuration_merges_and_is_told(serving: Any) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, {"config": {"temperature": 0.5, "turns": {"mode": "manual"}}})
        await peer.send("config", {"turns": {"eagerness": "high"}, "voice": "alloy"})
        config = (await peer.until("configured"))[2]
        assert config["turns"]["mode"] == "manual"
        assert config["turns"]["eagerness"] == "high"
        assert (config["temperature"], config["voice"]) == (0.5, "af_alloy")
        await peer.send("config", {"voice": "nobody"})
        assert await peer.closed() == 4400
        assert peer.of("error")[-1][2] == "invalid_request"


async def test_a_voice_of_one_pace_is_not_hurried(serving: Any) -> None:
    async with serving(tts_model="one-pace") as running:
        peer = await Peer.open(running.url, {"config": {"speed": 1}})
        await peer.send("config", {"speed": 1.5})
        assert await peer.closed() == 4400
        assert "speed must be 1" in peer.of("error")[-1][3]


async def test_names_are_said_as_a_client_or_the_operator_wants(serving: Any) -> None:
    names = ["Siobhan = shiv-awn", "Niamh = /niːv/"]
    async with serving() as running:
        peer = await Peer.open(running.url, {"config": {"pronunciations": names}})
        assert (peer.ready["config"]["pronunciations"], peer.ready["capabilities"]["phonemes"]) == (names, True)
        await peer.send("config", {"pronunciations": []})
        assert (await peer.until("configured"))[2]["pronunciations"] == []
        await peer.send("config", {"pronunciations": ["Siobhan"]})
        assert await peer.closed() == 4400
        assert "config.pronunciations entry 1: write it as" in peer.of("error")[-1][3]
    async with serving(tts_model="one-pace") as running:
        peer = await Peer.open(running.url, {"config": {"pronunciations": names[:1]}})
        assert peer.ready["capabilities"]["phonemes"] is False
        await peer.send("config", {"pronunciations": names})
        assert await peer.closed() == 4400
        assert "pronunciations: this server's voice takes respellings" in peer.of("error")[-1][3]


async def test_a_voice_is_told_which_language_to_speak_and_how(serving: Any) -> None:
    wishes = {"voice_language": "de-AT", "voice_instructions": "Whisper."}
    async with serving(tts_model="instructed") as running:
        peer = await Peer.open(running.url, {"config": wishes})
        config, can = peer.ready["config"], peer.ready["capabilities"]
        assert (config["voice_language"], config["voice_instructions"]) == ("german", "Whisper.")
        assert (can["voice_languages"], can["instructed"]) == (["english", "german"], True)
        await peer.send("config", {"voice_language": "klingon"})
        assert await peer.closed() == 4400
        assert "voice_language: this server's voice can speak english, german." in peer.of("error")[-1][3]
    for name, value in wishes.items():
        async with serving() as running:
            peer = await Peer.open(running.url, {})
            await peer.send("config", {name: value})
            assert await peer.closed() == 4400
            assert f"{name}: this server's voice can" in peer.of("error")[-1][3]


async def test_a_greeting_and_text_only(serving: Any) -> None:
    async with serving(voice=VoiceConfig(greeting="Welcome.")) as running:
        peer = await Peer.open(running.url, {"config": {"speaks": False}})
        assert (await peer.until("reply_done"))[3] == "Welcome."
        assert not peer.of("audio")
        await peer.bye()


async def test_a_tool_call_and_its_result(serving: Any) -> None:
    async with serving() as running:
        tools = [{"name": "weather", "description": "?", "parameters": '{"type": "object"}'}]
        peer = await Peer.open(running.url, {"config": {"tools": tools}})
        await peer.send("text", "call")
        call = await peer.until("tool_call")
        assert call[4:] == ["weather", '{"city": "Paris"}']
        await peer.send("tool_result", call[3], "rain today")
        assert (await peer.until("reply_done", lambda message: bool(message[3])))[3] == "rain today"
        await peer.send("tool_result", call[3], "again")
        assert (await peer.until("error"))[2] == "unknown_call"
        await peer.bye()


async def test_acks_move_the_sound_on_and_stop_ends_it(serving: Any) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, SLOW)
        await peer.send("text", "a reply of some length that nobody hears to its end")
        epoch = (await peer.until("audio"))[2]
        await peer.until("audio", lambda message: message[3] >= 0.45 * 24_000)
        await peer.send("played", epoch, 12_000, 0)
        await peer.until("audio", lambda message: message[3] >= 0.95 * 24_000)
        await peer.send("stop")
        cut = await peer.until("interrupted")
        assert cut[2] == epoch
        assert cut[3].startswith("a reply")
        assert "a reply of some length that nobody hears to its end".startswith(cut[3])
        assert cut[4] >= 12_000
        assert (await peer.until("turn_done"))[3] == "interrupted"
        await peer.send("ping", 7)
        assert (await peer.until("pong"))[2] == 7
        after = peer.seen[peer.seen.index(cut) + 1 :]
        assert not [message for message in after if message[0] in ("audio", "reply_text") and message[2] == epoch]
        await peer.bye()
        assert running.service.metrics.audio_underruns._value.get() == 1


# ---- breaks


async def lost(running: Any) -> None:
    await eventually(lambda: not running.service.sessions.limits.sockets)


async def test_a_broken_line_is_taken_up_where_the_player_stood(serving: Any) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, SLOW)
        await peer.say("first")
        await peer.send("text", "a second reply that breaks off in the middle of it")
        epoch = (await peer.until("reply"))[2]
        await peer.until("audio", lambda message: message[3] >= 0.4 * 24_000)
        await peer.send("played", epoch, 3_000, 100)
        await peer.send("ping", 1)
        await peer.until("pong")
        heard = b"".join(message[4] for message in peer.of("audio") if message[2] == epoch)
        peer.drop()
        await lost(running)
        again = await Peer.open(running.url, {"resume": peer.ready["token"], "last_seq": peer.seen[-1][1]})
        assert again.ready["resumed"]
        assert again.ready["session"] == peer.ready["session"]
        assert [entry["content"] for entry in again.ready["history"]] == [
            "first", "first", "a second reply that breaks off in the middle of it",
        ]  # fmt: skip
        assert again.ready["played"] == [epoch, 3_000]
        await again.until("audio_done")
        pieces = [(message[3], message[4]) for message in again.of("audio")]
        assert pieces[0][0] <= 3_000 < pieces[0][0] + len(pieces[0][1]) // 2
        offset = pieces[0][0]
        whole = heard[: 2 * offset] + b"".join(pcm for _, pcm in pieces)
        said = "a second reply that breaks off in the middle of it".encode("utf-16-le")
        assert whole[:: 2 * 1200] + whole[1 :: 2 * 1200] == said[::2] + said[1::2]
        assert (await again.until("turn_done"))[3] == "done"
        await again.send("ping", 7)  # it has the next token
        await again.until("pong")
        stolen = await Peer.open(running.url)
        await stolen.send("hello", {"resume": peer.ready["token"]})
        assert await stolen.closed() == 4401
        await again.bye()


async def test_messages_lost_in_the_break_are_told_again(serving: Any) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, MANUAL)
        await peer.say("hello")
        last = peer.of("reply")[-1][1]
        peer.drop()
        await lost(running)
        again = await Peer.open(running.url, {"resume": peer.ready["token"], "last_seq": last})
        again.seen.clear()
        await again.until("turn_done")
        assert [message[1] for message in again.seen] == [
            message[1] for message in peer.seen if message[1] > last and message[0] not in ("audio", "ready")
        ][: len(again.seen)]
        await again.bye()


async def test_who_comes_back_early_takes_over(serving: Any) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, MANUAL)
        again = await Peer.open(running.url, {"resume": peer.ready["token"]})
        assert await peer.closed() == 4409
        assert (await again.say("still me"))[-1][3] == "done"
        await again.bye()
        assert len(running.service.sessions.conversations) == 0


async def test_nobody_comes_back(serving: Any) -> None:
    async with serving(voice=VoiceConfig(resume_s=0.05)) as running:
        peer = await Peer.open(running.url, MANUAL)
        await peer.send("text", "wait for ever")
        await peer.until("reply_text")
        cancelled = running.service.metrics.finished_requests.labels("cancelled")._value
        before = cancelled.get()
        peer.drop()
        await eventually(lambda: not len(running.service.sessions.conversations))
        await eventually(lambda: cancelled.get() > before)
        late = await Peer.open(running.url)
        await late.send("hello", {"resume": peer.ready["token"]})
        assert await late.closed() == 4401


async def test_those_who_left_make_room(serving: Any) -> None:
    async with serving(voice=VoiceConfig(sessions=1)) as running:
        peer = await Peer.open(running.url, MANUAL)
        peer.drop()
        await lost(running)
        other = await Peer.open(running.url, MANUAL)
        await other.bye()


# ---- faults


async def test_a_bug_ends_one_conversation_only(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Session.feed

    def broken(self: Session, event: Any, now: float) -> Any:
        if getattr(event, "text", "") == "bug ":
            raise AssertionError("a bug")
        return feed(self, event, now)

    async with serving() as running, bystander(running):
        monkeypatch.setattr(Session, "feed", broken)
        peer = await Peer.open(running.url, MANUAL)
        await peer.send("text", "bug in here")  # the engine's echo brings it
        assert await peer.closed() == 1011
        assert peer.seen[-1][2] == "internal_error"
        assert len(running.service.sessions.conversations) == 1
        assert 'caught_errors_total{part="conversation"} 1.0' in (await running.client.get("/metrics")).text


async def test_the_engine_dies_and_the_conversation_goes_on(serving: Any) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, MANUAL)
        await peer.say("remember this")
        for _ in range(3):
            await peer.send("text", "wait a moment")
            await peer.until("reply_text")
            running.kill_engine()
            fault = await peer.until("error")
            assert (fault[2], fault[4]) == ("engine_lost", True)
            assert (await peer.until("turn_done"))[3] == "failed"
            # The next engine is not there yet: what is said waits for it.
            told = await peer.say("history")
            assert told[-1][3] == "done"
            text = "".join(message[3] for message in told if message[0] == "reply_text")
            assert "user=remember this;assistant=remember this;" in text
        await peer.bye()
        assert not running.service.engine._channels


async def test_an_engine_that_is_gone_for_good_refuses_turns(serving: Any) -> None:
    async with serving() as running:
        peer = await Peer.open(running.url, MANUAL)
        link = running.service.engine
        link._restarts._most = 0
        running.kill_engine()
        await peer.until("error")
        await eventually(lambda: link.state == "failed")
        told = await peer.say("anybody?")
        assert told[-1][3] == "failed"
        assert next(message for message in told if message[0] == "error")[2] == "overloaded"
        await peer.bye()


async def test_without_a_voice_or_an_ear(serving: Any) -> None:
    async with serving(asr_model="", tts_model="") as running:
        peer = await Peer.open(running.url)
        await peer.send("hello", MANUAL)
        await peer.until("ready")
        assert not peer.ready["config"]["speaks"]
        await peer.send("audio", bytes(640))
        assert (await peer.say("text alone"))[-1][3] == "done"
        await peer.bye()
    async with serving(model="") as running:
        peer = await Peer.open(running.url)
        await peer.send("hello", MANUAL)
        await peer.closed()
        assert peer.seen[-1][2] == "model_not_found"


async def test_before_the_engine_is_there(serving: Any) -> None:
    async with serving(model="never-ready", wait=False) as running:
        with pytest.raises(InvalidStatus) as refused:
            await Peer.open(running.url)
        assert refused.value.response.status_code == 503
        assert b"engine_not_ready" in (refused.value.response.body or b"")


async def test_going_down_lets_a_reply_be_heard(serving: Any) -> None:
    async with serving(server=ServerConfig(drain_s=3)) as running:
        idle = await Peer.open(running.url, MANUAL)
        peer = await Peer.open(running.url, SLOW)
        parked = await Peer.open(running.url, MANUAL)
        parked.drop()
        await eventually(lambda: running.service.sessions.limits.sockets.total() == 2)
        await peer.send("text", "a few words")
        await peer.until("audio")
        ending = asyncio.create_task(drain(running.service, running.http))
        assert (await peer.until("turn_done"))[3] == "done"
        assert await peer.closed() == 1012
        assert await idle.closed() == 1012
        assert names(idle.seen)[-2:] == ["go_away", "error"]
        await ending


async def test_going_down_does_not_wait_for_ever(serving: Any) -> None:
    async with serving(server=ServerConfig(drain_s=0.1), limits=LimitsConfig()) as running:
        peer = await Peer.open(running.url, MANUAL)
        await peer.send("text", "wait for ever")
        await peer.until("reply_text")
        await asyncio.gather(drain(running.service, running.http), peer.closed())
        assert peer.seen[-1][2] == "draining"
        assert [message[2:] for message in peer.of("turn_done")] == [[1, "interrupted"]]


async def test_a_long_talk_is_shown_in_part_and_a_name_is_remembered(serving: Any) -> None:
    async with serving(voice=VoiceConfig(instructions="Be kind.", history_tokens=60)) as running:
        peer = await Peer.open(running.url, {"config": {"speaks": False}})
        await peer.say("My name is Peter.")
        for number in range(12):
            await peer.say(f"What do you know about the number {number}?")
        told = await peer.say("history")
        text = "".join(message[3] for message in told if message[0] == "reply_text")
        assert text.startswith(
            "system=Be kind.\nThe person said earlier: My name is Peter.;user=What do you know about"
        )
        assert "number 11?;" in text
        assert "number 2?" not in text
        await peer.bye()


def test_instructions_name_the_day() -> None:
    assert (
        dated("It is {date}. {date}!", date(2026, 11, 7))
        == "It is Saturday, 7 November 2026. Saturday, 7 November 2026!"
    )
    config = Config(voice=VoiceConfig(instructions="Today is {date}.", greeting="Hi."))
    registry = SessionRegistry(
        config, EngineProcess(config.engine), Metrics(), "test", today=lambda: date(2026, 11, 17)
    )
    assert registry.offer.defaults.instructions == "Today is Tuesday, 17 November 2026."
    assert "{date}" in Config().voice.instructions


def test_what_a_model_is_shown_suits_where_it_runs() -> None:
    def budget(device: str, context: int, voice: VoiceConfig | None = None, chat: ChatConfig | None = None) -> int:
        config = Config(voice=voice or VoiceConfig(), chat=chat or ChatConfig())
        registry = SessionRegistry(config, EngineProcess(config.engine), Metrics(), "test")
        return registry.offer.new_history(EngineReady("m", "a", 1, context, "w", "p", 1, 1, 1, device))._budget

    def budget_with_speech(model: str, context: int, speech_context: int) -> int:
        registry = SessionRegistry(Config(), EngineProcess(Config().engine), Metrics(), "test")
        speech = ConverseModel("s", speech_context, 12.5, 1920)
        return registry.offer.new_history(
            EngineReady(model, "a", 1, context, "w", "p", 1, 1, 1, "cpu", speech=speech)
        )._budget

    assert budget_with_speech("", 0, 32_768) == 8000
    assert budget_with_speech("m", 2048, 32_768) == 1024  # the chat model writes replies that are only text
    assert budget_with_speech("m", 32_768, 2048) == 1024
    assert budget("cpu, 2 threads", 32_768) == 2000
    assert budget("cpu", 2048) == 1024
    assert budget("NVIDIA H200", 32_768) == 8000
    assert budget("cpu", 32_768, VoiceConfig(history_tokens=5000)) == 5000
    assert budget("cpu", 0, chat=ChatConfig("http://there/v1", "m")) == 6000
