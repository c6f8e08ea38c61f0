"""Calls from every telephone system, in real time over real sockets: keys, interruptions, holds, the end, bad input.

The far ends play by the clock, and the server knows by marks and by the clock what they have played. A busy machine
delays messages; the far end measures by how much, and comparisons of the two allow for that beside a frame of 20 ms.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from cells import free_port
from peer import eventually
from phone_caller import PULSE_S, STREAM, TICK_S, Caller, Message, NoWire, Wire
from phone_systems import STREAM_ID, SYSTEMS, AsteriskCaller, AudioSocketCaller, ExotelCaller, GenesysCaller

from voxlane.codecs.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw
from voxlane.codecs.pcm import Floats, decode_pcm16, encode_pcm16
from voxlane.codecs.resample import Resampler
from voxlane.engine.api import LISTEN_RATE
from voxlane.server.config import PhoneConfig, VoiceConfig
from voxlane.server.conversation.client_events import Audio, ConfigureSession, Say, TextTurn
from voxlane.server.conversation.server_events import Duck, Hold, Interrupted, Release
from voxlane.server.conversation.turns.policies import Holding
from voxlane.server.conversation.values import Item
from voxlane.server.sessions.conversation import Conversation

SPEAK_RATE = 24_000
CHARACTER_S = 0.05  # what the scripted voice "two" takes for a character
LETTERS = " ".join(string.ascii_lowercase)  # words of one letter: one each 100 ms
LOOKING_BACK_S = 0.3  # marks that came before have no effect any more
LAST = "ΩΩ"  # louder than any letter
SILENT = 0.0005  # of full scale; a space has 0.001, and 0.0002 where the voice is lowered
LONGEST_FILL_S = 0.16  # silence that fills up the last message of a reply

PLAIN_EARS = VoiceConfig(echo_guard="off")
"""The guard changes the caller's sound, and the scripted engine would hear letters in it."""

EVERY = pytest.mark.parametrize("name", SYSTEMS)


# ---- sound


def encoded(samples: Floats, kind: type[Caller]) -> bytes:
    """Return samples in the format of a line."""
    pcm = encode_pcm16(samples)
    match kind.codec:
        case "mulaw":
            return encode_mulaw(decode_pcm16(pcm))
        case "alaw":
            return encode_alaw(decode_pcm16(pcm))
        case _:
            return pcm


def decoded(sound: bytes, kind: type[Caller]) -> Floats:
    """Return the samples of a line."""
    return {"mulaw": decode_mulaw, "alaw": decode_alaw, "pcm16": decode_pcm16}[kind.codec](sound)


def spoken(text: str, kind: type[Caller]) -> bytes:
    """Return the sound of a text as the scripted voice speaks it, in the format of a line."""
    each = round(SPEAK_RATE * CHARACTER_S)
    samples = np.repeat(np.array([ord(one) for one in text], np.float32) / 32768, each)
    resampler = Resampler(SPEAK_RATE, kind.rate)
    return encoded(np.concatenate([resampler.push(samples), resampler.flush()]), kind)


