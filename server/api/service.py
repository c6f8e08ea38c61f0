"""The parts of a server that endpoints share, made once at start, and the checks of what its operator allows."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from msgspec import structs
from starlette.requests import HTTPConnection

from voxlane.engine.api import Priority, Ready
from voxlane.server.audio.decoding import AudioDecoder
from voxlane.server.audio.voices import served_name
from voxlane.server.cell.seat import CellSeat
from voxlane.server.config import PRIORITIES, TURN_PASSWORD_VARIABLE, VERSION, Config, PhoneKeys
from voxlane.server.engine_client.engine_client import EngineClient
from voxlane.server.errors import Forbidden, ModelNotFound
from voxlane.server.http.request_limit import Allowance, RequestLimit
from voxlane.server.log import quote
from voxlane.server.phone.phone_service import PhoneService
from voxlane.server.room.meter import RoomMeter
from voxlane.server.sessions.client_secrets import ClientSecrets
from voxlane.server.sessions.registry import SessionRegistry
from voxlane.server.store.choice import make_store
from voxlane.server.store.kept_responses import KeptResponses
from voxlane.server.store.notes import SharedNotes
from voxlane.server.tenants.accounts import Account, Tenants
from voxlane.server.watching.metrics import Metrics
from voxlane.server.watching.watch_service import WatchService
from voxlane.server.webrtc.calls import WebRtcCalls

# Model names built into programs for OpenAI. They all mean the model that the operator has configured.
ASR_ALIASES = frozenset({"whisper-1", "gpt-transcribe", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"})
TTS_ALIASES = frozenset({"tts-1", "tts-1-hd", "gpt-4o-mini-tts"})
_DATED = re.compile(r"-20\d\d-\d\d-\d\d\Z")  # gpt-4o-mini-tts-2025-12-15 is gpt-4o-mini-tts


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of one server."""

    config: Config
    engine: EngineClient
    metrics: Metrics
    request_limit: RequestLimit
    audio: Allowance
    decoder: AudioDecoder
    sessions: SessionRegistry
    phone: PhoneService
    tenants: Tenants
    watch: WatchService
    room: RoomMeter
    seat: CellSeat
    responses: KeptResponses
    calls: WebRtcCalls

    @property
    def ready(self) -> Ready:
        """Return the engine's description; raise EngineNotReady before the first one."""
        if self.engine.ready is None:
            raise self.engine.not_ready()
        return self.engine.ready

    @property
    def chat_model(self) -> str:
        """Return the chat model's name from the engine, before it is ready from the configuration."""
        ready = self.engine.ready
        return served_name(self.config.engine.model if ready is None else ready.model)

    @property
    def asr_model(self) -> str:
        """Return the name of the model that listens from the engine, before it is ready from the configuration."""
        ready = self.engine.ready
        return served_name(self.config.engine.asr_model if ready is None else ready.asr_model)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return the names of the chat model, the main one first; none if there is no chat model."""
        if not self.ready.model:
            return ()
        names = (served_name(self.ready.model), self.config.server.model_alias)
        return tuple(dict.fromkeys(name for name in names if name))

    def check_model(self, asked: str | None, served: Collection[str], aliases: Collection[str], task: str) -> None:
        """Raise ModelNotFound if there is no model for this task, or another model was asked for."""
        if not served:
            raise ModelNotFound(f"This server has no model that {task}.", param="model")
        if asked is not None and asked not in served and _DATED.sub("", asked) not in aliases:
            main = next(iter(served))
            raise ModelNotFound(f"{quote(asked)} was asked for, {quote(main)} is served.", param="model")

    def check_priority(self, asked: Priority, account: Account) -> None:
        """Raise Forbidden if the operator does not allow this priority, to all or to this tenant."""
        highest = self.config.server.highest_priority
        if asked > PRIORITIES[highest]:
            raise Forbidden(f"priority may be at most {highest}.", param="priority")
        account.check_priority(asked)

    @property
    def fingerprint(self) -> str:
        """Return OpenAI's system_fingerprint: a hash of everything that the output of a seed depends on."""
        # The voices are left out: clients make and delete them while the server runs.
        ready = None if self.engine.ready is None else structs.replace(self.engine.ready, voices=())
        digest = hashlib.sha256(repr((VERSION, self.config.engine, ready)).encode()).hexdigest()
        return f"fp_{digest[:10]}"


def service_of(connection: HTTPConnection) -> Service:
    """Return the service that the application was made with."""
    return cast(Service, connection.app.state.service)


def make_service(
    config: Config,
    engine: EngineClient,
    metrics: Metrics,
    api_key: str,
    chat_key: str = "",
    phone_keys: PhoneKeys | None = None,
    webhook_secret: str = "",
    store_password: str = "",
    seat: CellSeat | None = None,
) -> Service:
    """Return the parts of a server, sized by its configuration.

    `chat_key` is the key for the server at chat.url, `store_password` the password of the server at store.url, `seat`
    the place of one of several processes.
    """
    limits, seat = config.limits, seat or CellSeat()
    counts, notes = seat.counts, None if seat.folder is None else SharedNotes(seat.folder, seat.secret)
    tenants = Tenants(api_key, Path(config.keys.file) if config.keys.file else None, counts=counts)
    watch = WatchService(config, metrics, VERSION, webhook_secret)
    store = make_store(config.store, store_password)
    room = RoomMeter(config, engine, metrics, counts=counts)
    sessions = SessionRegistry(
        config, engine, metrics, f"voxlane {VERSION}", chat_key, watch=watch, store=store, room=room, seat=seat
    )
    if notes is not None:
        sessions.secrets = ClientSecrets(notes=notes, account_of=tenants.with_salt)
    return Service(
        config,
        engine,
        metrics,
        RequestLimit(limits.open_requests, room.check_request, counts=counts),
        Allowance(limits.audio_held_bytes, counts),
        AudioDecoder(limits.audio_s, limits.audio_decoders),
        sessions,
        PhoneService(config, phone_keys or PhoneKeys(), sessions, metrics, tenants, seat, notes),
        tenants,
        watch,
        room,
        seat,
        KeptResponses(notes),
        WebRtcCalls(config.webrtc, os.environ.get(TURN_PASSWORD_VARIABLE, ""), sessions, metrics, tenants),
    )
