"""Where calls come in: the WebSocket route /v1/phone, and a TCP listener for Asterisk's AudioSocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from starlette.websockets import WebSocket

from voxlane.server.errors import VoxlaneError
from voxlane.server.http.frames import admit
from voxlane.server.http.reply import error_response
from voxlane.server.log import line
from voxlane.server.phone.call import PhoneCall
from voxlane.server.phone.phone_codec import RATE_LIMITS
from voxlane.server.phone.phone_service import PhoneService
from voxlane.server.phone.sockets import StreamLine, WebSocketLine
from voxlane.server.protocols.phone.audiosocket import AudioSocket
from voxlane.server.protocols.phone.line_events import CallFacts, LineCodec, Message
from voxlane.server.protocols.phone.systems import accepted_subprotocol, recognise, with_query
from voxlane.server.watching.metrics import Metrics

logger = logging.getLogger(__name__)


async def answer(websocket: WebSocket, phone: PhoneService, metrics: Metrics) -> None:
    """Serve one call over a WebSocket from its handshake to its end."""
    address = websocket.client.host if websocket.client is not None else "-"
    offered: Sequence[str] = websocket.scope["subprotocols"]

    def recognised(messages: Sequence[Message]) -> LineCodec | None:
        return recognise(messages, offered)

    try:
        admission = phone.admission.check_handshake(websocket)

        def admitted(facts: CallFacts) -> CallFacts:
            checked = phone.admission.check_start(admission, with_query(facts, websocket.query_params))
            if not admission.keyed:
                admit(websocket, RATE_LIMITS)
            return checked

        with phone.registry.limits.socket(address):
            await websocket.accept(subprotocol=accepted_subprotocol(offered))
            if admission.keyed:
                admit(websocket, RATE_LIMITS)
            await PhoneCall(WebSocketLine(websocket), recognised, phone, address, admitted, admission.account).run()
    except VoxlaneError as error:
        metrics.sockets_closed.labels(str(error.http_status)).inc()
        logger.info(line("call refused", client=address, code=error.code, detail=error.detail or None))
        await websocket.send_denial_response(error_response(error))


class AudioSocketListener:
    """Listens on phone.audiosocket while its context lasts; does nothing where that is empty."""

    def __init__(self, phone: PhoneService) -> None:
        self._phone = phone
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        if self._phone.audiosocket is not None:
            self._server = await asyncio.start_server(self._serve, sock=self._phone.audiosocket)
            logger.info(line("audiosocket listens", address=self._phone.config.audiosocket))
        return self

    @property
    def port(self) -> int:
        """The port that is listened on; 0: none."""
        return self._server.sockets[0].getsockname()[1] if self._server is not None else 0

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            for call in self._calls:
                call.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        address = str(writer.get_extra_info("peername", ("-",))[0])
        try:
            admission = self._phone.admission.check_audiosocket(address)

            def admitted(facts: CallFacts) -> CallFacts:
                return self._phone.admission.check_start(admission, facts)

            with self._phone.registry.limits.socket(address):
                await PhoneCall(
                    StreamLine(reader, writer), lambda _: AudioSocket(), self._phone, address, admitted
                ).run()
        except VoxlaneError as error:
            logger.info(line("call refused", client=address, code=error.code, detail=error.detail or None))
        finally:
            self._calls.discard(task)
            writer.transport.abort()  # the call has closed it, or could not
