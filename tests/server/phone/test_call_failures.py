"""Calls on which something fails: a far end that does not read or breaks off, bad input, a tool that raises."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import random
import re
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cells import free_port
from examples import examples, seed_of_today
from peer import eventually
from phone_caller import Caller, Message, NoWire, calling
from phone_systems import SYSTEMS

from voxlane.server import limits
from voxlane.server.config import PhoneConfig
from voxlane.server.conversation.client_events import TextTurn
from voxlane.server.errors import Draining
from voxlane.server.log import LineFormatter
from voxlane.server.phone import call as call_module
from voxlane.server.phone.call import PhoneCall
from voxlane.server.phone.phone_codec import RATE_LIMITS
from voxlane.server.phone.sockets import StreamLine
from voxlane.server.phone.tool_webhook import FAILED
from voxlane.server.protocols.phone.audiosocket import AudioSocket, AudioSocketFrame, AudioSocketParser
from voxlane.server.protocols.phone.genesys import Genesys
from voxlane.server.protocols.phone.line_events import LineCodec
from voxlane.server.protocols.phone.systems import recognise
from voxlane.server.sessions.outbound import LATE_AUDIO_S

GREETING = "word " * 120  # 30 s
TALKING = PhoneConfig(voice="two", silence_s=0, greeting=GREETING)
HANG_UP, SOUND = 0x00, 0x10
BEGINNING = bytes(AudioSocketFrame(0x01, bytes(16)))


@contextmanager
def written() -> Iterator[list[str]]:
    """Collect the lines of our log as they are written, tracebacks included; they are there at the end."""
    stream, lines = io.StringIO(), list[str]()
    handler, ours = logging.StreamHandler(stream), logging.getLogger("voxlane")
    handler.setFormatter(LineFormatter())
    level = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)
        lines += stream.getvalue().splitlines()


def ends(lines: list[str]) -> list[str]:
    """Return the lines that say how a call has ended."""
    return [line for line in lines if "call closed" in line]


def wrong(lines: list[str]) -> list[str]:
    """Return the lines of the telephone that are more than news."""
    ours = ("voxlane.server.phone", "voxlane.server.sessions.driver")
    return [line for line in lines if any(one in line for one in ours) and " INFO " not in line]


async def ended(running: Any) -> None:
    """Wait until nothing is left of any call."""
    sessions = running.service.sessions
    await eventually(lambda: len(sessions.conversations) == 0 and not sessions.limits.sockets)
    await eventually(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("phone")])


# ---- a far end in memory


class FarEnd:
    """The connection of a call, in memory. The far end takes messages while `reads` is set."""

    def __init__(self, *messages: Message | None) -> None:
        self.says: asyncio.Queue[Message | None] = asyncio.Queue()
        for message in messages:
            self.says.put_nowait(message)
        self.reads = asyncio.Event()
        self.reads.set()
        self.stuck = asyncio.Event()  # a message waits to be read
        self.broken = False  # sending fails
        self.taken: list[Message] = []
        self.codes: list[int] = []  # with which the connection was closed

    async def receive(self) -> Message | None:
        return await self.says.get()

    async def send(self, message: Message) -> None:
        if not self.reads.is_set():
            self.stuck.set()
            await self.reads.wait()
        if self.broken:
            raise ConnectionError
        self.taken.append(message)

    async def close(self, code: int) -> None:
        self.codes.append(code)


@asynccontextmanager
async def in_memory(running: Any, kind: type[Caller], *more: Message) -> AsyncIterator[tuple[FarEnd, PhoneCall]]:
    """Begin a call of a system, and wait for its end when the context is left."""
    far = FarEnd(*kind(NoWire()).start(), *more)

    def recognised(messages: Any) -> LineCodec | None:
        return AudioSocket() if kind.system == "audiosocket" else recognise(messages, kind.subprotocols)

    call = PhoneCall(far, recognised, running.service.phone, "127.0.0.1", lambda facts: facts)
    task = asyncio.create_task(call.run())
    try:
        yield far, call
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("name", ["twilio", "genesys", "audiosocket"])
async def test_a_far_end_that_does_not_read_ends_its_call(
    serving: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "SEND_S", 1.0)
    monkeypatch.setattr(limits, "VOICE_CLOSE_SECONDS", 0.1)
    with written() as lines:
        async with serving(phone=TALKING) as running:
            async with in_memory(running, SYSTEMS[name]) as (far, call):
                await eventually(lambda: len(far.taken) > 8)
                far.reads.clear()
                await far.stuck.wait()
                taken = len(far.taken)
            assert len(far.taken) == taken
            assert far.codes == [1008]  # the connection is closed although nothing can be sent
            await ended(running)
            metrics = (await running.client.get("/metrics")).text
            assert 'voxlane_calls_ended_total{reason="slow_reader"} 1.0' in metrics
            assert call._call is not None
            conversation, player = call._call.conversation, call._call.talk.player
            # The sound that waits here is what a client may buffer, not the whole greeting.
            most_s = conversation.session.config.buffer_s + LATE_AUDIO_S
            waiting_s = (player._end - player._sent) / player._rate + conversation.outbound._new_s
            assert waiting_s <= 2 * most_s < 20
    (end,) = ends(lines)
    assert "close=1008 code=slow_reader" in end
    assert not wrong(lines)
    assert "word word" not in "".join(lines)


async def test_a_far_end_that_asks_and_does_not_read_fills_no_memory(serving: Any) -> None:
    kind = SYSTEMS["genesys"]
    caller: Any = kind(NoWire())
    caller.start()
    for _ in range(5_000):
        caller.flood("PT0.001S")
    with written() as lines:
        async with serving(phone=TALKING) as running:
            async with in_memory(running, kind) as (far, call):
                await eventually(lambda: len(far.taken) > 2)
                far.reads.clear()
                await far.stuck.wait()
                for ping in caller.waiting():
                    far.says.put_nowait(ping)
                await eventually(lambda: call._call is not None and call._call.conversation.over)
                assert 500 < len(call._unsent) < RATE_LIMITS.frames_burst + 100
                far.reads.set()
            assert far.codes == [1008]
            await ended(running)
    (end,) = ends(lines)
    assert "close=1008 code=too_fast" in end


async def test_a_far_end_that_reads_late_hears_everything_once(serving: Any) -> None:
    said = "one two three four five six seven"
    phone = PhoneConfig(voice="two", silence_s=0, greeting=said, audiosocket="")
    async with serving(phone=phone) as running, in_memory(running, SYSTEMS["audiosocket"]) as (far, call):
        await eventually(lambda: len(far.taken) > 8)
        far.reads.clear()
        await far.stuck.wait()
        assert call._call is not None
        conversation, talk = call._call.conversation, call._call.talk
        heard_before = conversation.acked
        # The driver waits for the far end: nothing more counts as heard, however late it is.
        await eventually(lambda: call._loop.time() > talk._reported_s + 0.3)
        assert conversation.acked == heard_before
        far.reads.set()
        await eventually(lambda: conversation.state == "listening" and talk.player.finished(call._loop.time()))
        far.says.put_nowait(bytes(AudioSocketFrame(HANG_UP)))
    sound = b"".join(frame.data for frame in AudioSocketParser().feed(b"".join(map(_bytes, far.taken))))
    assert len(sound) == pytest.approx(2 * 400 * len(said), abs=2 * 160)
    assert [item.text for item in conversation.session.history.items] == [said]


def _bytes(message: Message) -> bytes:
    assert isinstance(message, bytes)
    return message


# ---- any order of events


@pytest.mark.parametrize("end", ["hang-up", "junk", "gone", "broken", "error", "cancel"])
async def test_every_call_is_closed_once_and_leaves_its_place(serving: Any, end: str) -> None:
    chance = random.Random(seed_of_today())
    async with serving(phone=replace(TALKING, greeting="Hello.")) as running:
        phone = running.service.phone
        for _ in range(examples(60)):
            caller: Any = SYSTEMS["twilio"](NoWire())
            for act in chance.choices(["speak", "press", "mark"], k=chance.randrange(12)):
                match act:
                    case "speak":
                        caller.speak(bytes(160))
                    case "press":
                        caller.press_one("1")
                    case "mark":
                        caller.return_mark("1")
            if end == "hang-up":
                await caller.stop()
            last: list[Message | None] = {"junk": ["not JSON"], "gone": [None]}.get(end, [])
            far = FarEnd(*caller.start(), *caller.waiting(), *last)
            far.broken = end == "broken"
            call = PhoneCall(far, lambda messages: recognise(messages, ()), phone, "-", lambda facts: facts)
            task = asyncio.create_task(call.run())
            for _ in range(chance.randrange(1, 40)):
                await asyncio.sleep(0)
            match end:
                case "error":
                    call.end(Draining())
                case "cancel":
                    task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert len(far.codes) == 1
        await ended(running)
        metrics = (await running.client.get("/metrics")).text
        begun, over = (
            sum(map(float, re.findall(rf"^voxlane_{name}{{.*}} (.*)$", metrics, re.MULTILINE)))
            for name in ("calls_total", "calls_ended_total")
        )
        assert begun == over > 0


# ---- bad input, on systems that are told that a call ends

FOR_EVER = 3600.0
AT_ONCE_S = 20.0  # far less than that


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give far ends all the time in the world to close their side."""
    monkeypatch.setattr(call_module, "FAREWELL_S", FOR_EVER)
    monkeypatch.setattr(limits, "VOICE_CLOSE_SECONDS", FOR_EVER)


