"""One telephone call: reads the line, drives its player by the clock, and follows the conversation.

The conversation is the same as that of a browser. A line has no player of its own, so this module has it: sound goes
out just ahead of playback, a hold clears the line, and what the caller has heard is reported as a client reports it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from voxlane.server import limits
from voxlane.server.conversation.client_events import Audio, ConfigureSession, Played, Say, Stop, TextTurn, ToolResult
from voxlane.server.conversation.server_events import (
    Duck,
    FloorState,
    Hold,
    Interrupted,
    Release,
    Speech,
    SpeechDone,
    ToolCalled,
    UserTurn,
)
from voxlane.server.errors import (
    InternalError,
    InvalidRequest,
    TimedOut,
    TooFast,
    TooLarge,
    VoxlaneError,
)
from voxlane.server.log import line, masked
from voxlane.server.phone.call_facts import described
from voxlane.server.phone.call_tools import CollectKeys, CustomerTool, HangUp, SendKeys, TransferTo, WrongCall
from voxlane.server.phone.keypad import Keypad
from voxlane.server.phone.line_microphone import LineMicrophone
from voxlane.server.phone.line_player import TONES, LinePlayer
from voxlane.server.phone.patience import Patience
from voxlane.server.phone.phone_codec import PHONE, RATE_LIMITS, PhoneCodec
from voxlane.server.phone.phone_service import PhoneService
from voxlane.server.phone.tones import key_tones
from voxlane.server.protocols.dialect import BadMessage, Hello
from voxlane.server.protocols.phone.line_events import (
    BufferCleared,
    BufferFull,
    BufferReady,
    CallEnded,
    CallFacts,
    CallStarted,
    KeyPressed,
    LineCodec,
    LineEvent,
    MarkReturned,
    Media,
    Message,
    MustSend,
    UnknownMessage,
)
from voxlane.server.sessions.buckets import Bucket
from voxlane.server.sessions.conversation import Conversation

logger = logging.getLogger(__name__)

DONE = 1000

REPORT_S = 0.1
"""How often the conversation is told what the caller has heard."""

PROBE_S = 10.0
"""How often the delay of the line is measured while nothing plays."""

LAST_WORDS_S = 15.0
"""Time to say good-bye before a call that must end is cut."""

PART_S = 1.0
"""Time for the far end to take its leave after it was told that the call ends."""

MOST_UNKNOWN = 8
"""Kinds of unknown messages of one call that are logged."""

Recogniser = Callable[[Sequence[Message]], LineCodec | None]
"""Returns the codec for the first messages of a call, None if it needs more of them."""


class LineTransport(Protocol):
    """The connection of a call."""

    async def receive(self) -> Message | None:
        """Return the next message, None if the far end is gone."""

    async def send(self, message: Message) -> None:
        """Send a message."""

    async def close(self, code: int) -> None:
        """Close the connection."""


class PhoneCall:
    """One call from its first message to its end."""

    def __init__(
        self,
        transport: LineTransport,
        recognise: Recogniser,
        phone: PhoneService,
        address: str,
        admit: Callable[[CallFacts], CallFacts],
    ) -> None:
        self._transport = transport
        self._recognise = recognise
        self._phone = phone
        self._address = address
        self._admit = admit  # returns the completed facts of a call, or raises the error that refuses it
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._frames = Bucket(RATE_LIMITS.frames_per_s, RATE_LIMITS.frames_burst, self._began_s)
        self._bytes = Bucket(RATE_LIMITS.bytes_per_s, RATE_LIMITS.bytes_burst, self._began_s)
        self._codec: LineCodec | None = None
        self._facts = CallFacts("unknown")
        self._conversation: Conversation | None = None
        self._wake = asyncio.Event()
        self._ended: asyncio.Future[VoxlaneError | None] = self._loop.create_future()
        self._keypad = Keypad(phone.config.digits_s, phone.config.digits_end)
        self._patience = Patience(phone.config.silence_s, phone.config.reprompts)
        self._collecting = ""  # the id of the tool call that waits for keys
        self._unknown: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaves_at_s: float | None = None  # the call ends when everything was said, at the latest then
        self._says_good_bye = False  # good-bye is still to be said
        self._reported = (0, 0)  # epoch and sample of the last report
        self._leaving_epoch = 0  # the reply after which the model ends the call; 0: it does not
        self._spoken_epoch = 0  # the last reply that had sound
        self._reported_s = self._probed_s = self._began_s
        self._audio_began_s: float | None = None

    # ---- life

    async def run(self) -> None:
        """Serve the call from its first message to its end."""
        error: VoxlaneError | None = None
        try:
            error = await self._serve()
        except ConnectionError:
            pass  # the far end is gone
        except Exception as bug:
            # No error crosses this boundary: other calls go on.
            logger.exception(line("bug", client=self._address, error=type(bug).__name__))
            error = InternalError()
        finally:
            for task in self._tasks:
                task.cancel()
            if self._conversation is not None:
                self._phone.registry.close(self._conversation)
            await self._hang_up(error)

    async def _hang_up(self, error: VoxlaneError | None) -> None:
        code = DONE if error is None else self._close_code(error)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(limits.VOICE_CLOSE_SECONDS):
                farewell = self._codec.hang_up() if self._codec is not None else None
                if farewell is not None:
                    await self._transport.send(farewell)
                    await self._part()
                await self._transport.close(code)
        name = self._conversation.name if self._conversation is not None else None
        self._phone.ended(self._facts, error)
        logger.info(
            line(
                "call closed",
                session=name,
                client=self._address,
                system=self._facts.system,
                close=code,
                code=error.code if error is not None else None,
                detail=str(error) if isinstance(error, InvalidRequest) else None,
                seconds=self._loop.time() - self._began_s,
            )
        )

    async def _part(self) -> None:
        """Read on until the far end has taken its leave: some systems want an answer to it."""
        assert self._codec is not None
        with contextlib.suppress(TimeoutError, BadMessage):
            async with asyncio.timeout(PART_S):
                while (message := await self._transport.receive()) is not None:
                    for event in self._codec.read(message):
                        if isinstance(event, MustSend):
                            await self._transport.send(event.message)
                        if isinstance(event, CallEnded):
                            return

    def _close_code(self, error: VoxlaneError) -> int:
        refused = self._codec.traits.refusal_code if self._codec is not None else 1008
        return refused if error.http_status < 500 else 1011

    async def _serve(self) -> VoxlaneError | None:
        """Run until the end; return the error that ended the call, None if it ended well."""
        try:
            async with asyncio.timeout(limits.VOICE_HELLO_SECONDS):
                started, rest = await self._start()
        except TimeoutError:
            return TimedOut("No call began.")
        except BadMessage as error:
            return InvalidRequest(str(error))
        except VoxlaneError as error:
            return error
        if started is None:
            return None
        try:
            self._open(replace(started, facts=self._admit(started.facts)))
        except VoxlaneError as error:
            return error
        return await self._converse(rest)

    async def _start(self) -> tuple[CallStarted | None, list[LineEvent]]:
        """Return the start of the call and the events behind it; None if the far end has left."""
        first: list[Message] = []
        while self._codec is None:
            message = await self._receive()
            if message is None:
                return None, []
            first.append(message)
            self._codec = self._recognise(first)
        events = [event for message in first for event in self._codec.read(message)]
        while True:
            for place, event in enumerate(events):
                if isinstance(event, CallStarted):
                    return event, events[place + 1 :]
                if isinstance(event, CallEnded):
                    return None, []
                if isinstance(event, MustSend):
                    await self._transport.send(event.message)
            message = await self._receive()
            if message is None:
                return None, []
            events = self._codec.read(message)

    def _open(self, started: CallStarted) -> None:
        """Begin the conversation."""
        assert self._codec is not None
        self._facts = started.facts
        phone, registry = self._phone, self._phone.registry
        defaults = registry.defaults
        config = replace(
            defaults,
            instructions=described(phone.instructions or defaults.instructions, started.facts),
            greeting=phone.config.greeting or defaults.greeting,
            voice=phone.config.voice or defaults.voice,
            language=phone.config.language or defaults.language,
            tools=phone.tools.tools,
        )
        hello = Hello(started.input, started.output, config)
        conversation = registry.open(hello, PHONE, self._address)
        assert isinstance(conversation.codec, PhoneCodec)
        self._phone_codec = conversation.codec
        self._conversation = conversation
        self._player = LinePlayer(self._codec, started.output)
        self._rate = started.output.rate
        self._microphone = LineMicrophone(started.input)
        phone.began(started.facts)
        logger.info(
            line(
                "call open",
                session=conversation.name,
                client=self._address,
                system=started.facts.system,
                caller=masked(started.facts.caller) or None,
            )
        )
        conversation.attach(self)
        conversation.open()
        if not config.greeting:
            self._patience.listening(self._loop.time())

    async def _converse(self, events: list[LineEvent]) -> VoxlaneError | None:
        reader = asyncio.create_task(self._read(events), name="phone read")
        driver = asyncio.create_task(self._drive(), name="phone drive")
        try:
            await asyncio.wait({reader, driver, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                return self._ended.result()
            return await (reader if reader.done() else driver)
        finally:
            for task in (reader, driver):
                task.cancel()
            await asyncio.gather(reader, driver, return_exceptions=True)

    def notify(self) -> None:
        """Wake the driver: an event waits."""
        self._wake.set()

    def end(self, error: VoxlaneError) -> None:
        """End the call with an error."""
        if not self._ended.done():
            self._ended.set_result(error)

    # ---- reading

    async def _receive(self) -> Message | None:
        message = await self._transport.receive()
        if message is None:
            return None
        now = self._loop.time()
        if len(message) > RATE_LIMITS.frame_bytes:
            raise TooLarge(f"A message has at most {RATE_LIMITS.frame_bytes} bytes.")
        if not self._frames.spend(1, now) or not self._bytes.spend(len(message), now):
            raise TooFast("Messages come faster than a line has them.")
        return message

    async def _read(self, events: list[LineEvent]) -> VoxlaneError | None:
        assert self._codec is not None
        try:
            while True:
                for event in events:
                    if isinstance(event, CallEnded):
                        return None
                    await self._handle(event)
                await asyncio.sleep(0)  # messages that came together must not block other tasks
                message = await self._receive()
                if message is None:
                    return None
                events = self._codec.read(message)
        except BadMessage as error:
            return InvalidRequest(str(error))
        except VoxlaneError as error:
            return error

    async def _handle(self, event: LineEvent) -> None:
        now = self._loop.time()
        match event:
            case Media():
                for pcm in self._microphone.push(event, now):
                    self._hear(pcm)
                self._check_audio_rate(now)
            case KeyPressed(key):
                self._press(key, now)
            case MarkReturned(name, played):
                self._player.marked(name, now, played=played)
                self.notify()
            case BufferFull() | BufferReady():
                self._player.set_full(isinstance(event, BufferFull))
                self.notify()
            case MustSend(message):
                await self._transport.send(message)
            case UnknownMessage(name) if name not in self._unknown and len(self._unknown) < MOST_UNKNOWN:
                self._unknown.add(name)
                logger.info(line("unknown message", system=self._facts.system, name=name))
            case BufferCleared() | UnknownMessage() | CallStarted() | CallEnded():
                pass

    def _hear(self, pcm: bytes) -> None:
        assert self._conversation is not None
        self._phone_codec.heard_seconds = self._microphone.seconds
        self._conversation.feed(Audio(pcm))

    def _check_audio_rate(self, now: float) -> None:
        """Raise TooFast if more sound has come than time has passed, with room for jitter."""
        if self._audio_began_s is None:
            self._audio_began_s = now
        allowed = (now - self._audio_began_s) * RATE_LIMITS.audio_rate + RATE_LIMITS.audio_burst_s
        if self._microphone.seconds > allowed:
            raise TooFast("Audio comes faster than it can be spoken.")

    # ---- keys

    def _press(self, key: str, now: float) -> None:
        """Note a key: it interrupts the reply, as a word does."""
        assert self._conversation is not None
        self._patience.spoke()
        if not self._collecting:
            self._conversation.feed(Stop())
        self._use_keys(self._keypad.press(key, now))
        self.notify()

    def _use_keys(self, keys: str) -> None:
        """Give a whole number to the tool that waits for it, or to the conversation as a turn."""
        assert self._conversation is not None
        if not keys:
            return
        spelled = " ".join(keys)
        if self._collecting:
            call, self._collecting = self._collecting, ""
            self._conversation.feed(ToolResult(call, f'{{"digits": "{keys}"}}'))
        else:
            self._conversation.feed(TextTurn(f"I pressed {spelled} on my telephone."))

    # ---- driving

    async def _drive(self) -> VoxlaneError | None:
        """Follow the conversation's events and the clock until the call ends."""
        assert self._conversation is not None
        while True:
            self._wake.clear()
            now = self._loop.time()
            messages: list[Message] = []
            while (item := self._conversation.outbound.next()) is not None:
                messages += self._follow(item[0].fields[0], now)
            messages += self._player.due(now)
            messages += self._probe(now)
            for message in messages:
                await self._transport.send(message)
            now = self._loop.time()
            self._report(now)
            self._keep_time(now)
            if self._is_over(now):
                return None
            await self._wait(now)

    def _follow(self, event: object, now: float) -> list[Message]:
        """Act on an event of the conversation; return what the line is sent."""
        match event:
            case Speech(epoch, offset, pcm):
                self._player.add(epoch, offset, pcm)
                self._spoken_epoch = epoch
            case SpeechDone(epoch):
                self._player.finish(epoch)
            case Hold():
                messages = self._player.hold(now)
                self._report(now, always=True)
                return messages
            case Release():
                return self._player.release(now)
            case Duck(_, gain):
                return self._player.duck(gain, now)
            case Interrupted(epoch):
                if epoch == self._leaving_epoch:
                    self._stay()
                return self._player.drop(epoch, now)
            case FloorState(name):
                if name == "listening":
                    self._patience.listening(now)
                else:
                    self._patience.busy()
            case UserTurn():
                self._patience.spoke()
            case ToolCalled():
                self._run_tool(event)
            case _:
                pass
        return []

    def _report(self, now: float, *, always: bool = False) -> None:
        """Tell the conversation what the caller has heard."""
        assert self._conversation is not None
        if now < self._reported_s + REPORT_S and not always and not self._player.finished(now):
            return
        self._reported_s = now
        for position in self._player.heard(now):
            if (position.epoch, position.samples) > self._reported:
                self._reported = position.epoch, position.samples
                self._conversation.played(Played(position.epoch, position.samples))

    def _probe(self, now: float) -> list[Message]:
        if self._conversation is None or self._conversation.state != "listening" or now < self._probed_s:
            return []
        self._probed_s = now + PROBE_S
        return self._player.probe(now)

    def _keep_time(self, now: float) -> None:
        """Make up the silence of a line that sends none, end a number, ask a silent caller, end a long call."""
        assert self._conversation is not None
        while quiet := self._microphone.quiet(now):
            self._hear(quiet)
        self._use_keys(self._keypad.wait(now))
        if self._leaves_at_s is None and now >= self._began_s + self._phone.config.call_s:
            self._leave(now, good_bye=True)
        match self._patience.advise(now):
            case "ask":
                self._conversation.feed(Say(self._phone.config.reprompt))
            case "leave":
                self._leave(now, good_bye=True)
            case _:
                pass

    def _leave(self, now: float, *, good_bye: bool = False) -> None:
        """End the call when everything was said."""
        if self._leaves_at_s is None:
            self._leaves_at_s = now + LAST_WORDS_S
            self._says_good_bye = good_bye and bool(self._phone.config.good_bye)
            self._patience.silence_s = 0.0
        self.notify()

    def _is_over(self, now: float) -> bool:
        if self._leaves_at_s is None or self._conversation is None:
            return False
        quiet = self._conversation.state == "listening" and self._player.finished(now)
        wordless = self._leaving_epoch and self._spoken_epoch != self._leaving_epoch
        if quiet and (self._says_good_bye or wordless):
            self._says_good_bye, self._leaving_epoch = False, 0
            self._conversation.feed(Say(self._phone.config.good_bye or "Good-bye."))
            return False
        return quiet or now >= self._leaves_at_s

    async def _wait(self, now: float) -> None:
        """Wait for an event, or until the clock has something to do."""
        times = [
            self._player.next_at(now),
            self._microphone.quiet_at(),
            self._keypad.due_at(),
            self._patience.due_at(),
            self._began_s + self._phone.config.call_s if self._leaves_at_s is None else now + REPORT_S,
            None if self._player.finished(now) else now + REPORT_S,
        ]
        due_s = min(at for at in times if at is not None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(due_s, now + 0.001)):
                await self._wake.wait()

    # ---- tools

    def _run_tool(self, called: ToolCalled) -> None:
        assert self._conversation is not None
        now = self._loop.time()
        match self._phone.tools.action(called):
            case HangUp():
                self._end_by_tool(called, now)
            case TransferTo(_, destination):
                self._phone.transfer(self._facts, destination)
                self._end_by_tool(called, now)
            case SendKeys(keys):
                self._player.add(TONES, 0, key_tones(keys, self._rate))
                self._result(called, '{"sent": true}')
            case CollectKeys():
                self._collecting = called.call_id
            case CustomerTool() as tool:
                task = asyncio.create_task(self._ask(called, tool), name="phone tool")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case WrongCall(reason):
                self._result(called, f'{{"error": "{reason}"}}')

    def _end_by_tool(self, called: ToolCalled, now: float) -> None:
        """End the call after the reply that has asked for it; the tool's result is not answered."""
        assert self._conversation is not None
        self._set_chaining(False)
        self._result(called, '{"done": true}')
        self._leaving_epoch = called.epoch
        self._leave(now)

    def _stay(self) -> None:
        """Go on with a call: the caller has interrupted the good-bye."""
        self._leaving_epoch, self._leaves_at_s = 0, None
        self._phone.stay(self._facts)
        self._set_chaining(True)

    def _set_chaining(self, chains: bool) -> None:
        """Say whether tool results are answered."""
        assert self._conversation is not None
        config = self._conversation.session.config
        self._conversation.feed(ConfigureSession(replace(config, chains_tools=chains)))

    async def _ask(self, called: ToolCalled, tool: CustomerTool) -> None:
        self._result(called, await self._phone.ask(tool, self._facts))

    def _result(self, called: ToolCalled, output: str) -> None:
        assert self._conversation is not None
        self._loop.call_soon(self._conversation.feed, ToolResult(called.call_id, output))
