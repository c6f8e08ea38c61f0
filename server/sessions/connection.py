"""One WebSocket: handshake, reading, writing, limits, close.

The dialect reads the messages; the conversation acts on them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from voxlane.engine.api import LISTEN_RATE
from voxlane.server import limits
from voxlane.server.audio.opus_process import OpusStream
from voxlane.server.conversation.client_events import Audio, ConfigureSession, Played, Respond
from voxlane.server.conversation.server_events import ServerEvent
from voxlane.server.errors import (
    HandOver,
    InvalidRequest,
    ResumedElsewhere,
    SessionLimit,
    TimedOut,
    TooFast,
    VoxlaneError,
)
from voxlane.server.http.client_socket import MADE_UP, ClientSocket
from voxlane.server.http.frames import REFUSAL, admit, give_to
from voxlane.server.http.reply import error_response
from voxlane.server.log import line
from voxlane.server.protocols.dialect import (
    BadMessage,
    Bye,
    ClientPing,
    Complaint,
    ConnectionEnd,
    Decoded,
    Dialect,
    Farewell,
    GoAway,
    Handshake,
    Hello,
    OpusPacket,
    ServerPong,
    SessionReady,
    Starved,
)
from voxlane.server.protocols.openai_realtime.client_secret import secret_defaults
from voxlane.server.sessions.admission import Admission, admitted, check_handshake, is_secret, stale_secret
from voxlane.server.sessions.conversation import Conversation
from voxlane.server.sessions.driver import ConversationDriver
from voxlane.server.sessions.outbound import NumberedPacket, TooSlow
from voxlane.server.sessions.registry import SessionRegistry
from voxlane.server.tenants.accounts import Account, Tenants
from voxlane.server.watching.metrics import Metrics

logger = logging.getLogger(__name__)

DONE = 1000
GONE = 1005
"""The close code in the log for a peer that left without one."""

OWN_CODES = 3000
"""Close codes from here on are for applications: a client may use any of them."""

CLOSE_REASON_BYTES = 123
"""The most that a WebSocket's close frame has room for."""

FINISHED = frozenset({DONE, 1002, 1003, 1007, 1009})
"""Close codes after which a client does not resume: it was done, or broke the rules of WebSockets."""


async def converse(
    websocket: WebSocket, dialect: Dialect, registry: SessionRegistry, metrics: Metrics, tenants: Tenants
) -> None:
    """Serve one WebSocket from its handshake to its end."""
    address = websocket.client.host if websocket.client is not None else "-"
    await asyncio.sleep(registry.limits.pauses.left_s(address, asyncio.get_running_loop().time()))
    try:
        admission = check_handshake(websocket, dialect, registry, tenants)
        resumes = dialect.resumable and "at" in websocket.query_params
        with registry.limits.socket(address, resumes=resumes) as may_begin:
            await websocket.accept(subprotocol=admission.subprotocol)
            if admission.account is not None:
                admit(websocket, dialect.rate_limits)
            admission = replace(admission, may_begin=may_begin)
            await Connection(websocket, dialect, registry, metrics, tenants, address, admission).run()
    except VoxlaneError as error:
        metrics.sockets_closed.labels(str(error.http_status)).inc()
        logger.info(line("voice refused", client=address, code=error.code, detail=error.detail or None))
        await websocket.send_denial_response(error_response(error))


