"""Messages between a supervisor and one server process on the event loop, with descriptors where they carry some."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from voxlane.engine.api import FRAGMENT_BYTES, MAX_MESSAGE_BYTES, UndecodableMessage, fragments
from voxlane.server.cell.messages import CellMessage, decode_told, encode_told

Received = Callable[[CellMessage, socket.socket | None], None]


class ControlSocket:
    """One end of the packet socket between a supervisor and a server process."""

    def __init__(self, sock: socket.socket, receive: Received, lost: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._receive = receive
        self._lost = lost
        self._pieces: list[bytes] = []
        self._outbox: deque[tuple[bytes, socket.socket | None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._loop.add_reader(sock.fileno(), self._on_readable)

    def send(self, message: CellMessage, link: socket.socket | None = None) -> None:
        """Send a message, with a socket that is closed here once it is sent."""
        if not self._open:
            if link is not None:
                link.close()
            return
        waits = bool(self._outbox)
        *rest, last = fragments(encode_told(message))
        self._outbox.extend((packet, None) for packet in rest)
        self._outbox.append((last, link))
        if not waits and not self._flush() and self._open:
            self._loop.add_writer(self._sock.fileno(), self._on_writable)

    def close(self) -> None:
        """Close the socket; the other side sees its end."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            for _, link in self._outbox:
                if link is not None:
                    link.close()
            self._outbox.clear()
            self._sock.close()

    def _fail(self) -> None:
        if self._open:
            self.close()
            self._lost()

    def _flush(self) -> bool:
        """Send as much as the socket takes; return whether nothing is left."""
        while self._outbox:
            packet, link = self._outbox[0]
            try:
                socket.send_fds(self._sock, [packet], [] if link is None else [link.fileno()])
            except BlockingIOError:
                return False
            except OSError:
                self._loop.call_soon(self._fail)  # not while the caller is still at work
                return True
            self._outbox.popleft()
            if link is not None:
                link.close()
        return True

    def _on_writable(self) -> None:
        if self._open and self._flush():
            self._loop.remove_writer(self._sock.fileno())

    def _on_readable(self) -> None:
        try:
            while self._open and self._read():
                pass
        except BlockingIOError:
            return
        except (OSError, UndecodableMessage):
            self._fail()

    def _read(self) -> bool:
        """Read one packet; return False at the end of file."""
        packet, descriptors, _, _ = socket.recv_fds(self._sock, FRAGMENT_BYTES, 1, socket.MSG_DONTWAIT)
        link = socket.socket(fileno=descriptors[0]) if descriptors else None
        if not packet:
            self._fail()
            return False
        self._pieces.append(packet[1:])
        if sum(map(len, self._pieces)) > MAX_MESSAGE_BYTES:
            raise UndecodableMessage("a message is too long")
        if packet[0]:
            return True
        data, self._pieces = b"".join(self._pieces), []
        self._receive(decode_told(data), link)
        return True
