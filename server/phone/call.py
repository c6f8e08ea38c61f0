"""One telephone call: reads the line, drives its player by the clock, and follows the conversation.

The conversation is the same as that of a browser. A line has no player of its own: line_player.py is the player, and
this module reports what the caller has heard as a client reports it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

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
from voxlane.server.conversation.turns.policies import BargePolicy, TurnPolicy
from voxlane.server.errors import (
    Draining,
    InternalError,
    InvalidRequest,
    SlowReader,
    TimedOut,
    TooFast,
    TooLarge,
    VoxlaneError,
)
from voxlane.server.http.buckets import Bucket
from voxlane.server.log import line, masked
from voxlane.server.phone.call_facts import described
from voxlane.server.phone.call_tools import (
    ENDING,
    CollectKeys,
    CustomerTool,
    HangUp,
    SendKeys,
    TransferTo,
    WrongCall,
)
from voxlane.server.phone.departure import Departure, Reason
from voxlane.server.phone.keypad import Keypad
from voxlane.server.phone.line_microphone import LineMicrophone
from voxlane.server.phone.line_player import TONES, LinePlayer
from voxlane.server.phone.patience import Patience
from voxlane.server.phone.phone_codec import PHONE, RATE_LIMITS, PhoneCodec
from voxlane.server.phone.phone_service import PhoneService
from voxlane.server.phone.tones import key_tones
from voxlane.server.phone.tool_webhook import FAILED
from voxlane.server.protocols.dialect import BadMessage, GoAway, Hello
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
from voxlane.server.sessions.conversation import Conversation
from voxlane.server.tenants.accounts import Account

logger = logging.getLogger(__name__)

DONE, GOING_AWAY, REFUSED, FAILED_HERE = 1000, 1001, 1008, 1011
"""WebSocket close codes. Telephone systems know no codes of applications."""

REPORT_S = 0.1
"""How often the conversation is told what the caller has heard."""

PROBE_S = 10.0
"""How often the delay of the line is measured while nothing plays."""

FIRST_PROBES, FIRST_PROBE_S = 4, 0.007
"""The first measurements, and the time between two: a line that works in ticks of 20 ms returns a mark at the next one,
so the shortest of several round trips is the true one."""

SEND_S = 10.0
"""Time for the far end to take what it is sent."""

KEYS_S = 15.0
"""How long a tool waits for the first key where phone.silence_s is 0."""

FAREWELL_S = 1.0
"""Time for the far end to close its side after it was told that the call ends."""

BAD_INPUT = (InvalidRequest, TooFast, TooLarge)
"""Errors of a far end that breaks the rules: its side of the end is not waited for."""

CLOSING_ITSELF = frozenset({"genesys"})
"""Systems that are waited for even then: in Genesys' rules the session ends with its `close`, which we must answer."""

MOST_UNKNOWN = 8
"""Kinds of unknown messages of one call that are logged."""

Recogniser = Callable[[Sequence[Message]], LineCodec | None]
"""Returns the codec for the first messages of a call, None if it needs more of them."""


