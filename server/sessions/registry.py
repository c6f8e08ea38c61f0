"""All conversations of a server: makes them, limits their number, keeps them for a resume, ends them at shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import date

from voxlane.server import limits
from voxlane.server.audio.opus_process import OpusProcess
from voxlane.server.cell.seat import CellSeat
from voxlane.server.config import Config
from voxlane.server.conversation.client_events import ConfigureSession
from voxlane.server.conversation.hearing import native_ear
from voxlane.server.conversation.server_events import ServerEvent
from voxlane.server.conversation.session import Session
from voxlane.server.engine_client.engine_client import EngineClient
from voxlane.server.engine_client.remote_chat import RemoteChat
from voxlane.server.errors import (
    Draining,
    EngineNotReady,
    Full,
    HandOver,
    KeyRevoked,
    NoRoom,
    NotResumable,
    ResumedElsewhere,
    VoxlaneError,
)
from voxlane.server.http.address_rates import AddressPauses, AddressRates
from voxlane.server.log import line
from voxlane.server.protocols.dialect import Dialect, GoAway, Hello
from voxlane.server.room.meter import RoomMeter
from voxlane.server.sessions.claims import FoundRecord, RecordClaims
from voxlane.server.sessions.client_secrets import ClientSecrets
from voxlane.server.sessions.conversation import Conversation
from voxlane.server.sessions.journal import Journal, JournalTimes, rehearse
from voxlane.server.sessions.offer import ServerOffer
from voxlane.server.sessions.resume import Tokens, name_in
from voxlane.server.store.memory import MemoryStore
from voxlane.server.store.seal import SessionKey
from voxlane.server.store.values import SessionStore
from voxlane.server.tenants.accounts import Account
from voxlane.server.watching.metrics import Metrics
from voxlane.server.watching.watch_service import WatchService
from voxlane.server.watching.watched_call import HANDED_OVER

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
        self.config = config.voice
        self.at = config.server.at
        self._seat = seat or CellSeat()
        self._counts = self._seat.counts
        self._store = store or MemoryStore()
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"  # of this process's records
        self._times = JournalTimes.of(config.voice.resume_s)
        self._claims = RecordClaims(self._store, self._owner, self._times.live_s, metrics)
        self._tasks: set[asyncio.Task[object]] = set()  # writes that nothing waits for
        self._touching: asyncio.Task[None] | None = None
        self._started = False
        self.tokens = Tokens()
        self.secrets = ClientSecrets()
        self.opus = OpusProcess()
        self._engine = engine
        self._metrics = metrics
        self._room = room or RoomMeter(config, engine, metrics)
        self._room.conversations = lambda: self._sockets.total() + int(self._counts.elsewhere("sockets"))
        # A balancer asks any process for the room of the cell, which drains when its last process does.
        self._room.draining = lambda: self.draining and not self._counts.elsewhere("serving")
        self._watch = watch or WatchService(config, metrics, server)
        self._remote = RemoteChat(config.chat, chat_key) if config.chat.url else None
        self.offer = ServerOffer(config.voice, engine, self._remote, server, today)
        self._conversations: dict[str, Conversation] = {}
        self._parked: dict[str, asyncio.TimerHandle] = {}  # oldest first
        self._counted: dict[str, str] = {}  # the address for which a conversation counts: that of its beginning
        self._sockets: Counter[str] = Counter()  # by address
        burst = max(limits.VOICE_SESSIONS_PER_ADDRESS, self.config.sessions_per_address)
        self._opens = AddressRates(limits.OPENS_PER_SECOND, burst, limits.OPENING_ADDRESSES)
        self.pauses = AddressPauses(limits.FLOOD_PAUSE_SECONDS, limits.OPENING_ADDRESSES)
        self._empty, self._quiet = asyncio.Event(), asyncio.Event()  # no conversation, no socket
        self._empty.set()
        self._quiet.set()
        self.draining = False
        self._hand_overs = 0  # how many conversations a drain may hand over now
        self.stop_asked = asyncio.Event()  # the server was told to stop; it may not have drained yet
        if reason := native_ear.native():  # built here, once for a machine, and not when the first person speaks
            logger.warning(line("ear", native="off", slow="yes", reason=reason))

    def __len__(self) -> int:
        return len(self._conversations)

    @property
    def recorded(self) -> tuple[str, ...]:
        """Return what is kept of conversations."""
        return self._watch.recorded

    # ---- coming and going

    @contextmanager
    def socket(self, address: str, *, resumes: bool = False) -> Iterator[bool]:
        """Count a socket, or raise Full, Draining or EngineNotReady; give whether it may begin a new conversation.

        A client that resumes needs no room for a new conversation. It is one if it says so, or if a conversation waits
        for its address. While there is no engine, only an address with a conversation is let in.
        """
        resumes = resumes or any(self._conversations[name].address == address for name in self._parked)
        self.check_socket(address, resumes=resumes, engine_needed=not self._has_conversation(address))
        self._sockets[address] += 1
        self._count_socket(address, 1)
        self._quiet.clear()
        try:
            yield not resumes
        finally:
            self._sockets[address] -= 1
            self._count_socket(address, -1)
            if not self._sockets[address]:
                del self._sockets[address]
            if not self._sockets:
                self._quiet.set()

    def check_socket(self, address: str, *, resumes: bool = False, engine_needed: bool = True) -> None:
        """Raise the error that refuses a socket of this address, and count the refusal."""
        try:
            if self.draining:
                raise Draining
            if engine_needed and not self._engine.connected:
                raise self._engine.not_ready()
            if self._sockets.total() + self._counts.elsewhere("sockets") >= self.config.sessions:
                raise Full(detail="voice.sessions")
            of_address = self._sockets[address] + self._counts.keyed_elsewhere("sockets of address", address)
            if of_address >= self.config.sessions_per_address:
                raise Full(detail="voice.sessions_per_address")
            if not resumes:
                self._room.check()
        except (Full, Draining, EngineNotReady) as error:
            raise self._refused(error) from None

    def check_place(self) -> None:
        """Raise the error that would refuse a new conversation now, from whatever address."""
        self.check_socket("")

    def _check_room(self, *, resumed: bool = False) -> None:
        try:
            self._room.check(resumed=resumed)
        except NoRoom as error:
            raise self._refused(error) from None

    def _refused(self, error: VoxlaneError) -> VoxlaneError:
        states: dict[type[VoxlaneError], str] = {Draining: "draining", EngineNotReady: "no_engine"}
        reason = states.get(type(error), error.detail)
        self._metrics.refusals.labels(reason.removeprefix("voice.")).inc()
        return error

    def _count_socket(self, address: str, amount: int) -> None:
        """Let the other server processes know of a socket."""
        self._counts.add("sockets", amount)
        self._counts.add_keyed("sockets of address", address, amount)

    def _has_conversation(self, address: str) -> bool:
        """Return whether an address has a conversation, at any server process."""
        here = any(one.address == address for one in self._conversations.values())
        return here or self._counts.keyed_elsewhere("conversations of address", address) > 0

    def open(
        self, hello: Hello, dialect: Dialect, address: str, account: Account, *, admitted: bool = True
    ) -> Conversation:
        """Begin a conversation of a tenant; unless it is `admitted`, only if there is room."""
        self.offer.check_models()
        if not self._opens.spend(address, asyncio.get_running_loop().time()):
            raise self._refused(Full(detail="voice.opens"))
        if not admitted:
            self._check_room()
        hello = replace(hello, config=self.offer.checked(hello.config, any_voice=dialect.any_voice))
        self._metrics.tenant_limited(account.name, account.begin_conversation)
        conversation = self._make(f"voice-{secrets.token_hex(8)}", hello, dialect, address, account)
        if self._store.outlives_process and dialect.resumable and self.config.resume_s:
            key, fence = SessionKey(conversation.name), int(time.time() * 1e3)
            self._keep_record(conversation, key, fence)
        return conversation

    def _make(self, name: str, hello: Hello, dialect: Dialect, address: str, account: Account) -> Conversation:
        """Make a conversation that its tenant counts already."""
        try:
            self._make_room(address)
            return self._made(name, hello, dialect, address, account)
        except BaseException:
            account.end_conversation()
            raise

    def _made(self, name: str, hello: Hello, dialect: Dialect, address: str, account: Account) -> Conversation:
        ready = self.offer.ready
        session = Session(
            name,
            hello.config,
            native_ear.new_ear(),
            speak_rate=ready.speak_rate,
            reads_words=ready.reads_words,
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
            conversation.channel = self._engine.channel(conversation.name, conversation.feed)
        else:
            conversation.channel = remote = self._remote.open(conversation.feed)
            remote.engine = self._engine.channel(conversation.name, remote.receive)
        conversation.watch = self._watch.open(
            conversation.name,
            dialect.name,
            conversation.began_s,
            ready.speak_rate,
            model=self.offer.capabilities(ready).chat_model,
            tenant=account.name,
        )
        self._conversations[conversation.name] = conversation
        self._counted[conversation.name] = address
        self._count_conversation(address, 1)
        self._metrics.sessions.inc()
        self._metrics.tenant_conversations.labels(account.name).inc()
        self._empty.clear()
        return conversation

    def _count(self) -> int:
        """Return how many conversations there are, at all server processes."""
        return len(self._conversations) + int(self._counts.elsewhere("conversations"))

    def _count_conversation(self, address: str, amount: int) -> None:
        """Let the other server processes know of a conversation."""
        self._counts.add("conversations", amount)
        self._counts.add_keyed("conversations of address", address, amount)

    def _make_room(self, address: str) -> None:
        """Close parked conversations until there is room for one more of an address; raise Full if none can be closed.

        An address that has all its conversations loses its own oldest parked one. In a full house the address with the
        most parked conversations loses its oldest: one client cannot push out the conversations of the others.
        """
        own = sum(one.address == address for one in self._conversations.values())
        own += int(self._counts.keyed_elsewhere("conversations of address", address))
        parked = [self._conversations[name] for name in self._parked]
        mine = [one for one in parked if one.address == address]
        if own >= self.config.sessions_per_address and mine:
            self.close(mine[0], "evicted")
        elif self._count() >= self.config.sessions:
            if not parked:
                raise Full(detail="voice.sessions")
            most, _ = Counter(one.address for one in parked).most_common(1)[0]
            self.close(next(one for one in parked if one.address == most), "evicted")

    def _keep_record(self, conversation: Conversation, key: SessionKey, fence: int) -> None:
        """Let a conversation outlive this process."""
        name, store = conversation.name, self._store
        journal = Journal(store, name, self._owner, fence, key, self._times, self._metrics, conversation)
        conversation.keep_record(journal, self.tokens)

    def issue_token(self, conversation: Conversation) -> str:
        """Return a new token that resumes a conversation."""
        token = self.tokens.issue(conversation.name)
        if conversation.journal is not None:
            conversation.journal.wrap(token)
        return token

    def token_arrived(self, conversation: Conversation) -> None:
        """Note that a conversation's client has its last token: the one before becomes invalid."""
        if self.tokens.arrived(conversation.name) and conversation.journal is not None:
            self._spawn(conversation.journal.commit())

    def forget_voice(self, name: str) -> None:
        """Switch the conversations that use a deleted voice to the default voice."""
        for conversation in list(self._conversations.values()):
            if conversation.session.config.voice == name:
                conversation.feed(ConfigureSession(replace(conversation.session.config, voice="")))

    def take_back(self, token: str, account: Account | None) -> Conversation | None:
        """Return this process's conversation of a resume token and stop its parking timer; None if it has none.

        A token is good for the tenant of its conversation alone: else NotResumable is raised. `account` is None where
        the token is all that a client has shown.
        """
        name = self.tokens.name_of(token)
        conversation = self._conversations.get(name) if name is not None else None
        if conversation is None or conversation.over:
            return None
        if account not in (None, conversation.account):
            raise NotResumable
        self.tokens.redeem(token)
        self._unpark(conversation)
        return conversation

    def _unpark(self, conversation: Conversation) -> None:
        timer = self._parked.pop(conversation.name, None)
        if timer is not None:
            timer.cancel()

    async def claim(
        self, hello: Hello, dialect: Dialect, address: str, account_of: Callable[[str], Account | None]
    ) -> tuple[Conversation, list[ServerEvent]]:
        """Go on with another process's conversation, found in the store by its token.

        `account_of` returns the tenant with a salt if the client may go on with its conversations. Return the
        conversation, and the events that end what was open there. Raise NotResumable if there is none, StoreUnavailable
        if the store does not answer.
        """
        name = name_in(hello.resume)
        if name is None or not self._store.outlives_process or not dialect.resumable:
            raise NotResumable
        self.offer.check_models()
        # All that can refuse the client comes before the claim: that ends the conversation where it runs now.
        found = await self._claims.find(name, hello.resume)
        account = account_of(found.saved.settings.tenant)
        if account is None:
            raise NotResumable
        self._check_room(resumed=True)
        if self._seat.shared:  # a parked copy at another process of this cell counts as long as it is there
            await self._seat.let_go(name)
        account.check_room()
        self._check_place()
        record = await self._claims.take(found, hello.resume)
        return self._restore(record, hello, dialect, address, account)

    async def let_go(self, name: str) -> None:
        """Release a conversation that another process of this cell goes on with; its record holds all that was told."""
        conversation = self._conversations.get(name)
        if conversation is None or conversation.journal is None:
            return
        await conversation.journal.leave()
        if self._conversations.get(name) is not conversation:  # it has ended meanwhile
            return
        writer = conversation.writer
        self.release(conversation)
        if writer is not None:
            writer.end(ResumedElsewhere())

    async def still_ours(self, conversation: Conversation) -> bool:
        """Return whether this process still owns a conversation; release a copy that another process has gone on with.

        Without an answer of the store the copy counts as ours.
        """
        journal = conversation.journal
        if journal is None:
            return True
        await journal.commit()
        if journal.over:
            self.release(conversation)
        elif not conversation.over:
            self._unpark(conversation)  # its last connection may have left meanwhile
        return not conversation.over

    def _check_place(self) -> None:
        """Raise Full if there is no room for one more conversation and none can be made."""
        if self._count() >= self.config.sessions and not self._parked:
            raise Full(detail="voice.sessions")

    def _restore(
        self, record: FoundRecord, hello: Hello, dialect: Dialect, address: str, account: Account
    ) -> tuple[Conversation, list[ServerEvent]]:
        name, saved = record.name, record.saved
        if (before := self._conversations.get(name)) is not None:  # this process has claimed it a moment ago
            writer = before.writer
            self.release(before)
            if writer is not None:
                writer.end(ResumedElsewhere())
        settings = saved.settings
        config = self.offer.adapted(settings.config)
        again = Hello(settings.input, settings.output, config, heard_s=saved.recent.heard_s)
        account.continue_conversation()
        conversation = self._make(name, again, dialect, address, account)
        try:
            lost = conversation.restore(saved, hello.last_seq, hello.played)
        except Exception:
            self.release(conversation)
            raise
        self.tokens.adopt(name, hello.resume)
        self._keep_record(conversation, record.key, record.fence)
        if conversation.journal is not None:
            conversation.journal.wrap(hello.resume)
        return conversation, lost

    def park(self, conversation: Conversation) -> None:
        """Keep a conversation without a socket for `resume_s`."""
        conversation.detach()
        if self.draining and conversation.outlives:
            self._spawn(self._leave_to_store(conversation))
            return
        if self.draining or conversation.over or not self.config.resume_s:
            self.close(conversation, "draining" if self.draining else "left")
            return
        if conversation.journal is not None:
            self._spawn(conversation.journal.park())
        loop = asyncio.get_running_loop()
        self._parked[conversation.name] = loop.call_later(self.config.resume_s, self._expire, conversation)

    def _expire(self, conversation: Conversation) -> None:
        """End a conversation that was not resumed here; another process may go on with it."""
        if conversation.journal is None:
            self.close(conversation, "left")
        else:
            self._spawn(self._expire_stored(conversation, conversation.journal))

    async def _expire_stored(self, conversation: Conversation, journal: Journal) -> None:
        outcome = await journal.end()
        if conversation.writer is None:
            self.release(conversation, HANDED_OVER if outcome == "other_owner" else "left")

    async def _leave_to_store(self, conversation: Conversation) -> None:
        journal = conversation.journal
        if journal is not None:
            await (journal.park() if journal.resumable else journal.leave())
        if conversation.writer is None:  # else a client has come back meanwhile
            self.release(conversation, HANDED_OVER)

    def close(self, conversation: Conversation, reason: str = "done") -> None:
        """End a conversation for good; `reason` is for those that watch."""
        if conversation.journal is not None and not conversation.journal.over:
            self._spawn(conversation.journal.end())
        self.release(conversation, reason)

    def release(self, conversation: Conversation, reason: str = HANDED_OVER) -> None:
        """End a conversation in this process; its record, if it has one, stays."""
        if conversation.journal is not None:
            conversation.journal.stop()
        conversation.close()
        if conversation.watch is not None:
            conversation.watch.close(reason)
        if self._conversations.get(conversation.name) is not conversation:
            return
        timer = self._parked.pop(conversation.name, None)
        if timer is not None:
            timer.cancel()
        del self._conversations[conversation.name]
        self._count_conversation(self._counted.pop(conversation.name), -1)
        self.tokens.revoke(conversation.name)
        self._metrics.sessions.dec()
        self._metrics.tenant_conversations.labels(conversation.account.name).dec()
        conversation.account.end_conversation()
        if not self._conversations:
            self._empty.set()

    def end_revoked(self) -> None:
        """End the conversations of tenants whose keys were revoked."""
        for conversation in [one for one in self._conversations.values() if one.account.revoked]:
            writer = conversation.writer
            if writer is not None:
                writer.end(KeyRevoked())
            else:
                self.close(conversation, KeyRevoked.code)

    def _spawn(self, work: Coroutine[None, None, object]) -> None:
        """Run a write that nothing waits for."""
        task = asyncio.create_task(work, name="store write")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- the store

    async def start(self) -> None:
        """Open the store, once, and keep the records of running conversations alive; raise ConfigError."""
        if self._started:
            return
        self._started = True
        await self._store.open()
        if self._store.outlives_process:
            rehearse()
            self._touching = asyncio.create_task(self._touch(), name="store touch")

    async def _touch(self) -> None:
        while True:
            await asyncio.sleep(limits.STORE_TOUCH_SECONDS)
            journals = [one.journal for one in self._conversations.values() if one.name not in self._parked]
            commits = [journal.commit() for journal in journals if journal is not None]
            await asyncio.gather(*commits, return_exceptions=True)

    # ---- going down

    def cell_ends(self) -> None:
        """Note that no other process can go on with these conversations: the store goes down, too."""
        for conversation in self._conversations.values():
            if conversation.journal is not None:
                conversation.journal.movable = False

    async def drain(self, seconds: float) -> None:
        """Admit no more clients, hand over or finish conversations for `seconds`, then end the rest.

        A conversation that another process can go on with is handed over in its first silence. Any other goes on for
        `seconds`.
        """
        self.draining = True
        running = len(self._conversations)
        for conversation in list(self._conversations.values()):
            if conversation.name in self._parked:
                if conversation.outlives:
                    self._spawn(self._leave_to_store(conversation))
                else:
                    self.close(conversation, "draining")
            elif (writer := conversation.writer) is not None and writer.leaves_by_itself:
                continue
            elif not conversation.movable:
                conversation.send(GoAway(seconds, "draining"))
        farewell_s = min(seconds, limits.CALL_FAREWELL_SECONDS)
        if not await self._wait_empty(seconds - farewell_s):
            for conversation in list(self._conversations.values()):
                if conversation.writer is not None and conversation.writer.leaves_by_itself:
                    conversation.send(GoAway(farewell_s, "draining"))
            await self._wait_empty(farewell_s)
        ended = self.end_all()
        if running:
            logger.info(line("voice drained", running=running, finished=running - ended, ended=ended))

    async def _wait_empty(self, seconds: float) -> bool:
        """Wait until all conversations are gone, and let those that can move look for their silence."""
        loop = asyncio.get_running_loop()
        told_s, until_s = loop.time() + limits.BALANCER_ASKS_SECONDS, loop.time() + seconds
        at_once = -(-len(self._conversations) // limits.HAND_OVER_LOOKS)
        while self._conversations and loop.time() < until_s:
            if self._room.balancer_knows or loop.time() > told_s:
                self._hand_overs = at_once
            for conversation in self._conversations.values():
                if conversation.movable and conversation.writer is not None:
                    conversation.writer.notify()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(limits.SILENCE_LOOK_SECONDS, until_s - loop.time())):
                    await self._empty.wait()
        return not self._conversations

    async def wait_quiet(self, seconds: float) -> None:
        """Wait until the last socket is closed, but no longer than `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()

    def end_all(self) -> int:
        """End all connected conversations and their turns; return how many there were."""
        ended = [one for one in self._conversations.values() if one.writer is not None]
        for conversation in ended:
            writer = conversation.writer
            assert writer is not None
            conversation.end_turns()
            writer.end(HandOver() if conversation.movable and not writer.leaves_by_itself else Draining())
        return len(ended)

    def hand_over_if_silent(self, conversation: Conversation) -> None:
        """While the server drains, let another process go on with a conversation in which neither side speaks."""
        if not self._hand_overs or conversation.writer is None:
            return
        if conversation.movable and conversation.session.silent:
            self._hand_overs -= 1
            conversation.writer.end(HandOver())

    async def aclose(self) -> None:
        """End everything; records of conversations that another process can go on with stay."""
        for conversation in list(self._conversations.values()):
            if conversation.movable:
                self.release(conversation)
            else:
                self.close(conversation, "draining")
        await self.opus.aclose()
        if self._touching is not None:
            self._touching.cancel()
            await asyncio.gather(self._touching, return_exceptions=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.aclose()
        if self._remote is not None:
            await self._remote.aclose()
