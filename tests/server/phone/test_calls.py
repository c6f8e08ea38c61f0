"""Calls over real sockets with the scripted engine: keys, greeting, tools, silence, the end, and what is refused."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from house import start as start_house
from peer import eventually
from phone_caller import STREAM, calling, start
from phone_systems import SinchCaller
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from voxlane.codecs.g711 import encode_mulaw
from voxlane.codecs.pcm import decode_pcm16
from voxlane.engine.api import Submit
from voxlane.server.config import PhoneConfig, PhoneKeys
from voxlane.server.conversation.client_events import ConfigureSession, TextTurn
from voxlane.server.conversation.server_events import ReplyDone, ToolCalled
from voxlane.server.conversation.values import Item
from voxlane.server.errors import ConfigError
from voxlane.server.phone.call_tools import CallTools
from voxlane.server.phone.tones import key_tones

HANG_UP, COLLECT = CallTools(hang_up=True, collect_digits=True).tools
QUIET = PhoneConfig(voice="two", digits_s=0.1, silence_s=0)


def history(running: Any) -> list[tuple[str, str]]:
    """Return what the only conversation remembers: who said what."""
    (conversation,) = running.service.sessions.conversations.values()
    items: list[Item] = list(conversation.session.history.items)
    return [(item.kind, item.text) for item in items]


async def ended(running: Any) -> None:
    await eventually(lambda: len(running.service.sessions.conversations) == 0)


async def test_keys_are_a_turn_and_its_answer_is_heard(serving: Any) -> None:
    async with serving(phone=QUIET) as running, calling(str(running.client.base_url)) as caller:
        await caller.press("42")
        words = "I pressed 4 2 on my telephone."
        await eventually(lambda: len(caller.played) >= len(words) * 400)  # 50 ms for a character
        await eventually(lambda: history(running) == [("user", words), ("assistant", words)])
        assert len(caller.played) == pytest.approx(len(words) * 400, abs=160)
        assert not caller.clears
        await caller.stop()
        assert await caller.gone() == 1000
        await ended(running)


async def test_a_call_of_sinch_which_knows_no_keys(serving: Any) -> None:
    config = replace(QUIET, greeting="Good morning. " * 12)
    async with serving(phone=config) as running, SinchCaller.calling(str(running.client.base_url)) as caller:
        await eventually(lambda: len(caller.played) > 16_000)
        (conversation,) = running.service.sessions.conversations.values()
        conversation.feed(TextTurn("Hello"))
        await eventually(lambda: caller.clears)
        await eventually(lambda: history(running)[-1] == ("assistant", "Hello"))
        assert caller.answered
        assert not caller.wrong


async def test_a_greeting_is_said_on_answer_and_a_key_interrupts_it(serving: Any) -> None:
    greeting = "Good morning. " * 12
    config = PhoneConfig(voice="two", digits_s=0.1, silence_s=0, greeting=greeting)
    async with serving(phone=config) as running, calling(str(running.client.base_url)) as caller:
        await eventually(lambda: len(caller.played) > 8000)
        await caller.press("1")
        await eventually(lambda: caller.clears)
        (heard,) = caller.clears
        assert heard < len(greeting) * 400
        await eventually(lambda: len(history(running)) >= 2)
        kind, said = history(running)[0]
        assert kind == "assistant"
        # The words in the history are those that the line had played: 20 ms are half a character here.
        assert abs(len(said) * 400 - heard) <= 400 * len("morning.") / 2 + 400
        await eventually(lambda: history(running)[1:2] == [("user", "I pressed 1 on my telephone.")])


async def test_a_silent_caller_is_asked_and_then_left(serving: Any) -> None:
    config = PhoneConfig(silence_s=0.3, reprompts=2, reprompt="Hello?", good_bye="Bye.")
    async with serving(phone=config) as running, calling(str(running.client.base_url)) as caller:
        said: list[list[tuple[str, str]]] = []

        async def watch() -> None:
            await eventually(lambda: len(running.service.sessions.conversations))
            while len(running.service.sessions.conversations):
                said.append(history(running))
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        assert await caller.gone() == 1000
        await watching
        assert said[-1] == [("assistant", "Hello?"), ("assistant", "Hello?"), ("assistant", "Bye.")]
        await ended(running)


async def test_a_long_call_ends_with_good_bye(serving: Any) -> None:
    config = PhoneConfig(call_s=1, good_bye="Bye.", silence_s=0)
    async with serving(phone=config) as running, calling(str(running.client.base_url)) as caller:
        assert await caller.gone() == 1000
        assert len(caller.played) > 0
        await ended(running)


@pytest.mark.parametrize("interrupts", [False, True])
async def test_the_model_can_hang_up_where_it_may(serving: Any, interrupts: bool) -> None:
    config = PhoneConfig(voice="two", digits_s=0.1, silence_s=0, hang_up=True)
    async with serving(phone=config) as running, calling(str(running.client.base_url)) as caller:
        (conversation,) = [one async for one in _conversations(running)]
        conversation.feed(TextTurn("call Good bye to you my friend"))
        await eventually(lambda: len(caller.played) > 1600)
        if interrupts:
            await caller.press("0")
            await eventually(lambda: ("user", "I pressed 0 on my telephone.") in history(running))
            await eventually(lambda: history(running)[-1][0] == "assistant")
            assert caller.close_code is None
            return
        assert await caller.gone() == 1000
        assert len(caller.played) == pytest.approx(len("Good bye to you my friend") * 400, abs=400)
        await ended(running)


async def _conversations(running: Any) -> Any:
    await eventually(lambda: len(running.service.sessions.conversations))
    for conversation in running.service.sessions.conversations.values():
        yield conversation


async def test_the_model_can_press_keys(serving: Any) -> None:
    config = PhoneConfig(digits_s=0.1, silence_s=0, send_digits=True)
    async with serving(phone=config) as running, calling(str(running.client.base_url)) as caller:
        (conversation,) = [one async for one in _conversations(running)]
        conversation.send(ToolCalled(1, "c1", "send_digits", '{"digits": "19"}'))
        wanted = encode_mulaw(decode_pcm16(key_tones("19", 8000)))
        await eventually(lambda: len(caller.played) >= len(wanted))
        assert bytes(caller.played) == wanted


async def test_bad_input_ends_one_call_with_one_line(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    connected, begun = start()
    foreign = json.dumps({"event": "media", "streamSid": "MZother", "media": {"payload": "////"}})
    wrong = json.dumps({"event": "media", "streamSid": STREAM, "media": {"payload": "%%%"}})
    huge = json.dumps({"event": "media", "streamSid": STREAM, "media": {"payload": "A" * (1 << 20)}})
    cases = {
        "media first": [json.dumps({"event": "media", "streamSid": STREAM, "media": {"payload": "////"}})],
        "no start": [connected, connected, connected],
        "a foreign stream": [connected, begun, foreign],
        "wrong base64": [connected, begun, wrong],
        "a megabyte": [connected, begun, huge],
        "two starts": [connected, begun, begun],
        "not JSON": ["hello"],
        "sound first": [b"\xff" * 160],
    }
    async with serving(phone=QUIET) as running:
        url = str(running.client.base_url).replace("http", "ws", 1).rstrip("/") + "/v1/phone"
        for name, messages in cases.items():
            caplog.clear()
            async with connect(url, compression=None) as socket:
                for message in messages:
                    await socket.send(message)
                await socket.wait_closed()
                assert socket.close_code in (1008, 1009), name
            await ended(running)
            lines = [record.getMessage() for record in caplog.records if record.name.startswith("voxlane")]
            assert sum("call closed" in line for line in lines) <= 1, (name, lines)
            assert not any("////" in line or "%%%" in line for line in lines)


async def test_a_flood_of_marks_and_a_jumping_clock_change_nothing(serving: Any) -> None:
    async with serving(phone=QUIET) as running, calling(str(running.client.base_url)) as caller:
        for number in range(200):
            await caller.send({"event": "mark", "mark": {"name": f"{number}"}})
        caller._frames = 10**9
        await asyncio.sleep(0.1)
        caller._frames = 5
        await caller.press("7#")
        words = "I pressed 7 on my telephone."
        await eventually(lambda: history(running) == [("user", words), ("assistant", words)])
        assert len(caller.played) == pytest.approx(len(words) * 400, abs=160)


async def test_a_call_needs_its_token_where_the_server_has_a_key(serving: Any) -> None:
    async with serving(api_key="secret", phone=QUIET, phone_keys=PhoneKeys(phone="phone-key")) as running:
        url = str(running.client.base_url)
        async with calling(url, {"token": "phone-key"}) as caller:
            await caller.press("5#")
            await eventually(lambda: len(caller.played) > 160)
        async with calling(url, {"token": "wrong"}) as caller:
            assert await caller.gone() == 1008
            assert not caller.played
        async with calling(url) as caller:
            assert await caller.gone() == 1008
        with pytest.raises(InvalidStatus):
            async with calling(url, additional_headers={"Authorization": "Bearer wrong"}):
                pass
        await ended(running)


async def test_numbers_are_masked_in_the_log(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(phone=QUIET) as running:
        async with calling(str(running.client.base_url), {"from": "+4930987654", "to": "+49800555"}) as caller:
            await caller.press("5#")
            await eventually(lambda: len(caller.played) > 160)
        await ended(running)
        lines = [record.getMessage() for record in caplog.records if record.name.startswith("voxlane")]
        assert any("call open" in line and "...54" in line for line in lines)
        assert not any("30987654" in line or "800555" in line or "pressed" in line for line in lines)
        metrics = (await running.client.get("/metrics")).text
        assert 'voxlane_calls_total{system="twilio"} 1.0' in metrics
        assert "30987654" not in metrics


CALL_TOOLS = PhoneConfig(
    voice="two", digits_s=0.1, silence_s=0.5, reprompts=0, good_bye="Bye.", hang_up=True, collect_digits=True
)


async def only_conversation(running: Any) -> Any:
    (conversation,) = [one async for one in _conversations(running)]
    return conversation


async def test_a_hang_up_without_words_says_good_bye_once(serving: Any) -> None:
    async with serving(phone=CALL_TOOLS) as running, calling(str(running.client.base_url)) as caller:
        conversation = await only_conversation(running)
        said: list[str] = []
        send = conversation.send

        def watched(event: Any) -> None:
            if isinstance(event, ReplyDone):
                said.append(event.text)
            send(event)

        conversation.send = watched
        conversation.feed(ConfigureSession(replace(conversation.session.config, tools=(HANG_UP,))))
        conversation.feed(TextTurn("call"))
        assert await caller.gone() == 1000
        assert said == ["", "Bye."]


async def test_a_caller_who_speaks_after_good_bye_is_kept(serving: Any) -> None:
    async with serving(phone=CALL_TOOLS) as running, calling(str(running.client.base_url)) as caller:
        conversation = await only_conversation(running)
        await eventually(lambda: caller.played)  # good-bye is being said
        conversation.feed(TextTurn("sorry I am here"))
        await eventually(lambda: ("assistant", "sorry I am here") in history(running))
        await eventually(lambda: len(history(running)) == 4)  # the silence counts anew: another good-bye
        assert await caller.gone() == 1000


async def test_a_tool_that_waits_for_keys_gets_an_answer_in_every_case(serving: Any) -> None:
    config = replace(CALL_TOOLS, reprompts=100)
    async with serving(phone=config) as running, calling(str(running.client.base_url)) as caller:

        def results() -> list[str]:
            return [text for kind, text in history(running) if kind == "result"]

        async def asks(text: str, state: str) -> None:
            """Have the model speak and call the tool, when the turn before is over."""
            await eventually(lambda: conversation.state == "listening")
            calls = sum(kind == "call" for kind, _ in history(running))
            conversation.feed(TextTurn(f"call {text}"))
            await eventually(lambda: sum(kind == "call" for kind, _ in history(running)) > calls)
            await eventually(lambda: conversation.state == "speaking")
            await eventually(lambda: conversation.state == state)

        conversation = await only_conversation(running)
        conversation.feed(ConfigureSession(replace(conversation.session.config, tools=(COLLECT,))))
        await asks("Press now", "thinking")
        await eventually(lambda: any("no key" in text for text in results()))
        await asks("Press again", "thinking")
        await caller.press("12#")
        await eventually(lambda: json.dumps({"digits": "12"}) in results())
        await asks("Press a third time please", "speaking")
        await caller.press("34#")  # the key interrupts, and the number is a turn
        await eventually(lambda: ("user", "I pressed 3 4 on my telephone.") in history(running))
        await eventually(lambda: json.dumps({"digits": "34"}) in results())
        await asks("Press or speak", "thinking")
        conversation.feed(TextTurn("I would rather speak"))
        await eventually(lambda: any("spoken instead" in text for text in results()))
        await eventually(lambda: ("assistant", "I would rather speak") in history(running))


async def test_a_long_reply_is_cut_for_good_bye_at_the_time_limit(serving: Any) -> None:
    config = PhoneConfig(voice="two", call_s=1.5, good_bye="Bye.", silence_s=0, greeting="word " * 200)
    async with serving(phone=config) as running, calling(str(running.client.base_url)) as caller:
        assert await caller.gone() == 1000
        assert caller.clears  # the greeting was cut
        heard_after = len(caller.played) - caller.clears[-1]
        assert heard_after == pytest.approx(400 * len("Bye."), abs=200)


async def test_calls_say_good_bye_when_the_server_goes_down(serving: Any) -> None:
    async with serving(phone=replace(CALL_TOOLS, silence_s=0)) as running:
        url = str(running.client.base_url)
        async with calling(url) as idle, calling(url) as busy:
            await busy.press("1#")
            await eventually(lambda: len(busy.played) > 800)
            await running.service.sessions.drain.run(8.0)
            assert [await idle.gone(), await busy.gone()] == [1000, 1000]
            assert len(idle.played) == pytest.approx(400 * len("Bye."), abs=200)
            words = len("I pressed 1 on my telephone.") + len("Bye.")
            assert len(busy.played) == pytest.approx(400 * words, abs=400)


async def test_the_delay_is_measured_before_the_first_sound(serving: Any) -> None:
    config = PhoneConfig(voice="two", greeting="Hello to you all", silence_s=0)
    async with serving(phone=config) as running, calling(str(running.client.base_url)) as caller:
        await eventually(lambda: len(caller.marks) > 2)
        assert caller.marks[0].startswith("p")


async def test_key_tones_follow_the_reply_that_asked_for_them(serving: Any) -> None:
    config = PhoneConfig(voice="two", digits_s=0.1, silence_s=0, send_digits=True)
    async with serving(phone=config) as running, calling(str(running.client.base_url)) as caller:
        conversation = await only_conversation(running)
        conversation.feed(TextTurn("a few words to say before"))
        await eventually(lambda: len(caller.played) > 800)
        epoch = conversation.session.answers.reply.epoch
        conversation.send(ToolCalled(epoch, "c1", "send_digits", '{"digits": "5"}'))
        wanted = encode_mulaw(decode_pcm16(key_tones("5", 8000)))
        spoken = 400 * len("a few words to say before")
        await eventually(lambda: len(caller.played) >= spoken + len(wanted))
        assert bytes(caller.played[-len(wanted) :]) == wanted


async def test_an_occupied_port_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"phone\.audiosocket"):
            async with start_house(phone=PhoneConfig(audiosocket=address)):
                pass


async def test_a_tunnel_on_this_machine_does_not_open_the_line(serving: Any) -> None:
    async with serving(phone=QUIET) as running:
        address = str(running.client.base_url).replace("http", "ws", 1).rstrip("/") + "/v1/phone?token="
        with pytest.raises(InvalidStatus):
            await connect(address, additional_headers={"Host": "abc.tunnel.example"}, compression=None)


@pytest.mark.parametrize(("given", "wanted"), [("de", ("de", "de", "de")), ("", ("", "en", "en"))])
async def test_the_language_of_calls_reaches_the_conversation_and_the_ear(
    serving: Any, given: str, wanted: tuple[str, str, str]
) -> None:
    phone = PhoneConfig(voice="two", silence_s=0, language=given)
    async with serving(phone=phone) as running, calling(str(running.client.base_url)) as caller:
        conversation = await only_conversation(running)
        config = conversation.session.config
        assert [config.language, config.turns.language, config.barge_in.language] == list(wanted)
        listened: list[str] = []
        tell = conversation.channel.tell

        def told(message: Any) -> Any:
            if isinstance(message, Submit) and message.task == "asr":
                listened.append(message.listen.language)
            return tell(message)

        conversation.channel.tell = told
        time = np.arange(16_000) / 8000
        hum = sum(np.sin(2 * np.pi * 140 * number * time) / number for number in range(1, 6))
        sound = encode_mulaw((0.1 * hum).astype(np.float32))
        caller.speaking.extend(sound[at : at + 160] for at in range(0, len(sound), 160))
        await eventually(lambda: listened)
        assert set(listened) == {wanted[0]}
