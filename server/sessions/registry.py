"""The conversations of a server: the parts that hold, limit, park and move them, and how one begins."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import date

from voxlane.server.audio.opus_process import OpusProcess
from voxlane.server.cell.seat import CellSeat
from voxlane.server.config import Config
from voxlane.server.conversation.client_events import ConfigureSession
from voxlane.server.conversation.hearing import native_ear
from voxlane.server.conversation.server_events import ServerEvent
from voxlane.server.conversation.session import Session
from voxlane.server.engine_client.engine_client import EngineClient
from voxlane.server.engine_client.remote_chat import RemoteChat
from voxlane.server.errors import KeyRevoked, NotResumable
from voxlane.server.log import line
from voxlane.server.protocols.dialect import Dialect, Hello
from voxlane.server.room.meter import RoomMeter
from voxlane.server.sessions.client_secrets import ClientSecrets
from voxlane.server.sessions.conversation import Conversation
from voxlane.server.sessions.conversations import Conversations
from voxlane.server.sessions.drain import Drain
from voxlane.server.sessions.moving import FoundRecord, Moving
from voxlane.server.sessions.offer import ServerOffer
from voxlane.server.sessions.parking import Parking
from voxlane.server.sessions.resume import name_in
from voxlane.server.sessions.session_limits import SessionLimits
from voxlane.server.store.memory import MemoryStore
from voxlane.server.store.values import SessionStore
from voxlane.server.tenants.accounts import Account
from voxlane.server.watching.metrics import Metrics
from voxlane.server.watching.watch_service import WatchService

logger = logging.getLogger(__name__)


class SessionRegistry:
    """The conversations of one server."""

    def __init__(
        self,
        config: Config,
        engine: EngineClient,
        metrics: Metrics,
        server: str,
        chat_key: str = "",
        today: Callable[[], date] = date.today,
        watch: WatchService | None = None,
        store: SessionStore | None = None,
        room: RoomMeter | None = None,
        seat: CellSeat | None = None,
    ) -> None:
        self.config = voice = config.voice
        self.at = config.server.at
        self._engine = engine
        self._metrics = metrics
        self._seat = seat or CellSeat()
        self.watch = watch or WatchService(config, metrics, server)
        self._remote = RemoteChat(config.chat, chat_key) if config.chat.url else None
        room, counts = room or RoomMeter(config, engine, metrics), self._seat.counts
        self.offer = ServerOffer(voice, engine, self._remote, server, today)
        self.secrets = ClientSecrets()
        self.opus = OpusProcess()
        self.conversations = Conversations(counts, metrics)
        self.limits = SessionLimits(voice, engine, metrics, room, self.conversations)
        self.parking = Parking(self.conversations, voice.resume_s)
        self.moving = Moving(self.conversations, store or MemoryStore(), voice.resume_s, metrics)
        self.drain = Drain(self.conversations, self.parking, room)
        self.stop_asked = asyncio.Event()  # the server was told to stop; it may not have drained yet
        room.conversations = lambda: self.limits.sockets_in_cell
        # A balancer asks any process for the room of the cell, which drains when its last process does.
        room.draining = lambda: self.conversations.draining and not counts.elsewhere("serving")
        if reason := native_ear.native():  # built here, once for a machine, and not when the first person speaks
            logger.warning(line("ear", native="off", slow="yes", reason=reason))

    def open(
        self, hello: Hello, dialect: Dialect, address: str, account: Account, *, admitted: bool = True
    ) -> Conversation:
        """Begin a conversation of a tenant; unless it is `admitted`, only if there is room."""
        self.offer.check_models()
        self.limits.check_opening(address)
        if not admitted:
            self.limits.check_room()
        hello = replace(hello, config=self.offer.checked(hello.config, any_voice=dialect.any_voice))
        self._metrics.tenant_limited(account.name, account.begin_conversation)
        conversation = self._make(f"voice-{secrets.token_hex(8)}", hello, dialect, address, account)
        self.moving.begin_record(conversation, dialect)
        return conversation

    async def claim(
        self, hello: Hello, dialect: Dialect, address: str, account_of: Callable[[str], Account | None]
    ) -> tuple[Conversation, list[ServerEvent]]:
        """Go on with another process's conversation, found in the store by its token.

        `account_of` returns the tenant with a salt if the client may go on with its conversations. Return the
        conversation, and the events that end what was open there. Raise NotResumable if there is none, StoreUnavailable
        if the store does not answer.
        """
        name = name_in(hello.resume)
        if name is None or not self.moving.moves(dialect):
            raise NotResumable
        self.offer.check_models()
        # All that can refuse the client comes before the claim: that ends the conversation where it runs now.
        found = await self.moving.find(name, hello.resume)
        account = account_of(found.saved.settings.tenant)
        if account is None:
            raise NotResumable
        self.limits.check_room(resumed=True)
        if self._seat.shared:  # a parked copy at another process of this cell counts as long as it is there
            await self._seat.let_go(name)
        account.check_room()
        self.limits.check_place()
        record = await self.moving.take(found, hello.resume)
        return self._restore(record, hello, dialect, address, account)

    def _restore(
        self, record: FoundRecord, hello: Hello, dialect: Dialect, address: str, account: Account
    ) -> tuple[Conversation, list[ServerEvent]]:
        name, saved = record.claim.name, record.saved
        if (before := self.conversations.get(name)) is not None:  # this process has claimed it a moment ago
            before.lose()
            self.conversations.release(before)
        settings = saved.settings
        config = self.offer.adapted(settings.config)
        again = Hello(settings.input, settings.output, config, heard_s=saved.recent.heard_s)
        account.continue_conversation()
        conversation = self._make(name, again, dialect, address, account)
        try:
            lost = conversation.restore(saved, hello.last_seq, hello.played)
        except Exception:
            self.conversations.release(conversation)
            raise
        self.moving.continue_record(conversation, record, hello.resume)
        return conversation, lost

    def _make(self, name: str, hello: Hello, dialect: Dialect, address: str, account: Account) -> Conversation:
        """Make a conversation that its tenant counts already."""
        try:
            self.limits.make_place(address)
            conversation = self._made(name, hello, dialect, address, account)
        except BaseException:
            account.end_conversation()
            raise
        self.conversations.add(conversation)
        return conversation

    def _made(self, name: str, hello: Hello, dialect: Dialect, address: str, account: Account) -> Conversation:
        ready = self.offer.ready
        session = Session(
            name,
            hello.config,
            native_ear.new_ear(),
            speak_rate=ready.speak_rate,
            reads_words=ready.reads_words,
            begins_early=ready.begins_early,
            listens=bool(ready.asr_model),
            probes=self._remote is None and bool(ready.model),
            history=self.offer.new_history(ready),
            echo_guard=self.config.echo_guard == "auto",
            speech=ready.speech if ready.speech.name else None,
            chats=self.offer.chats(ready),
        )
        codec = dialect.make(hello, ready.speak_rate)
        conversation = Conversation(session, codec, hello, address, self._metrics)
        conversation.account = account
        if self._remote is None:
            conversation.channel = self._engine.channel(name, conversation.feed)
        else:
            conversation.channel = remote = self._remote.open(conversation.feed)
            remote.engine = self._engine.channel(name, remote.receive)
        conversation.watch = self.watch.open(
            name,
            dialect.name,
            conversation.began_s,
            ready.speak_rate,
            model=self.offer.capabilities(ready).chat_model,
            tenant=account.name,
        )
        return conversation

    def forget_voice(self, name: str) -> None:
        """Switch the conversations that use a deleted voice to the default voice."""
        for conversation in list(self.conversations.values()):
            if conversation.session.config.voice == name:
                conversation.feed(ConfigureSession(replace(conversation.session.config, voice="")))

    def end_revoked(self) -> None:
        """End the conversations of tenants whose keys were revoked."""
        for conversation in [one for one in self.conversations.values() if one.account.revoked]:
            if conversation.writer is not None:
                conversation.writer.end(KeyRevoked())
            else:
                self.conversations.close(conversation, KeyRevoked.code)

    async def aclose(self) -> None:
        """End everything; records of conversations that another process can go on with stay."""
        for conversation in list(self.conversations.values()):
            if conversation.movable:
                self.conversations.release(conversation)
            else:
                self.conversations.close(conversation, "draining")
        await self.opus.aclose()
        await self.moving.aclose()
        if self._remote is not None:
            await self._remote.aclose()
