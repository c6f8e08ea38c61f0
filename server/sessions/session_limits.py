"""How many sockets and conversations a server admits, in all and for an address; counts those that it refuses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from voxlane.server import limits
from voxlane.server.config import VoiceConfig
from voxlane.server.engine_client.engine_client import EngineClient
from voxlane.server.errors import Draining, EngineNotReady, Full, NoRoom, VoxlaneError
from voxlane.server.http.address_rates import AddressPauses, AddressRates
from voxlane.server.room.meter import RoomMeter
from voxlane.server.sessions.conversations import Conversations
from voxlane.server.watching.metrics import Metrics


class SessionLimits:
    """The limits of one server process; they hold for all processes of its cell together."""

    def __init__(
        self, config: VoiceConfig, engine: EngineClient, metrics: Metrics, room: RoomMeter, conversations: Conversations
    ) -> None:
        self.sockets: Counter[str] = Counter()  # by address
        self.pauses = AddressPauses(limits.FLOOD_PAUSE_SECONDS, limits.OPENING_ADDRESSES)
        self._config = config
        self._engine = engine
        self._metrics = metrics
        self._room = room
        self._counts = conversations.counts
        self._conversations = conversations
        burst = max(limits.VOICE_SESSIONS_PER_ADDRESS, config.sessions_per_address)
        self._opens = AddressRates(limits.OPENS_PER_SECOND, burst, limits.OPENING_ADDRESSES)
        self._quiet = asyncio.Event()  # there is no socket
        self._quiet.set()

    # ---- sockets

    @property
    def sockets_in_cell(self) -> int:
        """Return how many sockets there are, at all server processes."""
        return self.sockets.total() + int(self._counts.elsewhere("sockets"))

    @contextmanager
    def socket(self, address: str, *, resumes: bool = False) -> Iterator[bool]:
        """Count a socket, or raise Full, Draining or EngineNotReady; give whether it may begin a new conversation.

        A client that resumes needs no room for a new conversation. It is one if it says so, or if a conversation waits
        for its address. While there is no engine, only an address with a conversation is let in.
        """
        resumes = resumes or any(one.address == address for one in self._conversations.parked)
        self.check_socket(address, resumes=resumes, engine_needed=not self._conversations_of(address))
        self._count_socket(address, 1)
        try:
            yield not resumes
        finally:
            self._count_socket(address, -1)

    def check_socket(self, address: str = "", *, resumes: bool = False, engine_needed: bool = True) -> None:
        """Raise the error that refuses a socket of this address, or of any, and count the refusal."""
        try:
            if self._conversations.draining:
                raise Draining
            if engine_needed and not self._engine.connected:
                raise self._engine.not_ready()
            if self.sockets_in_cell >= self._config.sessions:
                raise Full(detail="voice.sessions")
            of_address = self.sockets[address] + self._counts.keyed_elsewhere("sockets of address", address)
            if of_address >= self._config.sessions_per_address:
                raise Full(detail="voice.sessions_per_address")
            if not resumes:
                self._room.check()
        except (Full, Draining, EngineNotReady) as error:
            raise self._refused(error) from None

    async def wait_quiet(self, seconds: float) -> None:
        """Wait until the last socket is closed, but no longer than `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()

    def _count_socket(self, address: str, amount: int) -> None:
        self._counts.add("sockets", amount)
        self._counts.add_keyed("sockets of address", address, amount)
        self.sockets[address] += amount
        if not self.sockets[address]:
            del self.sockets[address]
        if self.sockets:
            self._quiet.clear()
        else:
            self._quiet.set()

    # ---- conversations

    def check_opening(self, address: str) -> None:
        """Raise Full if an address begins conversations too fast."""
        if not self._opens.spend(address, asyncio.get_running_loop().time()):
            raise self._refused(Full(detail="voice.opens"))

    def check_room(self, *, resumed: bool = False) -> None:
        """Raise NoRoom if measured room is short."""
        try:
            self._room.check(resumed=resumed)
        except NoRoom as error:
            raise self._refused(error) from None

    def check_place(self) -> None:
        """Raise Full if there is no place for one more conversation and none can be made."""
        if self._full and not self._conversations.parked:
            raise Full(detail="voice.sessions")

    def make_place(self, address: str) -> None:
        """Close parked conversations until there is a place for one more of an address; raise Full if none can be made.

        An address that has all its conversations loses its own oldest parked one. In a full house the address with the
        most parked conversations loses its oldest: one client cannot push out the conversations of the others.
        """
        parked = list(self._conversations.parked)
        mine = [one for one in parked if one.address == address]
        if mine and self._conversations_of(address) >= self._config.sessions_per_address:
            self._conversations.close(mine[0], "evicted")
        elif self._full:
            self.check_place()
            most, _ = Counter(one.address for one in parked).most_common(1)[0]
            self._conversations.close(next(one for one in parked if one.address == most), "evicted")

    @property
    def _full(self) -> bool:
        in_cell = len(self._conversations) + int(self._counts.elsewhere("conversations"))
        return in_cell >= self._config.sessions

    def _conversations_of(self, address: str) -> int:
        """Return how many conversations an address has, at all server processes."""
        own = sum(one.address == address for one in self._conversations.values())
        return own + int(self._counts.keyed_elsewhere("conversations of address", address))

    def _refused(self, error: VoxlaneError) -> VoxlaneError:
        states: dict[type[VoxlaneError], str] = {Draining: "draining", EngineNotReady: "no_engine"}
        reason = states.get(type(error), error.detail)
        self._metrics.refusals.labels(reason.removeprefix("voice.")).inc()
        return error
