"""WebSocket frames are counted where their bytes arrive, before they are parsed.

The parser takes 10 µs for a frame, and a read may hold 40,000 of them: empty continuation frames, pongs and pings never
become messages, so no limit on messages sees them. This class finds the frames in each read, hands them on one by one,
and lets other tasks run after a few; it stops at the first message that waits for the application, and while the peer
does not read.

A microphone's frame, the most frequent message, does not wait: it is given to the connection at once, one in a turn of
the event loop. The way through the queue, the tasks and the layers above costs as much as all that is done with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from starlette.websockets import WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import apply_mask  # type: ignore[attr-defined]  # in C where that is installed
from websockets.http11 import Request
from websockets.protocol import State

from voxlane.server import limits
from voxlane.server.errors import SlowReader, TooFast, Unauthorized, VoxlaneError
from voxlane.server.http.buckets import Bucket
from voxlane.server.http.client_socket import ClientSocket
from voxlane.server.http.transports import BoundedTransport, SocketTransport
from voxlane.server.protocols.dialect import RateLimits

REFUSAL = "voxlane.refusal"
"""Key of a received message that holds the error which ends the connection."""

_EXTENSION = "voxlane.frames"
_CONTINUATION, _CLOSE = 0, 8
_MASK_BYTES = 4
_UNDECODABLE = 1007
_FINAL, _MASKED = 0x80, 0x80  # bits of the first and the second byte
_MESSAGES = (0x81, 0x82)  # first bytes: a whole text, whole bytes
_UNREAD_MESSAGE, _UNREAD_BY_PEER, _REFUSED = 1, 2, 4  # reasons to hand on nothing: bits


def admit(websocket: WebSocket | ClientSocket, rates: RateLimits) -> None:
    """Let a client that has shown its key send as many frames as its dialect allows."""
    frames = websocket.scope.get("extensions", {}).get(_EXTENSION)
    if frames is not None:
        frames.admit(rates)


Taker = Callable[[bytes], bool]
"""Takes a message at once; returns False if it has to wait in the queue."""


def give_to(websocket: WebSocket | ClientSocket, taker: Taker | None) -> None:
    """Offer every message in bytes to a function first, if none waits before it; None: to no function any more."""
    frames = websocket.scope.get("extensions", {}).get(_EXTENSION)
    if frames is not None:
        frames.taker = taker


class CountedFrames(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, with limits on frames of every kind."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.close_timeout = limits.VOICE_CLOSE_SECONDS
        self.taker: Taker | None = None
        self._admitted = False
        self._frames = Bucket(0.0, limits.FIRST_FRAMES, 0.0)
        self._in_pieces = False  # the beginning of a message has come, not its end
        self._fragments = 0  # its continuation frames
        self._refused = False  # nothing more is counted
        self._held = 0  # reasons to hand on nothing
        self._waiting = b""  # bytes that were read and not handed on, from `_at`
        self._at = 0
        self._to_come = 0  # bytes of a frame whose beginning was handed on or dropped
        self._parses = True  # whether that frame is handed on
        self._paused = False  # nothing is read from the socket
        self._scheduled = False
        self._stuck: asyncio.TimerHandle | None = None

    def admit(self, rates: RateLimits) -> None:
        """Set the limits of a client that has shown its key."""
        self._admitted = True
        self._frames = Bucket(rates.frames_per_s, rates.frames_burst, self.loop.time())

    # ---- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wrap the transport, so that reading and closing can be decided here."""
        inner = transport.inner if isinstance(transport, BoundedTransport) else transport
        ours = SocketTransport(
            cast(asyncio.Transport, inner),
            limits.VOICE_CLOSE_SECONDS,
            self._message_waits,
            self._message_taken,
            lambda: not self.writable.is_set(),
        )
        self._transport = ours
        super().connection_made(cast(asyncio.Transport, ours))

    def handle_connect(self, event: Request) -> None:
        """Give the application a way to say that the client may send."""
        super().handle_connect(event)
        if not self.close_sent:
            # uvicorn gives the scope to the application, where sessions/connection.py reaches this: admit, give_to.
            self.scope["extensions"][_EXTENSION] = cast(dict[object, object], self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what waits."""
        self._waiting, self.taker = b"", None
        self._transport.lost()
        self._stop_clock()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close; after a close frame, wait for its answer.

        What the client still sends would reset the connection, and the frame with its code could be lost.
        """
        if self.close_sent and self.close_timer is not None:
            self.close_timer.cancel()
            self.close_timer = self.loop.call_later(limits.LAST_FRAME_SECONDS, self.transport.close)
        else:
            super().shutdown()

    # ---- writing

    def pause_writing(self) -> None:
        """Read nothing while the peer does not read: what it sends may have to be answered."""
        super().pause_writing()
        self._held |= _UNREAD_BY_PEER
        if self._stuck is None:
            self._stuck = self.loop.call_later(limits.SOCKET_WRITE_SECONDS, self._refuse, SlowReader())

    def resume_writing(self) -> None:
        """Read on."""
        super().resume_writing()
        self._stop_clock()
        self._release(_UNREAD_BY_PEER)

    def _stop_clock(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    # ---- reading

    def data_received(self, data: bytes) -> None:
        """Hand on the frames in `data`, as far as they may go on now."""
        if not self.handshake_initiated:  # the head of the request
            super().data_received(data)
            return
        if self._waiting:
            data, self._waiting = self._waiting[self._at :] + data, b""
        self._hand_on(data, 0)

    def _hand_on(self, data: bytes, at: int) -> None:
        size, left = len(data), limits.FRAMES_PER_TURN
        while at < size and left and not self._held:
            if self._to_come:
                end = min(size, at + self._to_come)
                self._to_come -= end - at
            else:
                length = _frame_bytes(data, at)
                if not length:  # its header is incomplete
                    break
                left -= 1
                self._parses = self._counted(data[at])
                end = min(size, at + length)
                self._to_come = at + length - end
                if self._parses and not self._to_come and self._is_message(data, at, end):
                    if self._take(data, at, end):
                        left = 0  # other tasks run before the next one
                    at = end
                    continue
            if self._parses:
                super().data_received(data if end - at == size else data[at:end])
                if self._transport.is_closing():
                    return
            at = end
        if at < size or self._paused:
            self._wait_with(data, at, blocked=not left)

    def _is_message(self, data: bytes, at: int, end: int) -> bool:
        """Return whether a frame is a whole message by the rules: then the parser would do nothing but unmask it."""
        return (
            data[at] in _MESSAGES
            and data[at + 1] >= _MASKED
            and not self._in_pieces
            and end - at <= self.config.ws_max_size
            and self.conn.state is State.OPEN
        )

    def _take(self, data: bytes, at: int, end: int) -> bool:
        """Give a whole message to the application; return whether it was taken at once."""
        length = data[at + 1] & 0x7F
        mask = at + (2 if length < 126 else 4 if length == 126 else 10)
        message = apply_mask(data[mask + _MASK_BYTES : end], data[mask : mask + _MASK_BYTES])
        is_text = data[at] == _MESSAGES[0]
        taker = None if is_text or self.close_sent or not self.queue.empty() else self.taker
        if taker is not None and taker(message):
            return True
        self.curr_msg_data_type = "text" if is_text else "bytes"
        self.frames = [message]
        self.send_receive_event_to_app()
        return False

    async def send(self, message: Any) -> None:
        """Send a message of the application; a refusal in full is an answer to the handshake, and no error.

        A client that was told that it sends too fast is read no more.
        """
        if message["type"] == "websocket.close" and message.get("code") == TooFast.close_code:
            self._read_no_more()
        await super().send(message)
        if self._held & _REFUSED and self.close_timer is not None:
            self._close_unread()
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # else uvicorn would log an error for every wrong key

    def send_receive_event_to_app(self) -> None:
        """Give a message to the application; close with 1007 for a text that is not UTF-8."""
        if self.curr_msg_data_type == "text" and not self.close_sent and not _is_utf8(b"".join(self.frames)):
            self.logger.warning("A text message that is not UTF-8.")  # uvicorn would write a traceback
            self.frames = []
            self.conn.send_close(_UNDECODABLE)
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()

    def _wait_with(self, data: bytes, at: int, *, blocked: bool) -> None:
        """Keep what could not be handed on, and read on if nothing is in the way."""
        if self._transport.is_closing():
            return
        if at < len(data):
            self._waiting, self._at = data, at
            if blocked:
                self._schedule()
            if (blocked or self._held) and not self._paused:
                self._paused = True
                self._transport.inner.pause_reading()
                return
        if self._paused and not self._held and not self._scheduled:
            self._paused = False
            self._transport.inner.resume_reading()

    def _message_waits(self) -> None:
        # The socket itself is paused when more comes: usually nothing does before the message is taken.
        self._held |= _UNREAD_MESSAGE

    def _message_taken(self) -> None:
        self._release(_UNREAD_MESSAGE)

    def _release(self, reason: int) -> None:
        self._held &= ~reason
        if not self._held and (self._paused or self._waiting):
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        if self._held or self._transport.is_closing():
            return
        data, self._waiting = self._waiting, b""
        self._hand_on(data, self._at if data else 0)

    # ---- limits

    def _counted(self, first: int) -> bool:
        """Count a frame, known by its first byte; return whether it is parsed."""
        kind = first & 0x0F
        if kind == _CLOSE:
            return True
        if kind > _CLOSE and not self._admitted:
            self._refuse(Unauthorized("Before its key a client sends nothing but its first message."))
        elif not self._frames.spend(1, self.loop.time()):
            self._refuse(TooFast("Frames come faster than the limits allow."))
        elif kind == _CONTINUATION:
            self._fragments += 1
            self._in_pieces = self._in_pieces and not first & _FINAL
            if self._fragments > limits.FRAGMENTS:
                self._refuse(TooFast(f"A message has at most {limits.FRAGMENTS} continuation frames."))
        elif kind < _CLOSE and not first & _FINAL:
            self._fragments, self._in_pieces = 0, True
        return not self._refused

    def _refuse(self, error: VoxlaneError) -> None:
        """End the connection with an error; the application sends it."""
        if self._refused:
            return
        self._refused = True
        self.frames = []  # of an unfinished message
        self._read_no_more()
        self.queue.put_nowait(cast(Any, {"type": "websocket.receive", REFUSAL: error}))

    def _read_no_more(self) -> None:
        self._held |= _REFUSED
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.inner.pause_reading()

    def _close_unread(self) -> None:
        """Close soon after the close frame: the client's answer lies behind what it has sent, and is not read."""
        assert self.close_timer is not None
        self.close_timer.cancel()
        self.close_timer = self.loop.call_later(limits.LAST_FRAME_SECONDS, self.transport.close)
        if self._transport.inner.can_write_eof():  # TLS cannot
            self._transport.inner.write_eof()


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _frame_bytes(data: bytes, at: int) -> int:
    """Return the length of the frame at `at`, 0 if its header is not complete. A client's frames have a mask."""
    have = len(data) - at
    if have < 2:
        return 0
    length = data[at + 1] & 0x7F
    if length < 126:
        return 2 + _MASK_BYTES + length
    header = 4 if length == 126 else 10
    if have < header:
        return 0
    return header + _MASK_BYTES + int.from_bytes(data[at + 2 : at + header], "big")
