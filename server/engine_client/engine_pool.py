"""All engines of a cell as one: each conversation and each request goes to the engine with room and the least to do.

A conversation stays with its engine, which has its prefix cache. If that engine is lost, the conversation waits for it,
as it does on a server with one engine.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence

from voxlane.engine.api import Submit, ToEngine
from voxlane.server.cell.counts import CellCounts
from voxlane.server.cell.messages import EngineNews, VoiceChange
from voxlane.server.engine_client.channel import Channel, Receive
from voxlane.server.engine_client.engine_client import EngineClient, Observer, State
from voxlane.server.engine_client.kept_voices import KeptVoice
from voxlane.server.engine_client.linked_engine import LinkedEngine
from voxlane.server.engine_client.stream import RequestStream
from voxlane.server.errors import VoxlaneError

_ORDER: tuple[State, ...] = ("ready", "restarting", "starting", "failed", "stopped")
"""The state of all engines together is the first of these that one of them has."""


class EnginePool(EngineClient):
    """The engines of a cell."""

    def __init__(
        self,
        engines: int,
        label: str,
        counts: CellCounts,
        observers: Sequence[Observer] = (),
        ask_link: Callable[[int], None] = lambda _: None,
        tell: Callable[[VoiceChange], Awaitable[None]] | None = None,
    ) -> None:
        """Use so many engines; `tell` tells the whole cell of a voice."""
        super().__init__(observers)
        self._tell = tell
        self._members = [
            LinkedEngine(
                label,
                number=number,
                counts=counts,
                observers=(*map(_RequestNews, observers), _MemberWatch(self._combine)),
                ask_link=lambda number=number: ask_link(number),  # type: ignore[misc]
            )
            for number in range(engines)
        ]

    def observe(self, observer: Observer) -> None:
        """Tell one more observer what happens from now on, at any engine."""
        super().observe(observer)
        for member in self._members:
            member.observe(_RequestNews(observer))

    # ---- what the supervisor says

    def news(self, news: EngineNews) -> None:
        """Take what the supervisor says about an engine."""
        self._members[news.engine].news(news)

    def connect(self, engine: int, link: socket.socket) -> None:
        """Serve over a new link to an engine."""
        self._members[engine].connect(link)

    def take_voice(self, change: VoiceChange) -> None:
        """Note a voice that the cell keeps or forgets; the supervisor has told the engines."""
        if not change.profile:
            self.voices.forget(change.name)
        elif self.voices.room_for(change.name):
            self.voices.keep(KeptVoice(change.name, change.profile, change.made_s))

    def _combine(self) -> None:
        """Note the state of all engines together."""
        if self.state == "stopped":
            return
        members = self._members
        state = next(one for one in _ORDER if any(member.state == one for member in members))
        self._ready = next((one.described for one in members if one.described is not None), None)
        self._expected_s = min(member.expected_s for member in members)
        self.failure = next((member.failure for member in members if member.failure), "")
        if all(member.given_up.is_set() for member in members):
            self.given_up.set()
        self._set_state(state)

    # ---- one engine for all

    def start(self) -> None:
        """Do nothing: news come from the supervisor."""

    async def stop(self) -> None:
        """End all requests, and leave the engines."""
        self._set_state("stopped")
        for member in self._members:
            await member.stop()

    @property
    def members(self) -> Sequence[LinkedEngine]:
        """The engines of the cell, by number."""
        return self._members

    @property
    def conversations(self) -> int:
        """How many conversations all processes have at all engines."""
        return sum(member.conversations for member in self._members)

    @property
    def connected(self) -> bool:
        """Whether an engine takes requests."""
        return any(member.connected for member in self._members)

    @property
    def open_streams(self) -> int:
        """Return how many requests are in progress in this process."""
        return sum(member.open_streams for member in self._members)

    def submit(self, submit: Submit) -> RequestStream:
        """Start a request at the engine with the least to do, of those with room."""
        connected = [member for member in self._members if member.connected]
        if not connected:
            raise self.not_ready()
        return self._best(connected).submit(submit)

    def channel(self, name: str, receive: Receive) -> Channel:
        """Open a channel to the engine with the least to do, of those with room."""
        connected = [member for member in self._members if member.connected]
        return self._best(connected or self._members).channel(name, receive)

    def _best(self, members: Sequence[LinkedEngine]) -> LinkedEngine:
        if len(members) == 1:
            return members[0]
        ranks = self.room_ranks() or [0] * len(self._members)
        return min(members, key=lambda member: (-ranks[member.number], member.load))

    def abandon(self, make_error: Callable[[], VoxlaneError]) -> int:
        """End every stream with an error and cancel its request; return how many there were."""
        return sum(member.abandon(make_error) for member in self._members)

    def send(self, message: ToEngine) -> None:
        """Send every engine a command that has no answer of its own."""
        for member in self._members:
            member.send(message)

    async def keep_voice(self, voice: KeptVoice) -> None:
        """Keep a voice in the whole cell; it can be used everywhere when this returns."""
        self.voices.keep(voice)
        if self._tell is not None:
            await self._tell(VoiceChange(voice.name, voice.profile, voice.made_s))

    async def forget_voice(self, name: str) -> None:
        """Forget the voice of a name in the whole cell."""
        self.voices.forget(name)
        if self._tell is not None:
            await self._tell(VoiceChange(name))


class _MemberWatch(Observer):
    """Tells the pool of an engine's new state."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def state_changed(self, state: State) -> None:
        self._changed()


class _RequestNews(Observer):
    """Passes on what is about requests and steps: the pool itself reports states."""

    def __init__(self, observer: Observer) -> None:
        self.stepped = observer.stepped  # type: ignore[method-assign]
        self.finished = observer.finished  # type: ignore[method-assign]
