"""True calls: baresip rings Asterisk, Asterisk connects to the real server, a person talks, interrupts and hangs up."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any, TypeVar

import httpx
import numpy as np
import pytest
from house import Running, start
from small_model import NAME
from voice_server import words
from waiting import until

from voxlane.codecs.wav import decode_wav
from voxlane.server.config import PhoneConfig, PhoneKeys
from voxlane.server.conversation.client_events import ConfigureSession, Say
from voxlane.server.conversation.server_events import ToolCalled
from voxlane.server.engine_client.engine_process import ENGINE_COMMAND
from voxlane.server.exchange.asterisk import AUDIOSOCKET, ECHO, MULAW, SLIN16, TelephoneExchange
from voxlane.server.exchange.errors import ExchangeError
from voxlane.server.exchange.packages import installed
from voxlane.server.exchange.soft_phone import Phone
from voxlane.server.sessions.conversation import Conversation

T = TypeVar("T")

KEY = "a phone key"
GREETING = "Hello, this is the telephone. What can I do for you?"
STORY = (
    "Once upon a time there was an old lighthouse at the end of the world. Every evening the keeper climbed the stairs,"
    " lit the lamp and wrote down the names of the ships. One night a ship came that had no name at all, and the keeper"
    " went down to the beach to ask the captain where he came from and where he wanted to go."
)
ANSWER_S = 60.0


class House:
    """The real server on a loop in a thread of its own."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="house")

    def __enter__(self) -> House:
        self._thread.start()
        assert self._started.wait(300)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with start(**self._options) as self.running:
            self._started.set()
            await self._over.wait()

    running: Running

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(ANSWER_S)

    def do(self, work: Callable[[], T]) -> T:
        """Call a function on the server's loop."""

        async def call() -> T:
            return work()

        return self.run(call)

    def conversation(self) -> Conversation:
        """Return the only conversation."""
        (found,) = self.do(lambda: list(self.running.service.sessions.conversations.values()))
        return found

    def history(self) -> list[tuple[str, str]]:
        """Return what the only conversation remembers: who said what."""
        conversation = self.conversation()
        return self.do(lambda: [(item.kind, item.text) for item in conversation.session.history.items])

    def state(self) -> str:
        """Return the state of the only conversation's floor."""
        return self.conversation().state


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def line() -> Iterator[tuple[House, TelephoneExchange]]:
    """A server with the real engine, and an exchange that knows it."""
    try:
        installed()
    except ExchangeError as error:
        pytest.skip(str(error))
    port = free_port()
    phone = PhoneConfig(
        greeting=GREETING,
        silence_s=0,
        digits_s=0.5,
        hang_up=True,
        transfer=(f"echo = {ECHO}",),
        audiosocket=f"127.0.0.1:{port}",
    )
    with ExitStack() as stack:
        house = stack.enter_context(
            House(
                model=NAME,
                asr_model="auto",
                tts_model="hibari",
                phone=phone,
                phone_keys=PhoneKeys(phone=KEY),
                command=ENGINE_COMMAND,
            )
        )
        url = house.running.url.replace("http", "ws", 1) + "/v1/phone"
        try:
            exchange = stack.enter_context(TelephoneExchange(url, token=KEY, audiosocket=("127.0.0.1", port)))
        except ExchangeError as error:
            pytest.skip(str(error))
        yield house, exchange


@pytest.fixture
def call(line: tuple[House, TelephoneExchange]) -> Iterator[tuple[House, Phone]]:
    """A phone that has not dialled; after the test nothing of its call is left."""
    house, exchange = line
    with Phone(exchange) as phone:
        yield house, phone
        if phone.closed is None and phone.established is not None:
            phone.hang_up()
    until(lambda: len(house.running.service.sessions.conversations) == 0, "the conversation is over")
    until(lambda: "0 active channels" in exchange.console("core show channels"), "Asterisk has no channel left")


def spoken(house: House, text: str) -> tuple[np.ndarray, int]:
    """Return a text as the server's own voice says it."""
    body = {"model": "tts-1", "input": text, "voice": "alloy", "response_format": "wav"}
    answer = httpx.post(f"{house.running.url}/v1/audio/speech", json=body, timeout=ANSWER_S)
    answer.raise_for_status()
    return decode_wav(answer.content)


def transcript(house: House, wav: bytes) -> str:
    """Return what the server's own recogniser hears."""
    files = {"file": ("call.wav", wav)}
    answer = httpx.post(
        f"{house.running.url}/v1/audio/transcriptions", files=files, data={"model": "whisper-1"}, timeout=ANSWER_S
    )
    answer.raise_for_status()
    text: str = answer.json()["text"]
    return text


def likeness(heard: str, said: str) -> float:
    """Return how alike two texts are, word by word: 1 is equal."""
    return SequenceMatcher(None, words(heard), words(said), autojunk=False).ratio()


def tell_story(house: House, phone: Phone) -> None:
    """Have the assistant speak for some twenty seconds, and wait until the phone hears it."""
    conversation = house.conversation()
    house.do(lambda: conversation.feed(Say(STORY)))
    phone.wait_for_sound()


