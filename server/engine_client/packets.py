"""Messages over a non-blocking packet socket on the event loop, with back-pressure and a watch over the peer."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from voxlane.engine.api import (
    FRAGMENT_BYTES,
    Append,
    Assembler,
    FromEngine,
    Message,
    Ping,
    Pong,
    Submit,
    ToEngine,
    UndecodableMessage,
    encode,
    fragments,
)
from voxlane.server import limits
from voxlane.server.errors import Overloaded


class PacketPipe:
    """Sends messages at once or queues them in order; reads whole messages until end of file."""

    def __init__(self, sock: socket.socket, receive: Callable[[FromEngine], None], lost: Callable[[str], None]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._receive = receive
        self._lost = lost
        self._assembler = Assembler()
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._watch: asyncio.TimerHandle | None = None
        self._stood_still = 0  # looks in a row in which the child read nothing of a non-empty outbox
        self._silent = 0  # looks in a row in which the child sent nothing
        self._loop.add_reader(sock.fileno(), self._on_readable)

    def send(self, message: ToEngine) -> None:
        """Send the message, or queue it until the socket takes it; raise Overloaded if too much waits."""
        if not self._open:
            return
        packets = fragments(encode(message))
        size = sum(map(len, packets))
        # Commands that end work always pass: they make room.
        if isinstance(message, Submit | Append) and self._outbox_bytes + size > limits.OUTBOX_BYTES:
            raise Overloaded(detail="outbox full")
        was_empty = not self._outbox
        self._outbox.extend(packets)
        self._outbox_bytes += size
        if was_empty and not self._flush() and self._open:
            self._loop.add_writer(self._sock.fileno(), self._on_writable)

    def watch(self) -> None:
        """Start to check that the child reads and answers."""
        if self._open:  # sending may have closed it
            self._watch = self._loop.call_later(limits.LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Close the socket; the child then exits."""
        if self._open:
            self._open = False
            if self._watch is not None:
                self._watch.cancel()
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._outbox.clear()
            self._sock.close()

    def fail(self, reason: str) -> None:
        """Close the socket and report it as lost."""
        self.close()
        self._lost(reason)

    def _flush(self) -> bool:
        """Send as much as the socket takes; return whether nothing is left."""
        while self._outbox:
            try:
                self._sock.send(self._outbox[0])
            except BlockingIOError:
                return False
            except OSError as error:
                self.fail(f"send: {error.strerror}")
                return True
            self._outbox_bytes -= len(self._outbox.popleft())
            self._stood_still = 0
        return True

    def _on_writable(self) -> None:
        if self._flush() and self._open:
            self._loop.remove_writer(self._sock.fileno())

    def _look(self) -> None:
        """Give up a child that reads nothing or has sent nothing for too long; else ping it."""
        self._silent += 1
        self._stood_still = self._stood_still + 1 if self._outbox else 0
        if self._stood_still > limits.STALL_LOOKS:
            self.fail("it reads nothing any more")
        elif self._silent > limits.SILENT_LOOKS:
            self.fail("it says nothing any more")
        else:
            self.send(Ping())
            self.watch()

    def _on_readable(self) -> None:
        try:
            count = 0
            while self._open and count < limits.MESSAGES_PER_TURN:
                count += self._read_packet()
        except BlockingIOError:
            return
        except OSError as error:
            self.fail(f"receive: {error.strerror}")
        except UndecodableMessage as error:
            self.fail(f"bad message: {error}")

    def _read_packet(self) -> int:
        """Read one packet; return how many messages it completed, at least 1."""
        packet = self._sock.recv(FRAGMENT_BYTES)
        if not packet:
            self.fail("end of file")
            return 1
        self._silent = 0
        messages = self._assembler.messages(packet)
        for message in messages:
            if self._open:  # handling a message may close the pipe
                self._dispatch(message)
        return max(1, len(messages))

    def _dispatch(self, message: Message) -> None:
        if isinstance(message, ToEngine):
            self.fail(f"unexpected {type(message).__name__}")
        elif not isinstance(message, Pong):  # a Pong only shows that the child is alive
            self._receive(message)