FAREWELLS: dict[str, tuple[Message, Message]] = {  # what breaks the rules, and what ends the call
    "asterisk": ("not JSON", '{"command":"HANGUP"}'),
    "jambonz": ("not JSON", '{"type":"disconnect"}'),
    "audiosocket": (bytes(AudioSocketFrame(SOUND, b"odd")), bytes(AudioSocketFrame(HANG_UP))),
}


@pytest.mark.parametrize("name", FAREWELLS)
async def test_bad_input_ends_a_call_at_once(serving: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    wrong, farewell = FAREWELLS[name]
    with written() as lines:
        async with serving(phone=PhoneConfig(silence_s=0)) as running:
            async with asyncio.timeout(AT_ONCE_S), in_memory(running, SYSTEMS[name], wrong) as (far, _):
                pass  # the far end never closes its side
            assert (far.taken[-1], far.codes) == (farewell, [1008])
            await ended(running)
    (end,) = ends(lines)
    assert "close=1008 code=invalid_request detail=" in end


@pytest.mark.parametrize("name", FAREWELLS)
async def test_a_call_that_ends_well_waits_for_the_far_end(serving: Any, name: str) -> None:
    phone = PhoneConfig(voice="two", call_s=1, good_bye="Bye.", silence_s=0)
    async with serving(phone=phone) as running, in_memory(running, SYSTEMS[name]) as (far, _):
        await eventually(lambda: FAREWELLS[name][1] in far.taken)
        assert not far.codes
        far.says.put_nowait(None)
    assert far.codes == [1000]


async def test_genesys_ends_its_session_itself_after_bad_input(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    caller: Any = SYSTEMS["genesys"](NoWire())
    caller.start()
    wrong = caller.put("dtmf", digit=["1"])
    with written() as lines:
        async with serving(phone=PhoneConfig(silence_s=0)) as running:
            async with asyncio.timeout(AT_ONCE_S), in_memory(running, SYSTEMS["genesys"], wrong) as (far, _):
                await eventually(lambda: far.taken and _kind(far.taken[-1]) == "disconnect")
                far.says.put_nowait(caller.put("close", reason="disconnect"))
            assert [_kind(message) for message in far.taken] == ["opened", "disconnect", "closed"]
            assert far.codes == [1008]
            await ended(running)
    (end,) = ends(lines)
    assert "close=1008 code=invalid_request" in end


@pytest.mark.parametrize("wrong", [b"\xff" * 160, "not JSON"], ids=["sound", "text"])
async def test_a_session_that_was_never_opened_is_not_ended(
    serving: Any, wrong: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch)
    async with serving(phone=PhoneConfig(silence_s=0)) as running:
        kind = SYSTEMS["genesys"]
        far = FarEnd(kind(NoWire()).start()[0].replace("open", "ping"), wrong)  # type: ignore[arg-type]
        async with asyncio.timeout(AT_ONCE_S):
            await PhoneCall(far, lambda _: Genesys(), running.service.phone, "-", lambda facts: facts).run()
        assert (far.taken, far.codes) == ([], [1008])


async def test_a_flood_does_not_go_on_while_a_session_ends(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    caller: Any = SYSTEMS["genesys"](NoWire())
    caller.start()
    for _ in range(5_000):
        caller.flood("PT0.001S")
    async with serving(phone=PhoneConfig(silence_s=0)) as running:
        pings = caller.waiting()
        async with asyncio.timeout(AT_ONCE_S), in_memory(running, SYSTEMS["genesys"], *pings) as (far, _):
            pass
        assert far.codes == [1008]
        assert sum(_kind(message) == "pong" for message in far.taken) < RATE_LIMITS.frames_burst + 200


def _kind(message: Message) -> str:
    return str(json.loads(message)["type"]) if isinstance(message, str) else ""


# ---- AudioSocket: errors of the connection


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError(), OSError(113, "No route to host")], ids=repr)
async def test_errors_of_a_stream_mean_that_the_far_end_is_gone(error: OSError) -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    stream = StreamLine(reader, writer)
    reader.set_exception(error)
    assert await stream.receive() is None
    with pytest.raises(ConnectionError):
        await stream.send(b"sound")
    await stream.close(1000)
    theirs.close()


async def test_a_stream_waits_for_a_far_end_that_does_not_read() -> None:
    ours, theirs = socket.socketpair()
    for one in (ours, theirs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    reader, writer = await asyncio.open_connection(sock=ours)
    stream, sent = StreamLine(reader, writer), 0

    async def send_on() -> None:
        nonlocal sent
        while True:
            await stream.send(bytes(323))
            sent += 323

    sender = asyncio.create_task(send_on())
    await eventually(lambda: writer.transport.get_write_buffer_size())
    before = sent
    await asyncio.sleep(0)
    assert sent == before  # what has not left this process does not count as sent
    assert writer.transport.get_write_buffer_size() <= 323
    theirs.recv(1 << 20)
    await eventually(lambda: sent > before)
    sender.cancel()
    await asyncio.gather(sender, return_exceptions=True)
    writer.transport.abort()
    theirs.close()


@pytest.mark.parametrize("where", ["sending", "reading"])
async def test_a_line_that_breaks_on_one_side_is_over(serving: Any, where: str) -> None:
    with written() as lines:
        async with serving(phone=TALKING) as running:
            async with in_memory(running, SYSTEMS["audiosocket"]) as (far, _):
                await eventually(lambda: len(far.taken) > 2)
                far.broken = True
                if where == "reading":
                    far.says.put_nowait(None)
            assert far.codes == [1000]
            await ended(running)
    (end,) = ends(lines)
    assert "close=1000 seconds=" in end
    assert not wrong(lines)


@asynccontextmanager
async def exchange(serving: Any, **config: Any) -> AsyncIterator[tuple[Any, socket.socket]]:
    """Serve AudioSocket, and connect to it as an exchange with small buffers."""
    phone = PhoneConfig(**{"voice": "two", "silence_s": 0, "audiosocket": f"127.0.0.1:{free_port()}", **config})
    async with serving(phone=phone) as running:
        listener = running.service.phone.audiosocket
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(one, listener.getsockname())
            await loop.sock_sendall(one, BEGINNING)
            await eventually(lambda: len(running.service.sessions.conversations))
            yield running, one
        await ended(running)


async def received(one: socket.socket) -> bytes:
    """Return all that comes until the connection ends."""
    found = bytearray()
    while data := await asyncio.get_running_loop().sock_recv(one, 1 << 16):
        found += data
    return bytes(found)


async def test_a_reset_ends_a_call_quietly(serving: Any) -> None:
    with written() as lines:
        async with exchange(serving, greeting=GREETING) as (_, one):
            assert await asyncio.get_running_loop().sock_recv(one, 3)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
    (end,) = ends(lines)
    assert "close=1000 seconds=" in end
    assert not wrong(lines)


@pytest.mark.parametrize("farewell", [b"", bytes(AudioSocketFrame(HANG_UP))], ids=["none", "hang-up"])
async def test_a_caller_who_hangs_up_and_still_listens_is_let_go(serving: Any, farewell: bytes) -> None:
    with written() as lines:
        async with exchange(serving, greeting=GREETING) as (_, one):
            assert await asyncio.get_running_loop().sock_recv(one, 3)
            if farewell:
                await asyncio.get_running_loop().sock_sendall(one, farewell)
            else:
                one.shutdown(socket.SHUT_WR)  # half-open: the other way is still there
            rest = await received(one)
            assert not rest.endswith(bytes(AudioSocketFrame(HANG_UP)))  # who has left is not told to leave
    (end,) = ends(lines)
    assert "close=1000 seconds=" in end


async def test_a_far_end_that_stays_after_the_hang_up_is_cut_off(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "FAREWELL_S", 0.05)
    async with exchange(serving, call_s=1, good_bye="Bye.") as (running, one):
        sound = await received(one)  # it keeps its own side open
        assert sound.endswith(bytes(AudioSocketFrame(HANG_UP)))
        await ended(running)


async def test_an_exchange_that_does_not_read_is_cut_off(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "SEND_S", 0.5)
    monkeypatch.setattr(limits, "VOICE_CLOSE_SECONDS", 0.1)
    with written() as lines:
        async with exchange(serving, greeting=GREETING) as (running, _):
            await ended(running)  # nothing is read here, and the connection stays
    (end,) = ends(lines)
    assert "close=1008 code=slow_reader" in end


# ---- tools


TOOLS = [{"type": "function", "function": {"name": "order_status", "description": "Tell where an order is."}}]


async def test_a_tool_that_raises_is_answered_and_the_call_goes_on(
    serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    phone = PhoneConfig(voice="two", silence_s=0, tools=str(tmp_path / "tools.json"), tools_url="http://127.0.0.1:9/")
    with written() as lines:
        async with serving(phone=phone) as running, calling(str(running.client.base_url)) as caller:

            async def broken(tool: Any, facts: Any) -> str:
                raise RuntimeError(f"a bug with {tool.arguments}")

            monkeypatch.setattr(running.service.phone, "ask", broken)
            await eventually(lambda: len(running.service.sessions.conversations))
            (conversation,) = running.service.sessions.conversations.values()

            def history() -> list[tuple[str, str]]:
                return [(item.kind, item.text) for item in conversation.session.history.items]

            conversation.feed(TextTurn("call Moment"))
            await eventually(lambda: ("result", FAILED) in history())
            await eventually(lambda: conversation.state == "listening")
            conversation.feed(TextTurn("still there"))
            await eventually(lambda: ("assistant", "still there") in history())
            assert caller.close_code is None
            await caller.stop()
            assert await caller.gone() == 1000
            await ended(running)
    (told,) = [line for line in lines if "bug" in line]
    assert "error=RuntimeError" in told
    assert "test_call_failures.py:" in told  # the place is enough to find it
    assert "Paris" not in "".join(lines)  # the scripted engine's argument