def begin(house: House, phone: Phone, number: str) -> None:
    """Ring, and listen to the greeting.

    From then on the model takes its likeliest words: now and then the others are in French, which the voice cannot say.
    """
    phone.dial(number)
    phone.wait_for_sound()
    phone.wait_for_silence(0.8)
    until(lambda: house.state() == "listening", "the greeting is over")
    conversation = house.conversation()
    steady = replace(conversation.session.config, temperature=0.0)
    house.do(lambda: conversation.feed(ConfigureSession(steady)))


@pytest.mark.parametrize("number", [MULAW, SLIN16, AUDIOSOCKET], ids=["ulaw", "slin16", "audiosocket"])
def test_a_spoken_question_is_answered_aloud(call: tuple[House, Phone], number: str) -> None:
    house, phone = call
    begin(house, phone, number)
    greeted = phone.heard()
    assert likeness(transcript(house, greeted.wav()), GREETING) > 0.8
    question, rate = spoken(house, "What is the capital of France?")
    _, asked = phone.say(question, rate).wait()
    began = phone.wait_for_sound(asked, ANSWER_S)
    phone.wait_for_silence(1.5)
    until(lambda: house.state() == "listening", "the answer is over")
    (_, caption) = house.history()[-1]
    kind, heard = house.history()[-2]
    assert kind == "user"
    assert likeness(heard, "What is the capital of France?") > 0.8
    answer = phone.heard()
    sound = type(answer)(began, answer.rate, answer.between(began - 0.1, answer.start + len(answer.samples)))
    assert likeness(transcript(house, sound.wav()), caption) > 0.6, caption


@pytest.mark.parametrize("number", [MULAW, AUDIOSOCKET], ids=["ulaw", "audiosocket"])
def test_an_interruption_stops_the_voice_and_history_ends_there(call: tuple[House, Phone], number: str) -> None:
    house, phone = call
    begin(house, phone, number)
    tell_story(house, phone)
    stop, rate = spoken(house, "Wait, stop. What time is it in Berlin?")
    began, _ = phone.say(stop, rate).wait()
    until(lambda: any(kind == "user" and text for kind, text in house.history()), "the turn is taken", ANSWER_S)
    told = next(text for kind, text in house.history() if STORY.startswith(text[:20]) and kind == "assistant" and text)
    assert STORY.startswith(told.rstrip("."))
    assert len(told) < len(STORY)
    # What the phone had played of the story transcribes to what the history keeps of it.
    heard = phone.heard()
    silent = heard.silent_from(began, pause_s=0.5)
    before = type(heard)(heard.start, heard.rate, heard.between(heard.start, silent))
    assert likeness(transcript(house, before.wav()), f"{GREETING} {told}") > 0.75
    phone.wait_for_silence(1.5, timeout_s=ANSWER_S)


def test_a_backchannel_does_not_stop_the_voice(call: tuple[House, Phone]) -> None:
    house, phone = call
    begin(house, phone, MULAW)
    tell_story(house, phone)
    mhm, rate = spoken(house, "Mhm.")
    phone.say(mhm, rate).wait()
    until(lambda: house.history()[-1][1].rstrip(".").endswith("go"), "the story is told to its end", ANSWER_S)
    assert all(kind == "assistant" for kind, _ in house.history())


def test_keys_arrive_and_interrupt(call: tuple[House, Phone]) -> None:
    house, phone = call
    begin(house, phone, MULAW)
    tell_story(house, phone)
    phone.press("42#")
    until(lambda: ("user", "I pressed 4 2 on my telephone.") in house.history(), "the keys are a turn", ANSWER_S)
    told = house.history()[1][1]
    assert len(told) < len(STORY)
    phone.wait_for_silence(1.5, timeout_s=ANSWER_S)


@pytest.mark.parametrize("number", [MULAW, AUDIOSOCKET], ids=["ulaw", "audiosocket"])
def test_either_side_can_hang_up(call: tuple[House, Phone], line: tuple[House, TelephoneExchange], number: str) -> None:
    house, phone = call
    begin(house, phone, number)
    phone.hang_up()
    until(lambda: len(house.running.service.sessions.conversations) == 0, "the conversation is over")
    begin(house, phone, number)
    conversation = house.conversation()
    house.do(lambda: conversation.send(ToolCalled(0, "call", "hang_up", "{}")))
    phone.wait_closed()
    until(lambda: len(house.running.service.sessions.conversations) == 0, "the conversation is over")
    assert conversation.over


def test_a_caller_is_transferred(call: tuple[House, Phone]) -> None:
    """The exchange asks what follows, and connects the caller with the number of the configuration: an echo."""
    house, phone = call
    begin(house, phone, MULAW)
    conversation = house.conversation()
    house.do(lambda: conversation.send(ToolCalled(0, "call", "transfer", '{"to": "echo"}')))
    until(lambda: len(house.running.service.sessions.conversations) == 0, "the conversation is over")
    words_again, rate = spoken(house, "Hello, echo.")
    began, ended = phone.say(words_again, rate).wait()
    phone.wait_for_sound(began)
    phone.wait_for_silence(1.0)
    heard = phone.heard()
    echo = type(heard)(began, heard.rate, heard.between(began, ended + 1.0))
    assert likeness(transcript(house, echo.wav()), "Hello, echo.") > 0.6
