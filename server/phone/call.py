"""One telephone call: reads the line, drives its player by the clock, and follows the conversation.

The conversation is the same as that of a browser. What follows from what is decided in call_states.py; this module
carries it out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from voxlane.server import limits
from voxlane.server.conversation.client_events import ConfigureSession, Played, ToolResult
from voxlane.server.conversation.server_events import FloorState, ToolCalled
from voxlane.server.errors import Draining, InvalidRequest, SlowReader, TimedOut, TooFast, TooLarge, VoxlaneError
from voxlane.server.http.buckets import Bucket
from voxlane.server.log import line, masked
from voxlane.server.phone.call_facts import described
from voxlane.server.phone.call_states import (
    BegunCall,
    CallEvent,
    Due,
    Effect,
    FloorFacts,
    ModelEnding,
    Recogniser,
    RingingCall,
    TalkingCall,
)
from voxlane.server.phone.call_tools import CustomerTool
from voxlane.server.phone.phone_codec import PHONE, RATE_LIMITS
from voxlane.server.phone.phone_service import PhoneService
from voxlane.server.phone.tool_webhook import FAILED
from voxlane.server.protocols.dialect import BadMessage, Hello
from voxlane.server.protocols.phone.line_events import (
    CallEnded,
    CallFacts,
    LineCodec,
    LineEvent,
    Media,
    Message,
    MustSend,
    UnknownMessage,
)
from voxlane.server.sessions.conversation import Conversation
from voxlane.server.sessions.driver import ConversationDriver
from voxlane.server.tenants.accounts import Account

logger = logging.getLogger(__name__)

DONE, GOING_AWAY, REFUSED, FAILED_HERE = 1000, 1001, 1008, 1011
"""WebSocket close codes. Telephone systems know no codes of applications."""

SEND_S = 10.0
"""Time for the far end to take what it is sent."""

FAREWELL_S = 1.0
"""Time for the far end to close its side after it was told that the call ends."""

BAD_INPUT = (InvalidRequest, TooFast, TooLarge)
"""Errors of a far end that breaks the rules: its side of the end is not waited for."""

CLOSING_ITSELF = frozenset({"genesys"})
"""Systems that are waited for even then: in Genesys' rules the session ends with its `close`, which we must answer."""

MOST_UNKNOWN = 8
"""Kinds of unknown messages of one call that are logged."""


class LineTransport(Protocol):
    """The connection of a call."""

    async def receive(self) -> Message | None:
        """Return the next message, None if the far end is gone."""

    async def send(self, message: Message) -> None:
        """Send a message."""

    async def close(self, code: int) -> None:
        """Close the connection."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that has its conversation."""

    facts: CallFacts
    talk: TalkingCall
    conversation: Conversation