Policy = TypeVar("Policy", TurnPolicy, BargePolicy)


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
        account: Account | None = None,
    ) -> None:
        self._transport = transport
        self._recognise = recognise
        self._phone = phone
        self._address = address
        self._account = account or phone.default_account
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
        self._collecting_cut = False  # the reply that asked for keys was interrupted
        self._collecting_due_s: float | None = None  # the caller presses no key any more
        self._unknown: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsent: deque[Message] = deque()  # in the order in which the codec has numbered them
        self._begun = False  # the far end has said which call it is
        self._far_end_left = False
        self._departure = Departure()
        self._reported = (0, 0)  # epoch and sample of the last report
        self._tones: dict[int, bytes] = {}  # the tones that follow a reply, by its epoch
        self._spoken_epoch = 0  # the last reply that had sound
        self._reported_s = self._probed_s = self._began_s
        self._probes = 0
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
            self._phone.caught()
            error = InternalError()
        finally:
            for task in self._tasks:
                task.cancel()
            if self._conversation is not None:
                self._phone.registry.conversations.close(self._conversation, self._end_reason(error))
            await self._hang_up(error)

    def _end_reason(self, error: VoxlaneError | None) -> str:
        """Return why the call ended: an error's code, the server's own reason, or that the caller left."""
        if error is not None:
            return error.code
        return "left" if self._far_end_left or self._departure.reason is None else self._departure.reason

    async def _hang_up(self, error: VoxlaneError | None) -> None:
        code = DONE if error is None else self._close_code(error)
        for step in (partial(self._part, error), partial(self._transport.close, code)):  # a failed one stops no other
            with contextlib.suppress(TimeoutError, ConnectionError, VoxlaneError):
                async with asyncio.timeout(limits.VOICE_CLOSE_SECONDS):
                    await step()
        name = self._conversation.name if self._conversation is not None else None
        if self._conversation is not None:
            self._phone.ended(error)
        logger.info(
            line(
                "call closed",
                session=name,
                client=self._address,
                system=self._facts.system if self._codec is None else self._codec.traits.name,
                close=code,
                code=error.code if error is not None else None,
                detail=str(error) if isinstance(error, InvalidRequest) else None,
                seconds=self._loop.time() - self._began_s,
            )
        )

    async def _part(self, error: VoxlaneError | None) -> None:
        """Send what waits, and tell the far end that the call ends; a far end that does not read is sent nothing."""
        if isinstance(error, SlowReader):
            return
        await self._send_unsent()
        if self._codec is None or not self._begun or self._far_end_left:
            return
        farewell = self._codec.hang_up()
        if farewell is not None:
            await self._transport.send(farewell)
            if not isinstance(error, BAD_INPUT) or self._codec.traits.name in CLOSING_ITSELF:
                await self._await_farewell()

    async def _await_farewell(self) -> None:
        """Read on until the far end has closed its side: some systems want an answer to that."""
        assert self._codec is not None
        with contextlib.suppress(TimeoutError, BadMessage):
            async with asyncio.timeout(FAREWELL_S):
                while (message := await self._receive()) is not None:
                    for event in self._codec.read(message):
                        if isinstance(event, MustSend):
                            await self._transport.send(event.message)
                        if isinstance(event, CallEnded):
                            return

    def _close_code(self, error: VoxlaneError) -> int:
        if isinstance(error, Draining):
            return GOING_AWAY
        return REFUSED if error.http_status < 500 else FAILED_HERE

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
                    self._begun = True
                    return event, events[place + 1 :]
                if isinstance(event, CallEnded):
                    self._far_end_left = True
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
        self._tools = self._phone.tools(transfers=self._codec.traits.asks_next)
        phone, registry = self._phone, self._phone.registry
        defaults = registry.offer.defaults
        config = replace(
            defaults,
            instructions=described(phone.instructions or defaults.instructions, started.facts),
            greeting=phone.config.greeting or defaults.greeting,
            voice=phone.config.voice or defaults.voice,
            language=phone.config.language or defaults.language,
            turns=_in_language(defaults.turns, phone.config.language),
            barge_in=_in_language(defaults.barge_in, phone.config.language),
            tools=self._tools.tools,
        )
        hello = Hello(started.input, started.output, config)
        conversation = registry.open(hello, PHONE, self._address, self._account)
        assert isinstance(conversation.codec, PhoneCodec)
        self._phone_codec = conversation.codec
        self._conversation = conversation
        if conversation.watch is not None:
            conversation.watch.call.system = started.facts.system
            conversation.watch.call.caller = masked(started.facts.caller)
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

    leaves_by_itself = True  # it says good-bye before the server goes down

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
            self._far_end_left = True
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
                        self._far_end_left = True
                        return None
                    self._handle(event)
                await asyncio.sleep(0)  # messages that came together must not block other tasks
                message = await self._receive()
                if message is None:
                    return None
                events = self._codec.read(message)
        except BadMessage as error:
            return InvalidRequest(str(error))
        except VoxlaneError as error:
            return error

    def _handle(self, event: LineEvent) -> None:
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
                self._unsent.append(message)
                self.notify()
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
        self._collecting_due_s = None
        if not self._collecting or self._conversation.state == "speaking":
            self._conversation.feed(Stop())
        self._stay()
        self._use_keys(self._keypad.press(key, now))
        self.notify()

    def _use_keys(self, keys: str) -> None:
        """Give a whole number to the tool that waits for it, or to the conversation as a turn."""
        assert self._conversation is not None
        if not keys:
            return
        cut = self._collecting_cut
        collected = self._end_collecting(keys)
        if cut or not collected:  # the result of a reply that was interrupted is remembered, not answered
            self._conversation.feed(TextTurn(f"I pressed {' '.join(keys)} on my telephone."))

    def _end_collecting(self, keys: str, reason: str = "") -> bool:
        """Give the tool that waits for keys its result; return whether there is such a tool."""
        assert self._conversation is not None
        call, self._collecting = self._collecting, ""
        self._collecting_cut, self._collecting_due_s = False, None
        if call:
            found = {"digits": keys} | ({"reason": reason} if reason else {})
            self._conversation.feed(ToolResult(call, json.dumps(found)))
        return bool(call)

    def _wait_for_keys(self, now: float) -> None:
        """End the wait of a tool for keys that do not come."""
        assert self._conversation is not None
        if not self._collecting or self._keypad.due_at() is not None or self._conversation.state == "speaking":
            self._collecting_due_s = None
        elif self._collecting_due_s is None:
            self._collecting_due_s = now + (self._phone.config.silence_s or KEYS_S)
        elif now >= self._collecting_due_s:
            self._end_collecting("", "The caller has pressed no key.")

    # ---- driving

    async def _drive(self) -> VoxlaneError | None:
        """Follow the conversation's events and the clock until the call ends."""
        try:
            await self._drive_on()
        except VoxlaneError as error:
            return error
        return None

    async def _drive_on(self) -> None:
        assert self._conversation is not None
        while True:
            self._wake.clear()
            now = self._loop.time()
            while (item := self._conversation.outbound.next()) is not None:
                self._unsent += self._follow(item[0].fields[0], now)
            self._unsent += self._player.due(now)
            self._unsent += self._probe(now)
            await self._send_unsent()
            now = self._loop.time()
            self._report(now)
            self._keep_time(now)
            if self._is_over(now):
                return
            await self._wait(now)

    async def _send_unsent(self) -> None:
        if not self._unsent:
            return
        try:
            async with asyncio.timeout(SEND_S):
                while self._unsent:
                    await self._transport.send(self._unsent.popleft())
        except TimeoutError as error:
            raise SlowReader from error

    def _follow(self, event: object, now: float) -> list[Message]:
        """Act on an event of the conversation; return what the line is sent."""
        match event:
            case Speech(epoch, offset, pcm):
                self._player.add(epoch, offset, pcm)
                self._spoken_epoch = epoch
            case SpeechDone(epoch):
                self._player.finish(epoch)
                self._add_tones(epoch)
            case Hold():
                messages = self._player.hold(now)
                self._report(now, always=True)
                return messages
            case Release():
                return self._player.release(now)
            case Duck(_, gain):
                return self._player.duck(gain, now)
            case Interrupted(epoch):
                self._stay()
                self._collecting_cut = bool(self._collecting)
                messages = self._player.drop(epoch, now)
                self._add_tones(epoch)
                return messages
            case FloorState(name):
                if name == "listening":
                    self._patience.listening(now)
                else:
                    self._patience.busy()
            case UserTurn():
                self._patience.spoke()
                self._stay()
                self._end_collecting("", "The caller has spoken instead.")
            case GoAway(seconds):
                self._departure.begin("shutdown", now, within_s=seconds)
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
            known = position.epoch, position.samples
            # A position that stands still is told, too, while the line plays something else.
            if known > self._reported or (known == self._reported and not self._player.finished(now)):
                self._reported = known
                self._conversation.played(Played(position.epoch, position.samples))

    def _probe(self, now: float) -> list[Message]:
        """Return a mark that measures the delay of the line: before the first sound, and now and then."""
        if now < self._probed_s:
            return []
        self._probes += 1
        self._probed_s = now + (PROBE_S if self._probes >= FIRST_PROBES else FIRST_PROBE_S)
        return self._player.probe(now)

    def _keep_time(self, now: float) -> None:
        """Make up the silence of a line that sends none, end a number, ask a silent caller, end a long call."""
        assert self._conversation is not None
        while quiet := self._microphone.quiet(now):
            self._hear(quiet)
        self._use_keys(self._keypad.wait(now))
        self._wait_for_keys(now)
        if self._departure.reason != "time_limit" and now >= self._began_s + self._phone.config.call_s:
            self._conversation.feed(Stop())
            self._departure.begin("time_limit", now)
        if self._departure.reason is None:
            match self._patience.advise(now):
                case "ask":
                    self._conversation.feed(Say(self._phone.config.reprompt))
                case "leave":
                    self._departure.begin("silence", now)
                case _:
                    pass

    def _is_over(self, now: float) -> bool:
        assert self._conversation is not None
        quiet = self._conversation.state == "listening" and self._player.finished(now)
        wordless = self._departure.epoch > self._spoken_epoch
        match self._departure.step(now, quiet=quiet, wordless=wordless):
            case "say_good_bye" if self._phone.config.good_bye:
                self._conversation.feed(Say(self._phone.config.good_bye))
                return False
            case "wait":
                return False
            case _:
                return True

    async def _wait(self, now: float) -> None:
        """Wait for an event, or until the clock has something to do."""
        times = [
            self._player.next_at(now),
            self._microphone.quiet_at(),
            self._keypad.due_at(),
            self._probed_s if self._probes < FIRST_PROBES and self._player.finished(now) else None,
            self._patience.due_at() if self._departure.reason is None else now + REPORT_S,
            self._collecting_due_s,
            max(self._began_s + self._phone.config.call_s, now + REPORT_S),
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
        match self._tools.action(called):
            case HangUp():
                self._end_by_tool(called, "hang_up", now)
            case TransferTo(_, destination):
                self._phone.transfer(self._facts, destination)
                self._end_by_tool(called, "transfer", now)
            case SendKeys(keys):
                self._send_keys(called, keys)
            case CollectKeys() if self._collecting:
                self._result(called, '{"error": "Keys are already being waited for."}')
            case CollectKeys():
                self._collecting = called.call_id
            case CustomerTool() as tool:
                task = asyncio.create_task(self._ask(called, tool), name="phone tool")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case WrongCall(reason):
                self._result(called, json.dumps({"error": reason}))

    def _send_keys(self, called: ToolCalled, keys: str) -> None:
        """Play the tones of keys: after the reply that has asked for them, if its sound is not complete."""
        assert self._conversation is not None
        reply = self._conversation.session.answers.reply
        self._tones[called.epoch] = self._tones.get(called.epoch, b"") + key_tones(keys, self._rate)
        if reply is None or reply.epoch != called.epoch or reply.all_sent:
            self._add_tones(called.epoch)
        self._result(called, '{"sent": true}')

    def _add_tones(self, epoch: int) -> None:
        if tones := self._tones.pop(epoch, b""):
            self._player.add(TONES, 0, tones)
            self.notify()

    def _end_by_tool(self, called: ToolCalled, reason: Reason, now: float) -> None:
        """End the call after the reply that has asked for it; the tool's result is not answered."""
        self._set_chaining(False)
        self._result(called, ENDING)
        self._departure.begin(reason, now, epoch=called.epoch)
        self.notify()

    def _stay(self) -> None:
        """Go on with a call that was to end: the caller speaks, or presses a key."""
        if self._departure.stay():
            self._phone.stay(self._facts)
            self._set_chaining(True)

    def _set_chaining(self, chains: bool) -> None:
        """Say whether tool results are answered."""
        assert self._conversation is not None
        config = self._conversation.session.config
        self._conversation.feed(ConfigureSession(replace(config, chains_tools=chains)))

    async def _ask(self, called: ToolCalled, tool: CustomerTool) -> None:
        try:
            output = await self._phone.ask(tool, self._facts)
        except Exception as bug:  # noqa: BLE001
            # The model must get an answer: without it the caller would wait for ever. The error's own text is not
            # logged: it may hold the arguments, which are the caller's words.
            logger.error(line("bug", client=self._address, error=type(bug).__name__, at=_place(bug)))
            self._phone.caught()
            output = FAILED
        self._result(called, output)

    def _result(self, called: ToolCalled, output: str) -> None:
        assert self._conversation is not None
        self._loop.call_soon(self._conversation.feed, ToolResult(called.call_id, output))


def _place(bug: Exception) -> str:
    """Return where an error was raised, as file and line."""
    frame = traceback.extract_tb(bug.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _in_language(policy: Policy, language: str) -> Policy:
    """Return a policy for the language of the calls, unchanged if none is set."""
    return replace(policy, language=language) if language else policy
