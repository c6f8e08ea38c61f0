"""Whole messages over a non-blocking packet socket, on the event loop.

It knows packets and back-pressure. It does not know processes, requests or what a message asks for.
"""

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
    """Whole messages over a non-blocking packet socket. Sends at once or keeps in order; reads until end of file."""

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
        self._stood_still = 0  # looks in a row that found nothing taken,
        self._silent = 0  # and those that found nothing said
        self._loop.add_reader(sock.fileno(), self._on_readable)

    def send(self, message: ToEngine) -> None:
        """Send the message, or keep it until the socket takes it; raise Overloaded when too much is waiting."""
        if not self._open:
            return
        packets = fragments(encode(message))
        size = sum(map(len, packets))
        # What ends work is always let through: it is what makes room.
        if isinstance(message, Submit | Append) and self._outbox_bytes + size > limits.OUTBOX_BYTES:
            raise Overloaded(detail="outbox full")
        was_empty = not self._outbox
        self._outbox.extend(packets)
        self._outbox_bytes += size
        if was_empty and not self._flush() and self._open:
            self._loop.add_writer(self._sock.fileno(), self._on_writable)

    def watch(self) -> None:
        """Look after the child from now on: it is one that reads."""
        if self._open:  # sending may have closed it
            self._watch = self._loop.call_later(limits.LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Close the socket; the child takes that as its signal to leave."""
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
        """Send what the socket takes; return whether nothing is left."""
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
        """Give up a child that takes nothing of what waits, or has said nothing for long; else ask it for a word."""
        self._silent += 1
        self._stood_still = self._stood_still + 1 if self._outbox else 0
        if self._stood_still > limits.STALL_LOOKS:
            self.fail("it takes nothing any more")
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
        """Deal with one packet; return how many messages that is, at least one."""
        packet = self._sock.recv(FRAGMENT_BYTES)
        if not packet:
            self.fail("end of file")
            return 1
        self._silent = 0
        messages = self._assembler.messages(packet)
        for message in messages:
            if self._open:  # what one of them leads to may close it
                self._dispatch(message)
        return max(1, len(messages))

    def _dispatch(self, message: Message) -> None:
        if isinstance(message, ToEngine):
            self.fail(f"unexpected {type(message).__name__}")
        elif not isinstance(message, Pong):  # which has said all it has to
            self._receive(message)