class Connection(ConversationDriver):
    """One open socket."""

    gone = WebSocketDisconnect

    def __init__(
        self,
        websocket: ClientSocket,
        dialect: Dialect,
        registry: SessionRegistry,
        metrics: Metrics,
        tenants: Tenants,
        address: str,
        admission: Admission,
    ) -> None:
        super().__init__(dialect.rate_limits, address, lambda: metrics.caught("connection"))
        self._websocket = websocket
        self._dialect = dialect
        self._registry = registry
        self._metrics = metrics
        self._tenants = tenants
        self._admission = admission
        self._account = admission.account
        self._audio_before_s = 0.0  # seconds of audio that do not count here: on earlier connections, or made up
        self._conversation: Conversation | None = None
        self._reads = False  # a message is being processed; the next ones wait behind it
        self._warned = False
        self._taken_over = False  # another connection has resumed the conversation
        self._watch: asyncio.TimerHandle | None = None
        self._opus: OpusStream | None = None  # made for the first packet
        self._written = 0  # number of the last message that was written here; `ready` does not count

    # ---- life

    async def run(self) -> None:
        """Serve the connection from its hello to its close."""
        code, error = GONE, None
        try:
            error = await self._converse()
            code = DONE if error is None else error.close_code
            if isinstance(error, HandOver):
                await self._hand_over()
        except WebSocketDisconnect as gone:
            code = gone.code
        finally:
            if self._watch is not None:
                self._watch.cancel()
            if self._opus is not None:
                self._opus.close()
            self._part(code, error)
        if type(error) is TooFast:  # a tenant's quota is no flood
            self._registry.limits.pauses.begin(self._address, self._loop.time())
        if (error is not None or code == DONE) and not isinstance(error, HandOver):
            await self._close(code, error)
        ours = error is not None or code < OWN_CODES
        self._metrics.sockets_closed.labels(str(code) if ours else "other").inc()
        name = self._conversation.name if self._conversation is not None else None
        seconds = self._loop.time() - self._began_s
        reason = error.code if error is not None else None
        logger.info(line("voice closed", session=name, client=self._address, close=code, code=reason, seconds=seconds))

    async def _converse(self) -> VoxlaneError | None:
        """Run until the end; return the error that ended it, None if the client is done."""
        try:
            conversation = await self._greet(await self._hello())
        except TimeoutError:
            return TimedOut("No hello came.")
        except (BadMessage, VoxlaneError) as error:
            return self._error_of(error)
        return await self._serve(self._read(conversation), self._write(conversation))

    def end(self, error: VoxlaneError) -> None:
        """Close the connection with an error."""
        self._taken_over = self._taken_over or isinstance(error, ResumedElsewhere)
        super().end(error)

    def report(self, played: Played) -> None:
        """Note what a player in this process has played for the client."""
        if self._conversation is not None and not self._ended.done():
            self._conversation.played(played)

    # ---- beginning

    async def _hello(self) -> Hello:
        """Return the client's Hello from its first message, or from its handshake."""
        session, defaults = self._admission.session, self._registry.offer.defaults
        if self._dialect.opening is not None:
            return self._dialect.opening(self._handshake(session), defaults)
        assert self._dialect.read_hello is not None
        async with asyncio.timeout(limits.VOICE_HELLO_SECONDS):
            message = await self._receive()
        hello = self._dialect.read_hello(message, defaults)
        if hello.resume and (self._admission.stale or is_secret(hello.key)):
            return hello  # a conversation outlives the secret that began it: its resume token is checked
        if self._admission.stale:
            raise stale_secret()
        if self._account is None or is_secret(hello.key):
            self._account, session = admitted(hello.key, self._registry, self._tenants)
            admit(self._websocket, self._rate_limits)
        if session is None or hello.resume:
            return hello
        capabilities = self._registry.offer.capabilities(self._registry.offer.ready)
        return self._dialect.read_hello(message, secret_defaults(session, defaults, capabilities))

    def _handshake(self, session: Mapping[str, Any] | None) -> Handshake:
        websocket, capabilities = self._websocket, self._registry.offer.capabilities(self._registry.offer.ready)
        offered, beta = tuple(websocket.scope["subprotocols"]), websocket.headers.get("openai-beta", "")
        return Handshake(websocket.query_params, session, capabilities, offered, beta)

    async def _greet(self, hello: Hello) -> Conversation:
        lost: list[ServerEvent] = []  # what ends turns that another server left open
        if hello.resume:
            conversation, lost = await self._take_over(hello)
        else:
            assert self._account is not None
            conversation = self._registry.open(
                hello, self._dialect, self._address, self._account, admitted=self._admission.may_begin
            )
            conversation.attach(self)
        self._conversation = conversation
        self._audio_before_s = conversation.codec.heard_s()
        token = self._registry.parking.issue_token(conversation) if self._dialect.resumable else ""
        if conversation.journal is not None:  # the client must not have a token that the store does not know
            await conversation.journal.commit()
            if self._ended.done():  # another connection or another server has it by now
                raise self._ended.result() or ResumedElsewhere()
        ready = SessionReady(
            session=conversation.name,
            token=token,
            resumed=bool(hello.resume),
            config=conversation.session.config,
            capabilities=self._registry.offer.capabilities(self._registry.offer.ready),
            bounds=self._registry.offer.bounds,
            state=conversation.state,
            history=conversation.session.history.messages,
            position=conversation.acked if hello.resume else None,
            recorded=self._registry.watch.recorded,
            resumable=conversation.journal is None or conversation.journal.resumable,
            at=self._registry.at,
        )
        for packet in conversation.codec.encode(ready):
            conversation.outbound.put_first(packet)
        for event in lost:
            conversation.send(event)
        self._message_waits.set()
        tenant = conversation.account.name
        facts = {"session": conversation.name, "client": self._address, "tenant": tenant}
        logger.info(line("voice open", **facts, resumed=bool(hello.resume)))
        if not hello.resume:
            conversation.open()
        self._set_watch(conversation)
        return conversation

    def _account_of(self, salt: str) -> Account | None:
        """Return the tenant with a salt; None if the client has shown another one's key."""
        if self._account is None:
            return self._tenants.with_salt(salt)
        return self._account if self._account.salt == salt else None

    async def _take_over(self, hello: Hello) -> tuple[Conversation, list[ServerEvent]]:
        """Return the conversation of a token, of this process or of the store, and what ends its lost turns."""
        lost: list[ServerEvent] = []
        conversation = self._registry.parking.take_back(hello.resume, self._account)
        if conversation is not None and not await self._registry.moving.still_ours(conversation):
            conversation = None  # another process has gone on with it: what we have is old
        if conversation is None:
            conversation, lost = await self._registry.claim(hello, self._dialect, self._address, self._account_of)
        if self._account is None:
            self._account = conversation.account
            admit(self._websocket, self._rate_limits)
        before = conversation.writer
        conversation.detach()
        if before is not None:
            before.end(ResumedElsewhere())
        conversation.address = self._address
        conversation.attach(self)
        conversation.resume(hello.last_seq, hello.played)
        self._metrics.resumed.inc()
        return conversation, lost

    # ---- reading

    async def _receive(self) -> bytes | str:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", GONE), message.get("reason"))
        data: bytes | str | None = message.get("bytes")
        if data is None:
            if REFUSAL in message:
                raise cast(VoxlaneError, message[REFUSAL])
            data = message.get("text", "")
        if not message.get(MADE_UP):
            self._count(len(data or b""))
        return data or b""

    def _take_sound(self, message: bytes) -> bool:
        """Process a message with nothing but sound; return False if the message has to wait for its turn."""
        conversation = self._conversation
        if conversation is None or self._reads or self._taken_over or self._ended.done():
            return False
        try:
            sound = conversation.codec.sound(message)
            if sound is None:
                return False
            self._count(len(message))
            self._handle(conversation, sound)
        except Exception as raised:  # noqa: BLE001
            self.end(self._error_of(raised))
        return True

    async def _read(self, conversation: Conversation) -> None:
        give_to(self._websocket, self._take_sound)
        try:
            await self._read_messages(conversation)
        finally:
            give_to(self._websocket, None)

    async def _read_messages(self, conversation: Conversation) -> None:
        while True:
            self._reads = False
            message = await self._receive()
            self._reads = True
            if self._ended.done():
                return  # it holds the reason
            for place, incoming in enumerate(conversation.codec.decode(message)):
                if isinstance(incoming, Bye):
                    conversation.send(Farewell())
                    return
                if place and isinstance(incoming, Audio):
                    await asyncio.sleep(0)  # a message may hold half a minute of sound: let other tasks run
                event = await self._decoded(incoming) if isinstance(incoming, OpusPacket) else incoming
                self._handle(conversation, event)
            await asyncio.sleep(0)  # messages that came together must not block other tasks

    async def _decoded(self, packet: OpusPacket) -> Audio:
        """Return the sound of a packet."""
        if self._opus is None:
            self._opus = self._registry.opus.stream()
        return Audio(await self._opus.decode(packet.data))

    def _handle(self, conversation: Conversation, incoming: Decoded) -> None:
        if self._ended.done():  # while other tasks ran; a conversation that is handed over must stay as it is
            return
        if not isinstance(incoming, Audio):  # audio may have been sent before `ready` came
            self._registry.parking.token_arrived(conversation)
        match incoming:
            case Audio():
                self._check_sound(conversation, incoming)
                if incoming.pcm:
                    conversation.feed(incoming)
            case Played():
                conversation.played(incoming)
            case Starved(epoch):
                conversation.starved(epoch)
            case ClientPing(mark):
                conversation.send(ServerPong(mark, conversation.codec.heard_s()))
            case ConfigureSession(config) | Respond(config):
                # A client may keep using the name of its voice after another client has deleted that voice.
                any_voice = self._dialect.any_voice or config.voice == conversation.voice
                conversation.feed(replace(incoming, config=self._registry.offer.checked(config, any_voice=any_voice)))
                conversation.voice = config.voice
            case Complaint():
                conversation.send(incoming)
            case Hello() | Bye():
                raise InvalidRequest("There is one hello, and it comes first.")
            case _:
                conversation.feed(incoming)

    def _check_sound(self, conversation: Conversation, audio: Audio) -> None:
        if audio.made_up:  # sound that was only late comes behind it: the same seconds must not count twice
            self._audio_before_s += len(audio.pcm) / 2 / LISTEN_RATE
        else:
            self._check_audio_rate(conversation.codec.heard_s() - self._audio_before_s)

    # ---- writing

    async def _write(self, conversation: Conversation) -> None:
        while True:
            self._message_waits.clear()
            while not self._taken_over and (run := conversation.outbound.next_run()):
                await self._write_run(conversation, run)
            self._registry.drain.hand_over_if_silent(conversation)
            await self._message_waits.wait()

    async def _write_run(self, conversation: Conversation, run: list[NumberedPacket], *, sound: bool = True) -> None:
        """Write messages, the ones that the journal must hold only after it does."""
        if conversation.journal is not None:
            await conversation.journal.before(run)
        for item in run:
            if self._taken_over:
                return
            if sound or not item.packet.epoch:
                await self._send(conversation.codec.write(item.packet, item.sequence))
            if not item.never_repeated:
                self._written = item.sequence

    async def _send(self, data: bytes | str) -> None:
        if isinstance(data, str):
            await self._websocket.send_text(data)
        else:
            await self._websocket.send_bytes(data)

    # ---- time

    def _set_watch(self, conversation: Conversation) -> None:
        """Enforce the time limits, and set a timer for the next one."""
        now, config = self._loop.time(), self._registry.config
        ends_s = conversation.began_s + config.session_s
        warns_s = ends_s - limits.VOICE_WARNING_SECONDS
        if now >= ends_s:
            return self.end(SessionLimit())
        if now >= self._read_s + config.idle_s:
            return self.end(TimedOut(f"Nothing was received for {config.idle_s:g} s."))
        if now >= warns_s and not self._warned:
            self._warned = True
            conversation.send(GoAway(ends_s - now, "session_limit"))
        next_s = min(ends_s, self._read_s + config.idle_s, ends_s if self._warned else warns_s)
        self._watch = self._loop.call_at(next_s, self._set_watch, conversation)
        return None

    # ---- ending

    def _part(self, code: int, error: VoxlaneError | None) -> None:
        """Leave the conversation: park it or close it, unless another connection has resumed it."""
        conversation = self._conversation
        if conversation is None or (self._taken_over and not conversation.over):
            return
        if isinstance(error, HandOver) or self._taken_over:
            self._registry.conversations.release(conversation)
        elif error is None and code not in FINISHED and self._dialect.resumable:
            self._registry.parking.park(conversation)
        else:
            left = "done" if code in FINISHED else "left"
            self._registry.conversations.close(conversation, left if error is None else error.code)

    async def _hand_over(self) -> None:
        """Write what waits, leave the conversation to the store, and close: the client resumes at another process."""
        conversation = self._conversation
        assert conversation is not None
        assert conversation.journal is not None
        if self._written:
            conversation.outbound.rewind(self._written)  # the writer may have been stopped between two messages
        conversation.send(GoAway(0.0, "draining"))
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.VOICE_CLOSE_SECONDS):
                while not self._taken_over and (run := conversation.outbound.next_run()):
                    await self._write_run(conversation, run, sound=False)
                await conversation.journal.park()
                if not conversation.movable:  # the store has failed: once more
                    await conversation.journal.leave()
                self._metrics.handed_over.inc()
                await self._websocket.close(HandOver.close_code)

    async def _close(self, code: int, error: VoxlaneError | None) -> None:
        """Send the error as a message, then close; do not wait for a peer that does not read."""
        if self._websocket.application_state is not WebSocketState.CONNECTED:  # the peer is gone
            return
        with suppress(TimeoutError, WebSocketDisconnect):
            async with asyncio.timeout(limits.VOICE_CLOSE_SECONDS):
                for data in self._last_words(error):
                    await self._send(data)
                await self._websocket.close(code, _close_reason(error))

    def _last_words(self, error: VoxlaneError | None) -> Iterator[bytes | str]:
        """Yield the last messages: those that wait, without sound, and the error."""
        conversation = self._conversation
        codec = conversation.codec if conversation is not None else self._dialect.make(Hello(), 0)
        ending = None if error is None else _told(error)
        last = [] if ending is None else codec.encode(ending)
        if conversation is None or self._taken_over:  # no conversation numbers our messages
            yield from (codec.write(packet, 0) for packet in last)
            return
        for packet in last:
            with suppress(TooSlow):
                conversation.outbound.put(packet)
        while (item := conversation.outbound.next()) is not None:
            if not item[0].epoch:
                yield codec.write(*item)


def _close_reason(error: VoxlaneError | None) -> str:
    """Return the sentences that fit into a close frame: many clients show them, and not the event before it."""
    whole = "" if error is None else error.hint or error.text
    cut = whole.encode()[:CLOSE_REASON_BYTES].decode(errors="ignore")
    return cut if cut == whole else cut[: cut.rfind(". ") + 1] or cut


def _told(error: VoxlaneError) -> ConnectionEnd:
    return ConnectionEnd(error.kind, error.code, error.message, error.retryable, error.retry_after_s)
