"""/v1/audio/voices over real sockets, asked by the stock `openai` client and by worse ones."""

from __future__ import annotations

import base64
import json
import logging
from array import array
from typing import Any

import openai
import pytest
from peer import MANUAL, Peer, eventually
from stock_client import stock_client
from websockets.asyncio.client import connect

from voxlane.codecs.pcm import decode_pcm16
from voxlane.codecs.wav import encode_wav
from voxlane.engine.api import MAX_VOICES
from voxlane.server import limits
from voxlane.server.engine_client.kept_voices import KeptVoice

CLIP_SECONDS = 2.5


def clip(seconds: float = CLIP_SECONDS, rate: int = 16_000) -> bytes:
    return encode_wav(decode_pcm16(array("h", [99] * round(seconds * rate)).tobytes()), rate)


async def make(server: Any, name: str = "Ada L.", file: bytes = b"", **parameters: Any) -> Any:
    """Make a voice as OpenAI's own client does; our parameters go along."""
    async with stock_client(server) as asking:
        asked: Any = {"consent": "true", "extra_body": parameters.pop("ours", None), **parameters}
        return await asking.audio.voices.create(name=name, audio_sample=("clip.wav", file or clip()), **asked)


async def refusal(server: Any, **fields: str) -> dict[str, Any]:
    """Post a form and return the error it gets."""
    form = {"name": "Ada", "consent": "true", **fields}
    answer = await server.client.post("/v1/audio/voices", data=form, files={"audio_sample": ("a.wav", clip())})
    assert answer.status_code == 400
    error: dict[str, Any] = answer.json()["error"]
    return error


async def heard(server: Any, voice: Any) -> str:
    """Return what the scripted engine says with a voice: one that was made speaks of how."""
    body = {"input": "Hello.", "voice": voice, "response_format": "pcm"}
    answer = await server.client.post("/v1/audio/speech", json=body)
    assert answer.status_code == 200, answer.text
    return "".join(map(chr, array("h", answer.content)))


async def test_a_voice_is_made_used_listed_and_deleted(serving: Any) -> None:
    async with serving() as server:
        voice = await make(server, ours={"text": "Good day.", "language": "en-GB"})
        assert (voice.id, voice.name, voice.object, voice.type) == ("Ada L.", "Ada L.", "audio.voice", "audio_sample")
        listed = (await server.client.get("/v1/audio/voices")).json()
        assert listed == {"object": "list", "data": [voice.model_dump(exclude_unset=True)]}
        assert await heard(server, "one") == "Hello."
        made = "2.50 s, 'Good day.', CloneParams(consent=True, language='english')"
        assert await heard(server, "Ada L.") == await heard(server, {"id": voice.id}) == made
        models = (await server.client.get("/v1/models")).json()["data"]
        assert models[-1]["voxlane"]["voices"] == ["one", "two", "af_alloy", "Ada L."]

        await make(server, file=clip(3.0))  # the same name: another voice
        assert "3.00 s, ''" in await heard(server, "Ada L.")
        async with stock_client(server) as asking:
            gone = await asking.audio.voices.delete(voice.id)
            assert (gone.id, gone.deleted, gone.object) == (voice.id, True, "audio.voice.deleted")
            with pytest.raises(openai.NotFoundError) as caught:
                await asking.audio.voices.delete(voice.id)
        assert caught.value.code == "voice_not_found"
        answer = await server.client.post("/v1/audio/speech", json={"input": "Hello.", "voice": "Ada L."})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "voice")
        assert (await server.client.delete("/v1/audio/voices/one")).status_code == 404  # the model's own


async def test_without_consent_nothing_is_made_and_the_answer_says_what_it_is(serving: Any) -> None:
    async with serving() as server:
        for consent in ("", "false", "yes", "1", "cons_1234"):
            error = await refusal(server, consent=consent)
            assert error["param"] == "consent"
            assert "has agreed that their voice is imitated" in error["message"]
        bare = await server.client.post("/v1/audio/voices", files={"audio_sample": ("a.wav", clip())})
        assert (bare.status_code, bare.json()["error"]["param"]) == (400, "consent")
        assert not len(server.service.engine.voices)


