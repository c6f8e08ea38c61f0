"""What the track of a call's replies plays: one frame after another, with the events that OpenAI has for its buffer.

The player is that of a native client (server/player.py); the track's clock pulls from it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from voxlane.server.client.player import Player
from voxlane.server.conversation.client_events import Played
from voxlane.server.protocols.openai_realtime.call_codec import REPLY_TRACK, TrackCommand

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrackFrame:
    """The next sound of the track."""

    pcm: bytes  # 16-bit samples, filled up with silence
    events: tuple[Event, ...]  # what the client is told with it
    position: Played | None  # what was sent of a reply with this frame; None: the frame is silence


class TrackPlayback:
    """The queue of one call's track, and what the client knows of it."""

    def __init__(self) -> None:
        self._player = Player(REPLY_TRACK.rate)
        self._responses: dict[int, str] = {}  # ids by epoch, of replies that are not over
        self._finished: set[int] = set()  # epochs whose sound is complete
        self._playing = 0  # epoch of the reply that the client was told of; 0: none
        self._numbered = 0

    def handle(self, command: TrackCommand) -> list[Event]:
        """Process a command; return what the client is told."""
        fields, epoch = command.fields, command.fields["epoch"]
        if command.name == "audio":
            self._responses[epoch] = fields["response"]
        elif command.name == "finished":
            self._finished.add(epoch)
            return []
        self._player.handle(command.name, fields)
        if command.name != "interrupted":
            return []
        told = [self._event("cleared", self._playing)] if 0 < self._playing <= epoch else []
        self._forget(epoch)
        return told

    def pull(self, samples: int) -> TrackFrame:
        """Return the next samples."""
        player = self._player
        before = player.epoch, player.position
        pcm = player.pull(samples)
        moved = (player.epoch, player.position) != before
        events: list[Event] = []
        if moved and player.epoch != self._playing:
            if self._playing:  # the next reply follows without a pause
                events.append(self._event("stopped", self._playing))
                self._forget(self._playing)
            self._playing = player.epoch
            events.append(self._event("started", self._playing))
        elif self._playing in self._finished and not moved and not player.queued:
            events.append(self._event("stopped", self._playing))
            self._forget(self._playing)
        player.acks()  # every frame is reported here, not every fifth
        position = Played(player.epoch, player.position) if moved else None
        return TrackFrame(pcm, tuple(events), position)

    def _forget(self, epoch: int) -> None:
        """Forget a reply that is over, and those before it."""
        self._responses = {one: name for one, name in self._responses.items() if one > epoch}
        self._finished = {one for one in self._finished if one > epoch}
        self._playing = self._playing if self._playing > epoch else 0

    def _event(self, what: str, epoch: int) -> Event:
        self._numbered += 1
        return {
            "type": f"output_audio_buffer.{what}",
            "event_id": f"event_track_{self._numbered}",
            "response_id": self._responses.get(epoch, ""),
        }
