"""What watches all conversations of a server: traces, recordings and the webhook, as far as they are switched on."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from voxlane.server.config import WEBHOOK_SECRET_VARIABLE, Config
from voxlane.server.errors import ConfigError
from voxlane.server.watching.call_webhook import CallWebhook
from voxlane.server.watching.conversation_watch import ConversationWatch
from voxlane.server.watching.metrics import Metrics
from voxlane.server.watching.recordings import Recordings
from voxlane.server.watching.traces import Traces
from voxlane.server.watching.watched_call import HANDED_OVER, CallEnd, WatchedCall

CALL_ENDED = "call.ended"


class WatchService:
    """The watching of one server. It works within its context."""

    def __init__(self, config: Config, metrics: Metrics, version: str, webhook_secret: str = "") -> None:
        recordings, url = config.recordings, config.webhook.url
        if url and not webhook_secret:
            raise ConfigError(f"webhook.url is given: {WEBHOOK_SECRET_VARIABLE} must hold the secret that signs")
        self.traces = Traces(version) if config.traces.on else None
        self.recordings = Recordings(recordings, metrics) if recordings.audio or recordings.transcripts else None
        self._webhook = CallWebhook(url, webhook_secret, metrics) if url else None
        self._leaving: asyncio.Future[list[None]] | None = None

    @property
    def recorded(self) -> tuple[str, ...]:
        """What of a conversation is kept: `audio`, `transcript`, both, or nothing."""
        if self.recordings is None:
            return ()
        config = self.recordings.config
        return (("audio",) if config.audio else ()) + (("transcript",) if config.transcripts else ())

    async def __aenter__(self) -> Self:
        if self.recordings is not None:
            await self.recordings.start()
        if self._webhook is not None:
            await self._webhook.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
        assert self._leaving is not None
        await self._leaving

    def leave(self) -> None:
        """Begin to finish files and messages, all at once, beside the engine's end; call it after the last call's end.

        Each takes at most limits.ENGINE_STOP_SECONDS, so that a server's end takes no longer for them.
        """
        if self._leaving is None:
            parts = (self.recordings, self._webhook, self.traces)
            self._leaving = asyncio.gather(*(part.aclose() for part in parts if part is not None))

    def open(
        self, session: str, dialect: str, origin_s: float, speak_rate: int, *, model: str = "", tenant: str = ""
    ) -> ConversationWatch:
        """Begin to watch a conversation whose clock shows `origin_s`."""
        call = WatchedCall(session, dialect, time.time(), tenant=tenant, model=model)
        trace = self.traces.conversation(call) if self.traces is not None else None
        recording = self.recordings.open(call, speak_rate) if self.recordings is not None else None
        return ConversationWatch(call, origin_s, trace, recording, self._ended)

    def _ended(self, end: CallEnd) -> None:
        if self._webhook is None or end.reason == HANDED_OVER:
            return
        call = end.call
        began = datetime.fromtimestamp(call.began_s, UTC)
        data = {
            "session": call.session,
            "dialect": call.dialect,
            "tenant": call.tenant or None,
            "phone_system": call.system or None,
            "caller": call.caller or None,
            "started": began.isoformat(timespec="milliseconds"),
            "duration_s": round(end.seconds, 3),
            "turns": end.turns,
            "interruptions": end.interruptions,
            "reason": end.reason,
            "recording": end.recording or None,
            "transcript": end.transcript or None,
        }
        self._webhook.put(CALL_ENDED, data, datetime.now(UTC).isoformat(timespec="milliseconds"))
