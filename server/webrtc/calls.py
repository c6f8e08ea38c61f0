"""The calls over WebRTC of a server: answers offers, serves each call like a WebSocket, hangs up.

A call counts as a socket of its address from the offer on, and ends with its peer connection.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from starlette.websockets import WebSocketState

from voxlane.codecs.extras import install_command
from voxlane.server import limits
from voxlane.server.config import WebRtcConfig
from voxlane.server.errors import Draining, InvalidRequest, NotFound, NotInstalled, VoxlaneError
from voxlane.server.log import line
from voxlane.server.protocols.dialect import BadMessage, ConnectionEnd, Handshake, Hello
from voxlane.server.protocols.openai_realtime.call_codec import REALTIME_CALL
from voxlane.server.protocols.openai_realtime.protocol import opening
from voxlane.server.sessions.admission import Admission
from voxlane.server.sessions.connection import Connection
from voxlane.server.sessions.registry import SessionRegistry
from voxlane.server.tenants.accounts import Account, Tenants
from voxlane.server.watching.metrics import Metrics

if TYPE_CHECKING:
    from voxlane.server.webrtc.peer import Peer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CallOffer:
    """A client's offer, and what is known of the client."""

    sdp: str
    address: str
    account: Account
    query: Mapping[str, str]
    session: Mapping[str, Any] | None  # of its client secret, or of its offer


@dataclass(frozen=True, slots=True)
class _Call:
    peer: Peer
    account: Account
    task: asyncio.Task[None]


class WebRtcCalls:
    """The calls of one server."""

    def __init__(
        self, config: WebRtcConfig, password: str, registry: SessionRegistry, metrics: Metrics, tenants: Tenants
    ) -> None:
        """Use `password` for the relay in webrtc.ice_servers."""
        self._config = config
        self._password = password
        self._registry = registry
        self._metrics = metrics
        self._tenants = tenants
        self._calls: dict[str, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    async def open(self, offer: CallOffer) -> tuple[str, str]:
        """Return the id of a new call and the answer to its offer, or raise the error that refuses it."""
        if find_spec("aiortc") is None:
            raise NotInstalled(f"WebRTC needs aiortc: {install_command('webrtc')}.")
        offer.account.check_room()
        self._check(offer)
        # aiortc is an extra, and takes 0.2 s and more to import: other calls go on meanwhile.
        module = await asyncio.to_thread(import_module, "voxlane.server.webrtc.peer")
        with ExitStack() as counted:
            may_begin = counted.enter_context(self._registry.limits.socket(offer.address))
            peer: Peer = module.Peer(
                self._config, self._password, offer.query, on_caught=lambda: self._metrics.caught("webrtc_offer")
            )
            try:
                answer = await peer.answer(offer.sdp, offer.address)
            except BaseException:
                await peer.close()
                raise
            name = f"rtc_{secrets.token_hex(16)}"
            admission = Admission(None, offer.account, offer.session, may_begin=may_begin)
            work = self._serve(name, peer, offer.address, admission, counted.pop_all())
            self._calls[name] = _Call(peer, offer.account, asyncio.create_task(work, name="webrtc call"))
        return name, answer

    def _check(self, offer: CallOffer) -> None:
        """Raise InvalidRequest if the session that an offer asks for cannot be."""
        capabilities = self._registry.offer.capabilities(self._registry.offer.ready)
        try:
            opening(Handshake(offer.query, offer.session, capabilities), self._registry.offer.defaults)
        except BadMessage as error:
            raise InvalidRequest(str(error), param="session") from error

    async def _serve(self, name: str, peer: Peer, address: str, admission: Admission, counted: ExitStack) -> None:
        """Serve a call from its answer to its end."""
        with counted:
            try:
                if await self._opened(peer, address):
                    await self._converse(peer, address, admission)
            except Exception as error:  # a bug: it ends this call, and no other
                logger.exception(line("bug", client=address, error=type(error).__name__))
                self._metrics.caught("webrtc_call")
            finally:
                del self._calls[name]
                await asyncio.shield(peer.close())

    async def _opened(self, peer: Peer, address: str) -> bool:
        """Wait until events can be exchanged; return whether the client is there."""
        try:
            async with asyncio.timeout(limits.CALL_CONNECT_SECONDS):
                await peer.open.wait()
        except TimeoutError:
            logger.info(line("call not connected", client=address, seconds=limits.CALL_CONNECT_SECONDS))
            return False
        return peer.socket.application_state is WebSocketState.CONNECTED  # else it has hung up or failed

    async def _converse(self, peer: Peer, address: str, admission: Admission) -> None:
        """Hold the conversation, unless the server has begun to go down since the answer."""
        if self._registry.conversations.draining:
            await _tell(peer, Draining())
            return
        connection = Connection(
            peer.socket, REALTIME_CALL, self._registry, self._metrics, self._tenants, address, admission
        )
        peer.socket.report = connection.report  # not behind messages that wait: the ledger is exact
        await connection.run()

    async def hang_up(self, name: str, account: Account) -> None:
        """End a call of a tenant; raise NotFound if there is none of this name."""
        call = self._calls.get(name)
        if call is None or call.account is not account:
            raise NotFound("There is no such call.")
        call.peer.socket.leave()
        call.peer.open.set()
        await asyncio.wait({call.task})

    async def aclose(self) -> None:
        """End all calls."""
        tasks = [call.task for call in self._calls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _tell(peer: Peer, error: VoxlaneError) -> None:
    """Send the error that ends a call before its conversation has begun."""
    codec = REALTIME_CALL.make(Hello(), 0)
    ending = ConnectionEnd(error.kind, error.code, error.message, error.retryable, error.retry_after_s)
    for packet in codec.encode(ending):
        await peer.socket.send_text(str(codec.write(packet, 0)))
