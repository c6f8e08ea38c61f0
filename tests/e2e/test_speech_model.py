"""A whole conversation with a speech-to-speech model: a small random LFM2-Audio, so its voice is noise.

Everything else is real: the server, its engine, the recogniser that writes the captions, the sockets, and people who
cut in.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import lfm2_audio_checkpoint as checkpoint
import numpy as np
import phone_caller
import pytest
import webrtc_caller
from converse_listener import assert_alike
from openai import APIStatusError, AsyncOpenAI
from peer import eventually
from voice_server import RATE, VoiceServer

from voxlane.codecs.g711 import encode_mulaw
from voxlane.codecs.resample import resample
from voxlane.codecs.wav import decode_wav
from voxlane.engine.models.lfm2_audio.config import AUDIO_START
from voxlane.server import cli
from voxlane.server.client import SentAway, VoiceClient

from .caller import OUT_RATE
from .test_conversation import calling, cough, reply_to, say
from .test_talker import alike, check_words

pytestmark = pytest.mark.weights

QUESTION = "Tell me about the sea."
FRAME_SAMPLES = 1920
MANNER = {"max_tokens": 60, "temperature": 1.0}


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoiceServer]:
    """A server whose only model that answers is the random one."""
    folder = tmp_path_factory.mktemp("speech") / "noise"
    follows = {checkpoint.token_of("\n"): AUDIO_START}  # a text that it reads aloud
    checkpoint.write(folder, checkpoint.TRUE_RATIOS, "abcdefgh ", breathes=True, follows=follows)
    server = VoiceServer(
        tmp_path_factory.mktemp("server") / "log",
        *("--speech-model", str(folder), "--model", "", "--tts-model", "", "--asr-model", "moonshine-tiny-en"),
    )
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.soak
async def test_a_conversation_of_sound_and_sound(server: Any, talking: VoiceServer) -> None:
    """Noise answers; a cough holds it, and it goes on at the same sample; a question ends it and is answered."""
    sky, name = (say(server, text) for text in ("Why is the sky blue?", "Wait, what is your name?"))
    async with calling(talking.url, **MANNER) as caller:
        alone = await reply_to(caller, QUESTION)
        reply = await caller.until("reply", 0)
        done = await caller.until("reply_done", 0)
        check_words(caller, reply["epoch"], done["text"], len(alone) // 2)
        assert len(alone) > 0
        assert len(alone) % (2 * FRAME_SAMPLES) == 0
    async with calling(talking.url, **MANNER) as caller:
        assert alike(await reply_to(caller, QUESTION, cough()), alone)
        since = len(caller.events)
        caller.speak(sky)
        await caller.hear(0.8, since)
        caller.speak(name)
        cut = await caller.until("interrupted", since)
        told = [
            event["text"] for event in caller.events if event.name == "reply_text" and event["epoch"] == cut["epoch"]
        ]
        assert "".join(told).startswith(cut["heard"])
        assert 0.8 * OUT_RATE <= cut["samples"] < len(caller.sound(cut["epoch"])) // 2
        since = caller.events.index(cut)
        await caller.until("reply_done", since)
        after = [event for event in caller.events if event.sequence > cut.sequence and event.name == "audio"]
        assert min(event["epoch"] for event in after) > cut["epoch"]
        said = [event["text"].lower() for event in caller.events if event.name == "user_turn"]
        assert "sky" in said[1]
        assert "name" in said[2]
    while talking.metric("voxlane_engine_requests", state="running"):
        pass


async def test_the_realtime_api_speaks_with_it_and_it_knows_what_it_has_said(talking: VoiceServer) -> None:
    client = AsyncOpenAI(base_url=f"{talking.url}/v1", api_key="none")
    content = [{"type": "input_text", "text": QUESTION}]
    answers = []
    async with client.realtime.connect(model="gpt-realtime") as connection:
        await connection.session.update(session={"type": "realtime", "output_modalities": ["audio"]})
        for _ in range(2):
            await connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
            await connection.response.create(response={"max_output_tokens": 24})
            sound, words = 0, ""
            async for event in connection:
                if event.type == "response.output_audio.delta":
                    sound += len(event.delta)
                elif event.type == "response.output_audio_transcript.delta":
                    words += event.delta
                elif event.type == "response.done":
                    answers.append(event.response)
                    break
            assert sound
            assert words.strip()
            (answer,) = answers[-1].output
            assert (answers[-1].status, answers[-1].status_details.reason) == ("incomplete", "max_output_tokens")
            assert answer.content[0].transcript == words
            await connection.conversation.item.retrieve(item_id=answer.id)
            async for event in connection:
                if event.type == "conversation.item.retrieved":
                    break
            assert event.item.content[0].transcript == words.strip(), "its text was ended, and all of it was said"
    first, second = (answer.usage for answer in answers)
    assert first.output_tokens > 24  # tokens and frames
    assert second.input_tokens > first.input_tokens + first.output_tokens
    assert second.input_token_details.cached_tokens > first.input_tokens


@pytest.mark.soak
async def test_a_call_over_webrtc_is_answered_and_cut(server: Any, talking: VoiceServer) -> None:
    question, name = (server.say(text) for text in (QUESTION, "Wait, what is your name?"))
    settings = {"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}
    async with httpx.AsyncClient(base_url=talking.url, timeout=60) as http:
        refused = webrtc_caller.Caller(http)
        answer = await refused.post(session=settings | {"tools": [{"type": "function", "name": "get_time"}]})
        assert "session.tools must be empty: noise calls no tools" in answer.text
        await refused.close()
        caller = webrtc_caller.Caller(http)
        try:
            await caller.connect(await caller.post(session=settings | {"max_output_tokens": 200}))
            caller.microphone.say(question)
            transcribed = await caller.until("conversation.item.input_audio_transcription.completed")
            assert "sea" in transcribed["transcript"]
            started = await caller.until("output_audio_buffer.started")
            caller.microphone.say(name)
            cleared = await caller.until("output_audio_buffer.cleared")
            assert cleared["response_id"] == started["response_id"]
            assert (await caller.until("conversation.item.truncated"))["audio_end_ms"] > 0
            again = await caller.until("output_audio_buffer.started")
            assert again["response_id"] != started["response_id"]
            assert np.abs(np.concatenate(caller.heard)).max() > 0
        finally:
            await caller.close()


@pytest.mark.soak
async def test_a_telephone_call_is_answered_and_cut(server: Any, talking: VoiceServer) -> None:
    sounds = [server.say(text) for text in (QUESTION, "Wait, what is your name?")]
    async with phone_caller.TwilioCaller.calling(talking.url) as caller:
        for number, sound in enumerate(sounds):
            said, frame = encode_mulaw(np.asarray(resample(sound, RATE, caller.rate))), caller.frame_bytes()
            enough = len(caller.played) + caller.rate  # a second
            caller.speaking.extend(said[at : at + frame] for at in range(0, len(said), frame))
            await eventually(lambda: len(caller.clears) >= number and len(caller.played) >= enough)  # noqa: B023
        assert caller.wrong == []
        assert caller.open


@pytest.mark.soak
async def test_a_button_makes_turns_and_text_alone_may_be_asked_for(server: Any, talking: VoiceServer) -> None:
    question = say(server, QUESTION)
    async with calling(talking.url, **MANNER, turns={"mode": "manual"}) as caller:
        await caller.client.start_turn()
        caller.speak(question)
        await eventually(lambda: not caller.speech)
        await caller.client.end_turn()
        assert "sea" in (await caller.until("user_turn", 0))["text"]
        await caller.until("turn_done", 0)
        assert caller.sound((await caller.until("reply", 0))["epoch"])
        since = len(caller.events)
        await caller.client.configure(speaks=False)
        await caller.client.say("And in words?")
        done = await caller.until("reply_done", since)
        assert done["text"].strip()
        assert not [event for event in caller.events[since:] if event.name == "audio"]


@pytest.mark.soak
@pytest.mark.parametrize("complete", [False, True])
async def test_a_killed_engine_fails_only_what_it_had_not_completed(talking: VoiceServer, complete: bool) -> None:
    length = 60 if complete else 400
    async with calling(talking.url, temperature=1.0, max_tokens=length, turns={"mode": "manual"}) as caller:
        await caller.client.say(QUESTION)
        await caller.until("audio_done" if complete else "audio", 0)  # its last 1.5 s are still to be played
        os.kill(talking.engine_pid(), signal.SIGKILL)
        fault = await caller.until("error", 0)
        assert fault["code"] == "engine_lost"
        assert (await caller.until("turn_done", 0))["how"] == ("done" if complete else "failed")
        heard = (await caller.until("reply_done", 0))["text"]
        since = len(caller.events)
        await caller.client.configure(max_tokens=12)
        await caller.client.say("Go on.")  # it waits for the next engine
        assert (await caller.until("turn_done", since))["how"] == "done"
        assert heard.strip() or not complete


async def test_what_it_cannot_do_is_refused_by_name(talking: VoiceServer) -> None:
    for settings, reason in (
        ({"tools": [{"name": "get_time"}]}, "calls no tools"),
        ({"voice": "somebody"}, "has one voice"),
        ({"speed": 1.5}, "has one pace"),
        ({"pronunciations": ["Nguyen = win"]}, "how names are said"),
    ):
        with pytest.raises(SentAway, match=f"noise.* {reason}"):
            async with VoiceClient(f"{talking.url.replace('http', 'ws')}/v1/voice", config=settings):
                pass
    await asyncio.sleep(0.01)  # the closed socket's last task ends in the loop's next turn


@pytest.mark.soak
async def test_a_greeting_is_spoken_and_remembered(talking: VoiceServer) -> None:
    async with calling(talking.url, **MANNER, greeting="Hello, this is the library.") as caller:
        greeted = await caller.until("reply", 0)
        done = await caller.until("turn_done", 0, turn=greeted["turn"])
        await caller.finish_playing()
        sound = caller.sound(greeted["epoch"])
        assert done["how"] == "done"
        assert len(sound) > 0
        assert len(sound) % (2 * FRAME_SAMPLES) == 0
        check_words(caller, greeted["epoch"], "Hello, this is the library.", len(sound) // 2)
        assert await reply_to(caller, QUESTION)


TEXT = (
    "The library opens at nine, and a ticket costs $4.50. Children are free, and so are all those who bring a book that"
    " nobody else has read. Thanks!"
)


def spoken(talking: VoiceServer, **parameters: Any) -> bytes:
    asked: Any = {"model": "noise", "voice": "alloy", "input": TEXT, "response_format": "wav", **parameters}
    return talking.client.audio.speech.create(**asked).content


def as_pcm(samples: np.ndarray) -> bytes:
    return np.rint(np.asarray(samples) * 32768).astype("<i2").tobytes()


def test_a_text_is_read_aloud(talking: VoiceServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way to ask for it gives the same sound, up to one step of 16 bits.

    How a codec's frames are cut into calls depends on how far ahead of the listener they are, so on the machine's
    speed. Law 5 promises the same frames; products of another shape round their samples differently
    (engine/models/streaming_codec.py).
    """
    samples, rate = decode_wav(spoken(talking))
    assert rate == OUT_RATE
    assert len(samples) > 0
    assert len(samples) % FRAME_SAMPLES == 0
    with wave.open(io.BytesIO(spoken(talking, model="tts-1"))) as file:
        assert_alike(file.readframes(len(samples)), as_pcm(samples))
    with talking.client.audio.speech.with_streaming_response.create(
        model="noise", voice="alloy", input=TEXT, response_format="pcm"
    ) as answer:
        assert_alike(b"".join(answer.iter_bytes()), as_pcm(samples))
    monkeypatch.setattr(cli.log, "set_up", lambda level: None)  # the log of the tests stays as it is
    file_of_command = tmp_path / "said.wav"
    assert cli.main(["say", TEXT, "-o", str(file_of_command), "--url", talking.url]) == 0
    assert_alike(as_pcm(decode_wav(file_of_command.read_bytes())[0]), as_pcm(samples))
    other, _ = decode_wav(spoken(talking, instructions="A calm man with a deep voice."))
    assert other.tobytes() != samples.tobytes()


def test_what_a_text_cannot_ask_is_refused_by_name(talking: VoiceServer) -> None:
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"speed": 1.5}, "speed must be 1"),
        ({"voice": "somebody"}, "voice must be left out"),
        ({"extra_body": {"language": "german"}}, "language is not for this voice"),
        ({"extra_body": {"pronunciations": ["Siobhan = /ʃɪˈvɔːn/"]}}, "pronunciations must be respellings"),
        ({"model": "other"}, "noise"),
    )
    for parameters, reason in refused:
        with pytest.raises(APIStatusError, match=reason) as refusal:
            spoken(talking, **parameters)
        assert refusal.value.status_code in (400, 404)


def test_the_models_are_told(talking: VoiceServer) -> None:
    models = {model.id: model.voxlane["task"] for model in talking.client.models.list()}
    assert models == {"noise": "speech", "moonshine-tiny-en": "asr"}