class PhoneCall(ConversationDriver):
    """One call from its first message to its end."""

    kind = "phone"
    leaves_by_itself = True  # it says good-bye before the server goes down
    gone = ConnectionError

    def __init__(
        self,
        transport: LineTransport,
        recognise: Recogniser,
        phone: PhoneService,
        address: str,
        admit: Callable[[CallFacts], CallFacts],
        account: Account | None = None,
    ) -> None:
        super().__init__(RATE_LIMITS, address, phone.caught)
        self._transport = transport
        self._ringing = RingingCall(recognise)
        self._phone = phone
        self._account = account or phone.default_account
        self._admit = admit  # returns the completed facts of a call, or raises the error that refuses it
        self._frames = Bucket(RATE_LIMITS.frames_per_s, RATE_LIMITS.frames_burst, self._began_s)
        self._codec: LineCodec | None = None  # of a call that has begun
        self._call: OpenCall | None = None
        self._unknown: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsent: deque[Message] = deque()  # in the order in which the codec has numbered them
        self._far_end_left = False

    # ---- life

    async def run(self) -> None:
        """Serve the call from its first message to its end."""
        error: VoxlaneError | None = None
        try:
            error = await self._live()
        except ConnectionError:
            pass  # the far end is gone
        except Exception as raised:  # noqa: BLE001
            error = self._error_of(raised)
        finally:
            await self._hang_up(error)

    async def _live(self) -> VoxlaneError | None:
        """Run until the end; return the error that ended the call, None if it ended well."""
        try:
            async with asyncio.timeout(limits.VOICE_HELLO_SECONDS):
                begun = await self._ring()
        except TimeoutError:
            return TimedOut("No call began.")
        if begun is None:
            return None
        self._codec = begun.codec
        call = self._open(begun, self._admit(begun.start.facts))
        error = None
        try:
            error = await self._serve(self._read(call, begun), self._write(call))
        finally:
            self._close(call, error)
        return error

    async def _ring(self) -> BegunCall | None:
        """Return the call that begins; None if the far end has left."""
        while (message := await self._receive()) is not None:
            for event in self._ringing.read(message):
                match event:
                    case BegunCall():
                        return event
                    case CallEnded():
                        self._far_end_left = True
                        return None
                    case _:
                        await self._transport.send(event)
        return None

    def _open(self, begun: BegunCall, facts: CallFacts) -> OpenCall:
        """Begin the conversation."""
        phone, registry, start = self._phone, self._phone.registry, begun.start
        tools = phone.tools(transfers=begun.codec.traits.asks_next)
        defaults = registry.offer.defaults
        config = replace(
            defaults,
            instructions=described(phone.instructions or defaults.instructions, facts),
            greeting=phone.config.greeting or defaults.greeting,
            voice=phone.config.voice or defaults.voice,
            language=phone.config.language or defaults.language,
            turns=replace(defaults.turns, language=phone.config.language or defaults.turns.language),
            barge_in=replace(defaults.barge_in, language=phone.config.language or defaults.barge_in.language),
            tools=tools.tools,
        )
        conversation = registry.open(Hello(start.input, start.output, config), PHONE, self._address, self._account)
        if conversation.watch is not None:
            conversation.watch.call.system, conversation.watch.call.caller = facts.system, masked(facts.caller)
        talk = TalkingCall(begun.codec, start, phone.config, tools, self._began_s)
        phone.began(facts)
        known = {"system": facts.system, "caller": masked(facts.caller) or None}
        logger.info(line("call open", session=conversation.name, client=self._address, **known))
        self._call = call = OpenCall(facts, talk, conversation)
        conversation.attach(self)
        conversation.open()
        if not config.greeting:
            self._feed(call, FloorState("listening"))
        return call

    def _close(self, call: OpenCall, error: VoxlaneError | None) -> None:
        """End the conversation: with an error's code, the server's own reason, or since the caller has left."""
        for task in self._tasks:
            task.cancel()
        reason = None if self._far_end_left else call.talk.departure.reason
        self._phone.registry.conversations.close(call.conversation, error.code if error else reason or "left")
        self._phone.ended(error)

    async def _hang_up(self, error: VoxlaneError | None) -> None:
        code = DONE if error is None else _close_code(error)
        for step in (partial(self._part, error), partial(self._transport.close, code)):  # a failed one stops no other
            with contextlib.suppress(TimeoutError, ConnectionError, VoxlaneError):
                async with asyncio.timeout(limits.VOICE_CLOSE_SECONDS):
                    await step()
        name = None if self._call is None else self._call.conversation.name
        detail = str(error) if isinstance(error, InvalidRequest) else None
        ending = {"close": code, "code": None if error is None else error.code, "detail": detail}
        facts = {"session": name, "client": self._address, "system": self._ringing.system, **ending}
        logger.info(line("call closed", **facts, seconds=self._loop.time() - self._began_s))

    async def _part(self, error: VoxlaneError | None) -> None:
        """Send what waits, and tell the far end that the call ends; a far end that does not read is sent nothing."""
        if isinstance(error, SlowReader):
            return
        await self._send_unsent()
        if self._codec is None or self._far_end_left:
            return
        farewell = self._codec.hang_up()
        if farewell is not None:
            await self._transport.send(farewell)
            if not isinstance(error, BAD_INPUT) or self._codec.traits.name in CLOSING_ITSELF:
                await self._await_farewell(self._codec)

    async def _await_farewell(self, codec: LineCodec) -> None:
        """Read on until the far end has closed its side: some systems want an answer to that."""
        with contextlib.suppress(TimeoutError, BadMessage):
            async with asyncio.timeout(FAREWELL_S):
                while (message := await self._receive()) is not None:
                    for event in codec.read(message):
                        if isinstance(event, MustSend):
                            await self._transport.send(event.message)
                        if isinstance(event, CallEnded):
                            return

    # ---- reading

    async def _receive(self) -> Message | None:
        message = await self._transport.receive()
        if message is None:
            self._far_end_left = True
            return None
        self._count(len(message))
        if not self._frames.spend(1, self._loop.time()):
            raise TooFast("Messages come faster than a line has them.")
        return message

    async def _read(self, call: OpenCall, begun: BegunCall) -> None:
        events = begun.rest
        while True:
            for event in events:
                self._handle(call, event)
                if isinstance(event, CallEnded):
                    self._far_end_left = True
                    return
            await asyncio.sleep(0)  # messages that came together must not block other tasks
            message = await self._receive()
            if message is None:
                return
            events = begun.codec.read(message)

    def _handle(self, call: OpenCall, event: LineEvent) -> None:
        self._feed(call, event)
        match event:
            case Media():
                self._check_audio_rate(call.talk.microphone.seconds)
                return
            case UnknownMessage(name) if name not in self._unknown and len(self._unknown) < MOST_UNKNOWN:
                self._unknown.add(name)
                logger.info(line("unknown message", system=call.facts.system, name=name))
            case _:
                pass
        self.notify()

    # ---- driving

    async def _write(self, call: OpenCall) -> None:
        """Follow the conversation's events and the clock until the call ends."""
        talk, outbound = call.talk, call.conversation.outbound
        while not talk.over:
            self._message_waits.clear()
            while (item := outbound.next()) is not None:
                self._feed(call, cast(CallEvent, item[0].fields[0]))
            self._feed(call, Due.SOUND)
            await self._send_unsent()
            self._feed(call, Due.WAITS)
            self._feed(call, Due.END)
            await self._wait(talk)

    async def _send_unsent(self) -> None:
        if not self._unsent:
            return
        try:
            async with asyncio.timeout(SEND_S):
                while self._unsent:
                    await self._transport.send(self._unsent.popleft())
        except TimeoutError as error:
            raise SlowReader from error

    async def _wait(self, talk: TalkingCall) -> None:
        """Wait for an event, or until the clock has something to ask."""
        now = self._loop.time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(talk.due_at(now), now + 0.001)):
                await self._message_waits.wait()

    def _feed(self, call: OpenCall, event: CallEvent) -> None:
        """Have the call act on an event, and carry out what follows."""
        reply = call.conversation.session.answers.reply
        floor = FloorFacts(call.conversation.state, 0 if reply is None or reply.all_sent else reply.epoch)
        for effect in call.talk.feed(event, self._loop.time(), floor):
            self._apply(call, effect)

    def _apply(self, call: OpenCall, effect: Effect) -> None:
        conversation = call.conversation
        match effect:
            case str() | bytes():
                self._unsent.append(effect)
            case Played():
                conversation.played(effect)
            case ModelEnding(ends, transfer_to):
                if transfer_to:
                    self._phone.transfer(call.facts, transfer_to)
                elif not ends:
                    self._phone.stay(call.facts)
                conversation.feed(ConfigureSession(replace(conversation.session.config, chains_tools=not ends)))
            case ToolCalled():
                task = asyncio.create_task(self._ask(call, effect), name="phone tool")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case _:
                conversation.feed(effect)

    async def _ask(self, call: OpenCall, called: ToolCalled) -> None:
        try:
            output = await self._phone.ask(CustomerTool(called.name, called.arguments), call.facts)
        except Exception as bug:  # noqa: BLE001
            # The model must get an answer: without it the caller would wait for ever. The error's own text is not
            # logged: it may hold the arguments, which are the caller's words.
            logger.error(line("bug", client=self._address, error=type(bug).__name__, at=_place(bug)))
            self._phone.caught()
            output = FAILED
        call.conversation.feed(ToolResult(called.call_id, output))


def _close_code(error: VoxlaneError) -> int:
    if isinstance(error, Draining):
        return GOING_AWAY
    return REFUSED if error.http_status < 500 else FAILED_HERE


def _place(bug: Exception) -> str:
    """Return where an error was raised, as file and line."""
    frame = traceback.extract_tb(bug.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
