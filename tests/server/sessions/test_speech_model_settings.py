"""What a conversation may ask of a server whose speech-to-speech model answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from voxlane.engine.api import ConverseModel, Ready, Tool
from voxlane.server.config import Config, VoiceConfig
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.engine_client.engine_process import EngineProcess
from voxlane.server.errors import InvalidRequest
from voxlane.server.sessions.offer import ServerOffer
from voxlane.server.sessions.registry import SessionRegistry
from voxlane.server.sessions.speech_model_settings import for_speech_model
from voxlane.server.watching.metrics import Metrics

READY = Ready("", "", 0, 0, "", "", 0, 0, 0, "cpu", speech=ConverseModel("lfm2-audio", 4000, 12.5, 1920))
TOOLS = SessionConfig(tools=(Tool("get_time", "", "{}"),))


@pytest.mark.parametrize("chats", [False, True])
def test_a_spoken_reply_calls_no_tools(chats: bool) -> None:
    with pytest.raises(InvalidRequest, match=r"lfm2-audio.* calls no tools"):
        for_speech_model(TOOLS, READY, any_voice=True, chats=chats)


def test_a_reply_in_text_alone_calls_tools_if_a_chat_model_writes_it() -> None:
    written = SessionConfig(tools=TOOLS.tools, speaks=False, voice="somebody")
    assert for_speech_model(written, READY, any_voice=False, chats=True) == written
    with pytest.raises(InvalidRequest, match="calls no tools"):
        for_speech_model(written, READY, any_voice=True, chats=False)


def test_any_voice_is_the_models() -> None:
    assert for_speech_model(SessionConfig(voice="alloy"), READY, any_voice=True, chats=False).voice == ""
    with pytest.raises(InvalidRequest, match="has one voice"):
        for_speech_model(SessionConfig(voice="alloy"), READY, any_voice=False, chats=False)


def test_a_conversation_of_a_server_that_can_do_more_goes_on() -> None:
    """Its tools are lost with the model that called them."""
    engine = EngineProcess(Config().engine)
    engine._ready = READY
    registry = SessionRegistry(Config(), engine, Metrics(), "test")
    named = ("Siobhan = shiv-awn",)
    saved = SessionConfig(tools=TOOLS.tools, greeting="Hello!", voice="somebody", speed=1.5, pronunciations=named)
    assert registry.offer.adapted(saved) == SessionConfig(greeting="Hello!")
    told = registry.offer.capabilities(structs.replace(READY, speak_languages=("german",), instructed=True))
    assert (told.voices, told.voice_languages, told.instructed, told.one_pace) == ((), (), False, True)
    assert (told.speech_model, told.tools, told.written_tools, told.pronounced) == ("lfm2-audio", False, False, False)


def offer(config: Config, ready: Ready) -> ServerOffer:
    engine = EngineProcess(config.engine)
    engine._ready = ready
    return SessionRegistry(config, engine, Metrics(), "test").offer


def test_pronunciations_of_a_client_are_refused_and_the_operators_are_the_voices() -> None:
    named = ("Siobhan = shiv-awn",)
    config = Config(voice=VoiceConfig(pronunciations=named))
    alone, beside = offer(config, READY), offer(config, structs.replace(READY, tts_model="voice", speak_rate=24_000))
    assert alone.defaults.pronunciations == ()  # nothing is said with them
    assert beside.defaults.pronunciations == named  # a greeting is
    for one in (alone, beside):
        assert one.checked(one.defaults) == one.defaults
        with pytest.raises(InvalidRequest, match=r"^pronunciations: .*lfm2-audio chooses itself how names are said"):
            one.checked(replace(one.defaults, pronunciations=("Nguyen = win",)))
    written = SessionConfig(speaks=False, pronunciations=("Nguyen = win",))
    assert beside.checked(written) == written