async def test_parameters_that_cannot_be_honoured(serving: Any) -> None:
    async with serving() as server:
        for name in ("", " Ada", "Ada ", "_Ada", "a/b", "a\nb", "x" * 65, "one", "alloy", "my_alloy"):
            assert (await refusal(server, name=name))["param"] == "name"
        for param, value in (("text", "x" * 1001), ("type", "prompt"), ("prompt", "deep"), ("colour", "red")):
            assert (await refusal(server, **{param: value}))["param"] == param
        bare = await server.client.post(
            "/v1/audio/voices", data={"name": "Ada", "consent": "true"}, files={"other": ("a.wav", b"x")}
        )
        assert bare.status_code == 400
        # What only the engine knows, it refuses itself.
        assert "the audio is too long" in (await refusal(server, text="refuse bad_request"))["message"]
        assert not len(server.service.engine.voices)


async def test_a_language_or_a_transcript_that_will_not_do_is_named_with_its_limit(serving: Any) -> None:
    async with serving(tts_model="instructed") as server:
        for asked in ("klingon", "xx-YY"):
            error = await refusal(server, language=asked)
            assert error["param"] == "language"
            assert error["message"].endswith("language must be one of english, german.")
        assert (await make(server, "Ada", ours={"language": "de-CH"})).id == "Ada"
        error = await refusal(server, text="x" * 1001)
        assert error["param"] == "text"
        assert "at most 1000 characters, or be left out." in error["message"]
        assert "at most 1000 characters" in (await refusal(server, text="x" * 20_000))["message"]
        # More than fits this recording: only the engine can tell.
        error = await refusal(server, text="refuse too_long")
        assert (error["param"], error["code"]) == ("text", "invalid_request")
        assert "must be what is said in audio_sample" in error["message"]
        assert error["message"].endswith("the audio is too long.")
        assert "context" not in error["message"]


async def test_recordings_that_cannot_be_used(serving: Any) -> None:
    async with serving() as server:
        for file, kind, code in (
            (b"RIFF, or so it says", openai.BadRequestError, "invalid_audio"),
            (clip()[:5000] + b"\xff" * 100, openai.BadRequestError, "invalid_audio"),
            (clip(0.9), openai.BadRequestError, "invalid_audio"),
            (clip(30.1), openai.APIStatusError, "too_large"),
            (bytes(limits.VOICE_SAMPLE_BYTES), openai.APIStatusError, "too_large"),
        ):
            with pytest.raises(kind) as caught:
                await make(server, file=file)
            assert caught.value.code == code
            assert caught.value.param in ("audio_sample", None)
        assert (await make(server, file=clip(30.0, 44_100))).id == "Ada L."
        assert (await heard(server, "Ada L.")).startswith("30.00 s")
        await eventually(lambda: not (server.service.audio.held or server.service.request_limit.inside))


async def test_there_are_only_so_many(serving: Any) -> None:
    async with serving() as server:
        for number in range(MAX_VOICES):
            await server.service.engine.keep_voice(KeptVoice(f"v{number}", b"a profile", 0))
        with pytest.raises(openai.BadRequestError, match="delete one first"):
            await make(server, "one more")
        await make(server, "v7")  # takes its own place
        await server.client.delete("/v1/audio/voices/v0")
        await make(server, "one more")
        assert len((await server.client.get("/v1/audio/voices")).json()["data"]) == MAX_VOICES


async def test_a_model_with_fixed_voices_says_which_could(serving: Any) -> None:
    async with serving(tts_model="fixed-voices") as server:
        with pytest.raises(openai.NotFoundError, match="Qwen3-TTS Base"):
            await make(server)
        assert (await server.client.get("/v1/audio/voices")).json()["data"] == []


async def test_a_new_engine_knows_the_voices_of_the_one_that_died(serving: Any) -> None:
    async with serving() as server:
        await make(server, "Ada")
        await make(server, "Grace")
        await server.client.delete("/v1/audio/voices/Grace")
        link = server.service.engine
        killed = server.kill_engine()
        await eventually(lambda: link.state == "restarting" or link.pid not in (None, killed))
        await link.wait_ready()
        assert link.ready.voices[-1] == "Ada"
        assert (await heard(server, "Ada")).startswith("2.50 s")
        with pytest.raises(openai.InternalServerError) as caught:  # one that dies under a recording takes none along
            await make(server, "Alan", ours={"text": "crash"})
        assert caught.value.code == "engine_lost"
        await link.wait_ready()
        with pytest.raises(openai.InternalServerError) as caught:
            await make(server, "Alan", ours={"text": "fail"})
        assert caught.value.code == "model_failed"
        assert [voice.name for voice in link.voices.all()] == ["Ada"]