def frames(sound: bytes, kind: type[Caller]) -> list[bytes]:
    """Return sound in frames of 20 ms; what does not fill one is left out."""
    size = kind.frame_bytes()
    return [sound[at : at + size] for at in range(0, len(sound) // size * size, size)]


def hum(kind: type[Caller], length_s: float) -> list[bytes]:
    """Return a hum: the ear hears something. It is below zero throughout, so the scripted engine hears no letters."""
    time = np.arange(round(length_s * kind.rate)) / kind.rate
    wave = sum(np.sin(2 * np.pi * 140 * number * time) / number for number in range(1, 6))
    edge = np.minimum(1.0, np.minimum(time, time[::-1]) / 0.02)
    return frames(encoded((0.1 * edge * (wave - 2.5)).astype(np.float32), kind), kind)


def without_silence(sound: bytes, caller: Caller) -> bytes:
    """Return sound without the silence at its beginning, which must be short: it fills up what was before."""
    loud = np.flatnonzero(np.abs(decoded(sound, type(caller))) > SILENT)
    start = int(loud[0]) if len(loud) else len(sound) // caller.width()
    assert start <= LONGEST_FILL_S * caller.rate
    return sound[start * caller.width() :]


def without_end(sound: bytes, caller: Caller) -> bytes:
    """Return sound without the silence at its end."""
    loud = np.flatnonzero(np.abs(decoded(sound, type(caller))) > SILENT)
    return sound[: (int(loud[-1]) + 1) * caller.width()]


def alike(one: bytes, other: bytes, kind: type[Caller]) -> tuple[int, int]:
    """Return how many bytes two sounds have in common at their beginnings, and at their ends."""
    form, size = ("<i2" if kind.width() == 2 else "u1"), min(len(one), len(other))

    def common(first: bytes, second: bytes, step: int) -> int:
        differ = np.flatnonzero((np.frombuffer(first, form) != np.frombuffer(second, form))[::step])
        return int(differ[0]) * kind.width() if len(differ) else size

    return common(one[:size], other[:size], 1), common(one[-size:], other[-size:], -1)


def answered(keys: str) -> str:
    """Return what a caller who presses keys says, which the scripted engine repeats."""
    return f"I pressed {' '.join(keys)} on my telephone."


def heard_text(text: str, seconds: float) -> str:
    """Return the words of a text of which at least half was played after so many seconds."""
    ends = [
        word.end() for word in re.finditer(r"\S+", text) if (word.start() + word.end()) / 2 * CHARACTER_S <= seconds
    ]
    return text[: ends[-1]] if ends else ""


# ---- calls


@dataclass
class Call:
    """A call under way: both ends of it, and what the conversation has decided."""

    running: Any
    caller: Any
    conversation: Conversation
    decided: list[Any] = field(default_factory=list)
    heard: bytearray = field(default_factory=bytearray)  # the caller's sound as the conversation gets it

    def watch(self) -> None:
        """Note what goes into the conversation, and what comes out of it."""
        send, feed = self.conversation.send, self.conversation.feed

        def sent(event: Any) -> None:
            if isinstance(event, Duck | Hold | Interrupted | Release):
                self.decided.append(event)
            send(event)

        def fed(event: Any) -> None:
            if isinstance(event, Audio):
                self.heard.extend(event.pcm)
            feed(event)

        self.conversation.send, self.conversation.feed = sent, fed  # type: ignore[method-assign]

    def history(self) -> list[tuple[str, str]]:
        """Return what the conversation remembers: who said what."""
        items: list[Item] = list(self.conversation.session.history.items)
        return [(item.kind, item.text) for item in items]

    def of(self, *kinds: type) -> list[Any]:
        return [event for event in self.decided if isinstance(event, kinds)]

    def seconds(self, count: int) -> float:
        """Return how long so many bytes of the line take."""
        return float(count / (self.caller.rate * self.caller.width()))

    async def played(self, count: int) -> None:
        """Wait until the line has played so much."""
        await eventually(lambda: len(self.caller.played) >= count)

    async def played_since(self, start: int, seconds: float) -> None:
        """Wait until the line has played for so long since a byte of it."""
        await eventually(lambda: self.seconds(len(self.caller.played) - start) >= seconds)

    @property
    def slack_s(self) -> float:
        """How far the far end and the server may be apart: a frame, and what this machine has delayed of late."""
        return float(TICK_S + PULSE_S + self.caller.lag_s)  # delays below a pulse are not measured


@asynccontextmanager
async def call(serving: Any, name: str, voice: VoiceConfig | None = None, **config: Any) -> AsyncIterator[Call]:
    """Serve, and ring from a system; at the end nothing may be left, and nothing wrong."""
    kind, port = SYSTEMS[name], free_port()
    options = {"voice": "two", "digits_s": 0.1, "silence_s": 0, "audiosocket": f"127.0.0.1:{port}", **config}
    async with serving(phone=PhoneConfig(**options), voice=voice) as running:
        # As uvloop does it for every connection. Without it the kernel keeps a small message back for up to 40 ms.
        running.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        url = f"tcp://127.0.0.1:{port}" if kind is AudioSocketCaller else running.url
        async with kind.calling(url) as caller:
            await eventually(lambda: len(running.service.sessions.conversations))
            (conversation,) = running.service.sessions.conversations.values()
            one = Call(running, caller, conversation)
            one.watch()
            yield one
        await ended(running)
        assert not caller.wrong


async def ended(running: Any) -> None:
    """Wait until nothing is left of any call."""
    sessions = running.service.sessions
    await eventually(lambda: len(sessions.conversations) == 0 and not sessions.limits.sockets)
    await eventually(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("phone")])


@EVERY
async def test_answers_are_heard_whole_and_once(serving: Any, name: str) -> None:
    kind = SYSTEMS[name]
    async with call(serving, name) as one:
        await one.caller.press("42")
        await eventually(lambda: one.history()[1:] == [("assistant", answered("42"))])
        one.conversation.feed(Say("Hello"))  # 250 ms: no whole number of frames
        await eventually(lambda: one.history()[2:] == [("assistant", "Hello")])
        await one.caller.press("7#")
        sounds = [spoken(text, kind) for text in (answered("42"), "Hello", answered("7"))]
        await eventually(lambda: sounds[-1] in one.caller.played)
        await eventually(lambda: one.history()[4:] == [("assistant", answered("7"))])
        await one.caller.hang_up()
        await ended(one.running)
        left = bytes(one.caller.played)
        for sound in sounds:
            left = without_silence(left, one.caller)
            assert left[: len(sound)] == sound
            left = left[len(sound) :]
        assert not without_silence(left, one.caller)
        assert not one.caller.clears
        if isinstance(one.caller, ExotelCaller):
            assert one.caller.short <= len(sounds)  # only the last message of a reply is short
        if isinstance(one.caller, GenesysCaller):
            assert one.caller.pongs
            assert one.caller.state == "closed"


@EVERY
async def test_a_key_stops_the_voice_and_the_history_has_what_was_heard(serving: Any, name: str) -> None:
    kind = SYSTEMS[name]
    texts = [LETTERS, answered("1"), answered("2")]
    sounds = [spoken(text, kind) for text in texts]
    async with call(serving, name, greeting=LETTERS, hang_up=True) as one:
        starts, slacks = [0], list[float]()
        for number, (until_s, key) in enumerate(((0.63, "1"), (0.93, "2"))):
            await one.played_since(starts[-1], until_s - LOOKING_BACK_S)
            one.caller.lag_s = 0.0
            await one.played_since(starts[-1], until_s)
            await one.caller.press(key)
            await eventually(lambda: len(one.of(Interrupted)) > number)  # noqa: B023
            await eventually(lambda: len(one.caller.clears) > number or kind is AudioSocketCaller)  # noqa: B023
            slacks.append(one.slack_s)
            begins = sounds[number + 1][: 2 * kind.frame_bytes()]
            await eventually(lambda: begins in one.caller.played[starts[-1] + len(begins) :])  # noqa: B023
            starts.append(one.caller.played.index(begins, starts[-1] + len(begins)))
        await eventually(lambda: one.history()[-1] == ("assistant", texts[-1]))
        one.conversation.feed(TextTurn("call Bye."))  # the scripted engine says "Bye." and calls every tool
        assert await one.caller.gone() in (1000, None)
        await ended(one.running)
        played, history = bytes(one.caller.played), one.history()
        starts.append(len(played))
        for number in range(2):  # what was cut off is not heard any more
            part = without_silence(played[starts[number] : starts[number + 1]], one.caller)
            assert part == sounds[number][: len(part)]
            cut_s, heard_s = one.of(Interrupted)[number].samples / SPEAK_RATE, one.seconds(len(part))
            assert abs(cut_s - heard_s) <= slacks[number]
            kept = history[2 * number][1]
            assert texts[number].startswith(kept)
            least, most = (len(heard_text(texts[number], heard_s + off)) for off in (-slacks[number], slacks[number]))
            assert least <= len(kept) <= most
        last = played[starts[2] :]
        assert last[: len(sounds[2])] == sounds[2]
        bye = without_silence(last[len(sounds[2]) :], one.caller)
        assert bye.startswith(spoken("Bye.", kind))  # it is heard whole before the call ends
        assert len(one.caller.clears) == (0 if kind is AudioSocketCaller else 2)


async def disturbed(one: Call, hold: Holding, *moments_s: float) -> bytes:
    """Hum into the greeting, so that it stops or is lowered, and goes on; return what was played of it in all."""
    config = one.conversation.session.config
    one.conversation.feed(ConfigureSession(replace(config, barge_in=replace(config.barge_in, hold=hold))))
    await one.played_since(0, moments_s[0] - LOOKING_BACK_S)
    one.caller.lag_s = 0.0
    for number, moment_s in enumerate(moments_s):
        await one.played_since(0, moment_s)
        one.caller.speaking.extend(hum(type(one.caller), 0.3))
        await eventually(lambda: len(one.of(Release)) > number)  # noqa: B023
    await eventually(lambda: one.history() == [("assistant", LETTERS)])
    one.conversation.feed(Say(LAST))
    last = spoken(LAST, type(one.caller))
    await eventually(lambda: last in one.caller.played)
    await one.caller.hang_up()
    await ended(one.running)
    assert not one.of(Interrupted)
    return without_end(bytes(one.caller.played[: one.caller.played.index(last)]), one.caller)


@EVERY
async def test_a_hold_loses_nothing_and_repeats_nothing(serving: Any, name: str) -> None:
    wanted = spoken(LETTERS, SYSTEMS[name])
    async with call(serving, name, PLAIN_EARS, greeting=LETTERS) as one:
        played = await disturbed(one, "pause", 0.5, 1.6)
        assert [type(event) for event in one.decided] == [Hold, Release, Hold, Release]
        before, behind = alike(played, wanted, SYSTEMS[name])
        assert played[before : len(played) - behind] in wanted  # the right sound before, between and behind two seams
        assert abs(one.seconds(len(played) - len(wanted))) <= 2 * one.slack_s


@EVERY
async def test_a_lowered_voice_goes_on_where_it_was(serving: Any, name: str) -> None:
    kind = SYSTEMS[name]
    wanted = spoken(LETTERS, kind)
    async with call(serving, name, PLAIN_EARS, greeting=LETTERS) as one:
        played = await disturbed(one, "duck", 0.7)
        assert [type(event) for event in one.decided] == [Duck, Release]
        assert abs(one.seconds(len(played) - len(wanted))) <= 2 * one.slack_s  # two seams
        before, behind = alike(played, wanted, kind)
        edge = kind.frame_bytes()
        lowered = decoded(played[before + edge : len(played) - behind - edge], kind)
        assert len(lowered)
        assert np.abs(lowered).max() < 0.5 * decoded(wanted, kind).max()


@EVERY
async def test_the_caller_is_heard_sample_by_sample(serving: Any, name: str) -> None:
    kind = SYSTEMS[name]
    async with call(serving, name) as one:
        ramp = -((np.arange(kind.rate) * 37) % 20_000).astype(np.float32) / 32768
        one.caller.speaking.extend(frames(encoded(ramp, kind), kind))
        await eventually(lambda: len(one.heard) >= 3 * LISTEN_RATE)  # one and a half seconds
        said = decoded(bytes(one.caller.said), kind)
    wanted = said if kind.rate == LISTEN_RATE else Resampler(kind.rate, LISTEN_RATE).push(said)
    assert bytes(one.heard) in encode_pcm16(wanted)  # it is heard from the moment on when the conversation is watched


@EVERY
async def test_a_line_that_breaks_leaves_nothing_behind(serving: Any, name: str) -> None:
    async with call(serving, name, greeting=LETTERS) as one:
        await one.played(1)
        one.caller.wire.drop()
        await one.caller.gone()


# ---- bad input


SECRET = "Zm9yYmlkZGVu"  # base64, too
NUMBERED = {"twilio": "_frames", "telnyx": "_chunks", "exotel": "_chunks"}


@pytest.mark.parametrize("name", NUMBERED)
async def test_a_caller_is_heard_when_the_clock_jumps(serving: Any, name: str) -> None:
    kind = SYSTEMS[name]
    async with call(serving, name) as one:
        for number, place in enumerate((10**9, 5)):
            await eventually(lambda: len(one.heard) >= 3_200)
            setattr(one.caller, NUMBERED[name], place)
            wave = -(0.05 + number / 10) * np.abs(np.sin(np.arange(kind.rate // 2) / 9)).astype(np.float32)
            sound = frames(encoded(wave, kind), kind)
            one.caller.speaking.extend(sound)
            heard = encode_pcm16(Resampler(kind.rate, LISTEN_RATE).push(decoded(b"".join(sound), kind)))
            await eventually(lambda: heard[6_400:9_600] in one.heard)  # noqa: B023


def bad_calls(kind: type[Caller]) -> dict[str, list[Message]]:
    """Return calls that break the rules of a system, each as its messages."""
    caller = kind(NoWire())
    begun = caller.start()
    caller.speak(b"\1" * caller.frame_bytes())
    (sound,) = caller.waiting()
    caller.press_one("5")
    (key,) = caller.waiting()
    cases = {"sound first": [sound], "a key first": [key], "two starts": [*begun, begun[-1]]}
    if kind is AudioSocketCaller:
        return {
            **cases,
            "a short UUID": [b"\1\0\4" + SECRET.encode()[:4]],
            "half a sample": [*begun, b"\x10\0\3" + SECRET.encode()[:3]],
            "a large frame": [*begun, b"\x10\xff\xff" + b"\1" * 0xFFFF],
            "another rate": [*begun, b"\x12\2\x80" + bytes(640)],
        }
    flooding = kind(NoWire())
    flood = flooding.start()
    for _ in range(5_000):
        flooding.flood(SECRET)
    cases |= {
        "not JSON": [SECRET],
        "a list": [f'["{SECRET}"]'],
        "a key that is a number": [*begun, '{"event": 5, "type": 6}'],
        "a flood": [*flood, *flooding.waiting()],
    }
    if begun[:-1]:
        cases["no start"] = 3 * begun[:1]
    if isinstance(sound, bytes):
        return {
            **cases,
            "a megabyte": [*begun, b"\1" * 2**20],
            **({"half a sample": [*begun, sound + b"\1"]} if kind.width() == 2 else {}),
            **({"a foreign call": [*begun, _foreign(key)]} if _foreign(key) != key else {}),
        }
    payload = json.loads(sound)["media"]["payload"]
    return {
        **cases,
        "a megabyte": [*begun, sound.replace(payload, "A" * 2**20)],
        "a quarter of a megabyte": [*begun, sound.replace(payload, "A" * 2**18)],
        "wrong base64": [*begun, sound.replace(payload, f"%{SECRET}")],
        "no payload": [*begun, sound.replace("payload", "load")],
        "half a base64": [*begun, sound.replace(payload, f"{SECRET}A")],
        "a foreign call": [*begun, _foreign(sound)],
        "bytes": [*begun, sound.encode()],
    }


def _foreign(message: Message) -> Message:
    """Return a message with the id of another call."""
    assert isinstance(message, str)
    for known in (STREAM_ID, STREAM, AsteriskCaller.CHANNEL):
        message = message.replace(known, SECRET)
    return message


async def refused(kind: type[Caller], url: str, messages: list[Message]) -> int | None:
    """Send messages and wait for the end; return the close code."""
    wire = await kind._connected(url)
    sender = asyncio.create_task(_sent(wire, messages))
    while await wire.receive() is not None:
        pass
    await sender
    await wire.close()
    return wire.close_code


async def _sent(wire: Wire, messages: list[Message]) -> None:
    for message in messages:
        await wire.send(message)


@EVERY
async def test_bad_input_ends_a_call_with_one_line(serving: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "voxlane")
    kind, port = SYSTEMS[name], free_port()
    phone = PhoneConfig(voice="two", digits_s=0.1, silence_s=0, audiosocket=f"127.0.0.1:{port}")
    async with serving(phone=phone) as running:
        url = f"tcp://127.0.0.1:{port}" if kind is AudioSocketCaller else running.url
        cases = bad_calls(kind)
        codes = await asyncio.gather(*(refused(kind, url, messages) for messages in cases.values()))
        await ended(running)
    assert dict(zip(cases, codes, strict=True)) == dict.fromkeys(cases, None if kind is AudioSocketCaller else 1008)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("voxlane")]
    closed = [line for line in lines if line.startswith("call closed")]
    assert len(closed) == len(cases)
    assert all("close=1008" in line and "code=" in line for line in closed), closed
    assert not [line for line in lines if SECRET in line or "bug" in line]
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
