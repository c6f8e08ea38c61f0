"""All conversations of a server: makes them, limits their number, keeps them for a resume, ends them at shutdown."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import date

from voxlane.engine.api import Ready as EngineReady
from voxlane.engine.api import has_phonemes
from voxlane.server import limits
from voxlane.server.audio.opus_process import OpusProcess
from voxlane.server.audio.voices import find_voice, language_named, names, sayable, served_name
from voxlane.server.config import Config
from voxlane.server.conversation.client_events import ConfigureSession
from voxlane.server.conversation.ear import Ear
from voxlane.server.conversation.history import History
from voxlane.server.conversation.session import Session
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.engine_client.engine_process import EngineProcess
from voxlane.server.engine_client.remote_chat import RemoteChat
from voxlane.server.errors import (
    Draining,
    Full,
    InvalidRequest,
    KeyRevoked,
    ModelNotFound,
    NotResumable,
)
from voxlane.server.log import line
from voxlane.server.metrics import Metrics
from voxlane.server.protocols.dialect import Bounds, Capabilities, Dialect, GoAway, Hello
from voxlane.server.protocols.sound import codecs
from voxlane.server.sessions.client_secrets import ClientSecrets
from voxlane.server.sessions.conversation import Conversation
from voxlane.server.sessions.resume import Tokens
from voxlane.server.tenants.accounts import Account
from voxlane.server.watching.watch_service import WatchService

logger = logging.getLogger(__name__)


def dated(instructions: str, today: date) -> str:
    """Return instructions with the day in the place of {date}, as "Tuesday, 17 November 2026"."""
    return instructions.replace("{date}", f"{today:%A}, {today.day} {today:%B %Y}")


class SessionRegistry:
    """The conversations of one server."""

    def __init__(
        self,
        config: Config,
        engine: EngineProcess,
        metrics: Metrics,
        server: str,
        chat_key: str = "",
        today: Callable[[], date] = date.today,
        watch: WatchService | None = None,
    ) -> None:
        self.config = config.voice
        self.tokens = Tokens()
        self.secrets = ClientSecrets()
        self.opus = OpusProcess()
        self._engine = engine
        self._metrics = metrics
        self._server = server
        self._today = today
        self._watch = watch or WatchService(config, metrics, server)
        self._remote = RemoteChat(config.chat, chat_key) if config.chat.url else None
        self._conversations: dict[str, Conversation] = {}
        self._parked: dict[str, asyncio.TimerHandle] = {}  # oldest first
        self._sockets: Counter[str] = Counter()  # by address
        self._empty, self._quiet = asyncio.Event(), asyncio.Event()  # no conversation, no socket
        self._empty.set()
        self._quiet.set()
        self.draining = False

    def __len__(self) -> int:
        return len(self._conversations)

    @property
    def defaults(self) -> SessionConfig:
        """Return the default configuration of a conversation."""
        return SessionConfig(
            instructions=dated(self.config.instructions, self._today()),
            greeting=self.config.greeting,
            pronunciations=self._sayable,
        )

    @property
    def _sayable(self) -> tuple[str, ...]:
        ready = self._engine.ready
        return sayable(self.config.pronunciations, respells_only=ready is not None and ready.respells_only)

    @property
    def bounds(self) -> Bounds:
        """Return the limits that clients are told."""
        return Bounds(
            frame_bytes=limits.VOICE_FRAME_BYTES,
            frames_per_s=limits.VOICE_FRAMES_PER_SECOND,
            bytes_per_s=limits.VOICE_BYTES_PER_SECOND,
            audio_rate=limits.VOICE_AUDIO_RATE,
            audio_burst_s=limits.VOICE_AUDIO_BURST_SECONDS,
            idle_s=self.config.idle_s,
            session_s=self.config.session_s,
            resume_s=self.config.resume_s,
        )

    def capabilities(self, ready: EngineReady) -> Capabilities:
        """Return what this server can do."""
        chat = self._remote.model if self._remote is not None else served_name(ready.model)
        return Capabilities(
            server=self._server,
            chat_model=chat,
            asr_model=served_name(ready.asr_model),
            tts_model=served_name(ready.tts_model),
            languages=ready.asr_languages,
            voices=ready.voices,
            codecs=codecs(),
            one_pace=ready.one_pace,
            voice_languages=ready.speak_languages,
            instructed=ready.instructed,
            phonemes=not ready.respells_only,
        )

    @property
    def recorded(self) -> tuple[str, ...]:
        """Return what is kept of conversations."""
        return self._watch.recorded

    @property
    def ready(self) -> EngineReady:
        """Return the engine's description; raise EngineNotReady before the first one."""
        if self._engine.ready is None:
            raise self._engine.not_ready()
        return self._engine.ready

    # ---- coming and going

    @contextmanager
    def socket(self, address: str) -> Iterator[None]:
        """Count a socket, or raise Full, Draining or EngineNotReady.

        While there is no engine, only an address with a conversation is let in: it may want to resume.
        """
        if self.draining:
            raise Draining
        if not self._engine.connected and not any(one.address == address for one in self._conversations.values()):
            raise self._engine.not_ready()
        if self._sockets.total() >= self.config.sessions:
            raise Full(detail="voice.sessions")
        if self._sockets[address] >= self.config.sessions_per_address:
            raise Full(detail="voice.sessions_per_address")
        self._sockets[address] += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._sockets[address] -= 1
            if not self._sockets[address]:
                del self._sockets[address]
            if not self._sockets:
                self._quiet.set()

    def open(self, hello: Hello, dialect: Dialect, address: str, account: Account) -> Conversation:
        """Begin a conversation of a tenant."""
        ready = self.ready
        if not self._engine.connected:
            raise self._engine.not_ready()
        if not ready.model and self._remote is None:
            raise ModelNotFound("This server has no model that converses.")
        config = self.checked(hello.config, any_voice=dialect.any_voice)
        self._make_room(address)
        session = Session(
            f"voice-{secrets.token_hex(8)}",
            config,
            Ear(),
            speak_rate=ready.speak_rate,
            reads_words=ready.reads_words,
            listens=bool(ready.asr_model),
            probes=self._remote is None,
            history=self._new_history(ready),
            echo_guard=self.config.echo_guard == "auto",
        )
        codec = dialect.make(replace(hello, config=config), ready.speak_rate)
        self._metrics.tenant_limited(account.name, account.begin_conversation)
        conversation = Conversation(session, codec, address, self._metrics)
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
            model=self.capabilities(ready).chat_model,
            tenant=account.name,
        )
        self._conversations[conversation.name] = conversation
        self._metrics.sessions.inc()
        self._metrics.tenant_conversations.labels(account.name).inc()
        self._empty.clear()
        return conversation

    def _make_room(self, address: str) -> None:
        """Close parked conversations until there is room for one more of an address; raise Full if none can be closed.

        An address that has all its conversations loses its own oldest parked one. In a full house the address with the
        most parked conversations loses its oldest: one client cannot push out the conversations of the others.
        """
        own = sum(one.address == address for one in self._conversations.values())
        parked = [self._conversations[name] for name in self._parked]
        mine = [one for one in parked if one.address == address]
        if own >= self.config.sessions_per_address and mine:
            self.close(mine[0], "evicted")
        elif len(self._conversations) >= self.config.sessions:
            if not parked:
                raise Full(detail="voice.sessions")
            most, _ = Counter(one.address for one in parked).most_common(1)[0]
            self.close(next(one for one in parked if one.address == most), "evicted")

    def _new_history(self, ready: EngineReady) -> History:
        """Return an empty history, sized for the chat model."""
        if self._remote is not None:
            return History(self.config.history_tokens or limits.HISTORY_TOKENS["remote"])
        usual = limits.HISTORY_TOKENS["cpu" if ready.device.startswith("cpu") else "gpu"]
        tokens = self.config.history_tokens or min(usual, ready.context_tokens // 2)
        return History(tokens, ready.context_tokens)

    def checked(self, config: SessionConfig, *, any_voice: bool = False) -> SessionConfig:
        """Return a configuration adapted to this server; raise InvalidRequest if it cannot be followed.

        With `any_voice` an unknown voice name means the default voice.
        """
        ready = self.ready
        voice = find_voice(config.voice, ready.voices) if config.voice else ""
        if voice is None and any_voice:
            voice = ""
        if voice is None:
            known = f"The voices are {names(ready.voices)}." if ready.voices else "No voice has been made yet."
            raise InvalidRequest(known, param="voice")
        if ready.one_pace and config.speed != 1:
            raise InvalidRequest("This server's voice has one pace: speed must be 1.", param="speed")
        language = language_named(config.voice_language)
        if language and language not in ready.speak_languages:
            known = names(ready.speak_languages) if ready.speak_languages else "nothing else than it is used to"
            raise InvalidRequest(f"voice_language: this server's voice can speak {known}.", param="voice_language")
        if config.voice_instructions and not ready.instructed:
            reason = "voice_instructions: this server's voice cannot be told how to speak."
            raise InvalidRequest(reason, param="voice_instructions")
        if ready.respells_only and has_phonemes(config.pronunciations):
            reason = "pronunciations: this server's voice takes respellings in plain letters, not phonemes."
            raise InvalidRequest(reason, param="pronunciations")
        speaks = config.speaks and bool(ready.tts_model)
        return replace(config, voice=voice, voice_language=language, speaks=speaks)

    def forget_voice(self, name: str) -> None:
        """Switch the conversations that use a deleted voice to the default voice."""
        for conversation in list(self._conversations.values()):
            if conversation.session.config.voice == name:
                conversation.feed(ConfigureSession(replace(conversation.session.config, voice="")))

    def take_back(self, token: str, account: Account | None) -> Conversation:
        """Return the conversation of a resume token and stop its parking timer; raise NotResumable if there is none.

        A token is good for the tenant of its conversation alone. `account` is None where the token is all that a client
        has shown.
        """
        name = self.tokens.redeem(token)
        conversation = self._conversations.get(name) if name is not None else None
        if conversation is None or conversation.over or account not in (None, conversation.account):
            raise NotResumable
        timer = self._parked.pop(conversation.name, None)
        if timer is not None:
            timer.cancel()
        return conversation

    def park(self, conversation: Conversation) -> None:
        """Keep a conversation without a socket for `resume_s`."""
        conversation.detach()
        if self.draining or conversation.over or not self.config.resume_s:
            self.close(conversation, "draining" if self.draining else "left")
            return
        loop = asyncio.get_running_loop()
        self._parked[conversation.name] = loop.call_later(self.config.resume_s, self.close, conversation, "left")

    def close(self, conversation: Conversation, reason: str = "done") -> None:
        """End a conversation for good; `reason` is for those that watch."""
        conversation.close()
        if conversation.watch is not None:
            conversation.watch.close(reason)
        timer = self._parked.pop(conversation.name, None)
        if timer is not None:
            timer.cancel()
        if self._conversations.pop(conversation.name, None) is not None:
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
                self.close(conversation)

    # ---- going down

    async def drain(self, seconds: float) -> None:
        """Admit no more clients, let conversations finish what is being said for `seconds`, then end the rest."""
        self.draining = True
        running = len(self._conversations)
        for conversation in list(self._conversations.values()):
            if conversation.name in self._parked:
                self.close(conversation, "draining")
            else:
                conversation.send(GoAway(seconds, "draining"))
                self.leave_if_idle(conversation)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        ended = self.end_all()
        if running:
            logger.info(line("voice drained", running=running, finished=running - ended, ended=ended))

    async def wait_quiet(self, seconds: float) -> None:
        """Wait until the last socket is closed, but no longer than `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()

    def end_all(self) -> int:
        """End all connected conversations; return how many there were."""
        ended = [one.writer for one in self._conversations.values() if one.writer is not None]
        for writer in ended:
            writer.end(Draining())
        return len(ended)

    def leave_if_idle(self, conversation: Conversation) -> None:
        """End a conversation in which no one speaks while the server drains."""
        writer = conversation.writer
        if self.draining and conversation.state == "listening" and writer is not None and not writer.leaves_by_itself:
            writer.end(Draining())

    async def aclose(self) -> None:
        """End everything."""
        for conversation in list(self._conversations.values()):
            self.close(conversation, "draining")
        await self.opus.aclose()
        if self._remote is not None:
            await self._remote.aclose()