async def test_conversations_speak_with_it(serving: Any) -> None:
    async with serving() as server:
        await make(server, "Ada")
        peer = await Peer.open(server.url, {"config": {**MANUAL["config"], "voice": "Ada"}})
        assert "Ada" in peer.ready["capabilities"]["voices"]
        await peer.say("hello")
        assert peer.ready["config"]["voice"] == "Ada"
        sound = b"".join(message[4] for message in peer.of("audio"))
        assert "2.50 s" in "".join(map(chr, array("h", sound)))

        chosen = {"type": "session.update", "session": {"audio": {"output": {"voice": {"id": "Ada"}}}}}
        said = [{"type": "input_text", "text": "hello"}]
        item = {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": said}}
        async with connect(server.url.replace("http", "ws") + "/v1/realtime?model=m") as socket:
            for event in (chosen, item, {"type": "response.create"}):
                await socket.send(json.dumps(event))
            told: list[dict[str, Any]] = []
            while not told or told[-1]["type"] != "response.done":
                told.append(json.loads(await socket.recv()))
        (updated,) = [event["session"] for event in told if event["type"] == "session.updated"]
        assert updated["audio"]["output"]["voice"] == "Ada"
        deltas = [base64.b64decode(event["delta"]) for event in told if event["type"] == "response.output_audio.delta"]
        assert "2.50 s" in "".join(map(chr, array("h", b"".join(deltas))))

        await server.client.delete("/v1/audio/voices/Ada")
        told_last = await peer.say("and now?")
        assert told_last[-1][3] == "done"
        sound = b"".join(message[4] for message in told_last if message[0] == "audio")
        assert "2.50 s" not in "".join(map(chr, array("h", sound)))  # not in that voice
        await peer.bye()


async def test_nothing_of_it_reaches_the_log(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "voxlane")
    async with serving() as server:
        await make(server, "Zanzibar", ours={"text": "Timbuktu"})
        await server.client.delete("/v1/audio/voices/Zanzibar")
        await server.client.delete("/v1/audio/voices/Zanzibar")
        await refusal(server, name="/Zanzibar", text="Timbuktu")
        with pytest.raises(openai.InternalServerError):
            await make(server, "Zanzibar", ours={"text": "fail Timbuktu"})
    assert "/v1/audio/voices" in caplog.text
    assert "/v1/audio/voices/{name}" in caplog.text
    assert "Zanzibar" not in caplog.text
    assert "Timbuktu" not in caplog.text


async def test_a_conversation_goes_on_when_its_voice_is_deleted(serving: Any) -> None:
    async with serving() as server:
        await server.service.engine.keep_voice(KeptVoice("Ada", b"I am Ada", 0))
        peer = await Peer.open(server.url, {"config": {**MANUAL["config"], "voice": "Ada"}})
        assert (await server.client.delete("/v1/audio/voices/Ada")).status_code == 200
        assert (await peer.until("configured"))[2]["voice"] == ""
        for temperature in (0.3, 0.4):  # its client still has the name in its configuration
            await peer.send("config", {"temperature": temperature})
            assert (await peer.until("configured"))[2]["voice"] == ""
        assert (await peer.say("still here"))[-1][3] == "done"
        await peer.send("config", {"voice": "Eve"})
        assert await peer.closed() == 4400


async def test_a_realtime_session_may_name_a_voice_that_comes_or_goes(serving: Any) -> None:
    async with serving() as server:
        address = server.url.replace("http", "ws", 1) + "/v1/realtime?model=m"
        async with connect(address) as socket:
            await server.service.engine.keep_voice(KeptVoice("Ada", b"I am Ada", 0))

            async def name(voice: str) -> str:
                session = {"type": "realtime", "audio": {"output": {"voice": voice}}}
                await socket.send(json.dumps({"type": "session.update", "session": session}))
                while json.loads(await socket.recv())["type"] != "session.updated":
                    pass
                (conversation,) = server.service.sessions.conversations.values()
                used: str = conversation.session.config.voice
                return used

            assert await name("Ada") == "Ada"
            assert (await server.client.delete("/v1/audio/voices/Ada")).status_code == 200
            assert await name("Ada") == ""
            assert await name("alloy") == "af_alloy"
            assert await name("nobody") == ""
