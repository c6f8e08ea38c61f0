"""Messages over a non-blocking packet socket on the event loop, with back-pressure and a watch over the peer.

Sound that need not be quick waits some milliseconds for that of other voices, and shares their packet.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from voxlane.engine.api import (
    ATTACHED,
    FRAGMENT_BYTES,
    Append,
    Assembler,
    Attach,
    FromEngine,
    Message,
    Ping,
    Pong,
    Submit,
    ToEngine,
    UndecodableMessage,
    bundle,
    encode,
    fragments,
)
from voxlane.server import limits
from voxlane.server.errors import Overloaded

SOON_S = 0.008
"""How long sound of a voice that goes on waits for that of others. A packet costs both processes a system call, and may
wake the engine: with fifty voices, by calculation, seven messages share one. Any other sends them first."""


class PacketPipe:
    """Sends messages at once or queues them in order; reads whole messages until end of file."""

    def __init__(self, sock: socket.socket, receive: Callable[[FromEngine], None], lost: Callable[[str], None]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._receive = receive
        self._lost = lost
        self._assembler = Assembler()
        self._outbox: deque[bytes | socket.socket] = deque()  # packets, and links that are sent as descriptors
        self._outbox_bytes = 0
        self._soon: list[Append] = []  # messages that are sent together
        self._soon_bytes = 0
        self._soon_timer: asyncio.TimerHandle | None = None
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
        if self._soon:
            self._send_gathered()
        packets = fragments(encode(message))
        size = sum(map(len, packets))
        # Commands that end work always pass: they make room.
        if isinstance(message, Submit | Append) and self._outbox_bytes + size > limits.OUTBOX_BYTES:
            raise Overloaded(detail="outbox full")
        self._put(packets, size)

    def send_soon(self, message: Append) -> None:
        """Send sound within SOON_S, together with other such messages; raise Overloaded if too much waits."""
        if not self._open:
            return
        size = len(message.audio)
        if self._outbox_bytes + self._soon_bytes + size > limits.OUTBOX_BYTES:
            raise Overloaded(detail="outbox full")
        self._soon.append(message)
        self._soon_bytes += size
        if self._soon_bytes >= FRAGMENT_BYTES // 2:
            self._send_gathered()
        elif self._soon_timer is None:
            self._soon_timer = self._loop.call_later(SOON_S, self._send_gathered)

    def _send_gathered(self) -> None:
        if self._soon_timer is not None:
            self._soon_timer.cancel()
            self._soon_timer = None
        messages, self._soon, self._soon_bytes = self._soon, [], 0
        packets = bundle(messages)
        self._put(packets, sum(map(len, packets)))

    def _put(self, packets: list[bytes], size: int) -> None:
        was_empty = not self._outbox
        self._outbox.extend(packets)
        self._outbox_bytes += size
        if was_empty and not self._flush() and self._open:
            self._loop.add_writer(self._sock.fileno(), self._on_writable)

    def attach(self, link: socket.socket) -> None:
        """Send the other side a link, and close it here."""
        self.send(Attach())
        self._queue(link)

    def _queue(self, link: socket.socket) -> None:
        if not self._open:  # sending may have closed it
            link.close()
            return
        was_empty = not self._outbox
        self._outbox.append(link)
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
            for timer in (self._watch, self._soon_timer):
                if timer is not None:
                    timer.cancel()
            self._soon.clear()
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            for item in self._outbox:
                if isinstance(item, socket.socket):
                    item.close()
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
                self._send_packet(self._outbox[0])
            except BlockingIOError:
                return False
            except OSError as error:
                # Later: the sender may be in the middle of a conversation's effects.
                self.close()
                self._loop.call_soon(self._lost, f"send: {error.strerror}")
                return True
            sent = self._outbox.popleft()
            if isinstance(sent, socket.socket):
                sent.close()
            else:
                self._outbox_bytes -= len(sent)
            self._stood_still = 0
        return True

    def _send_packet(self, item: bytes | socket.socket) -> None:
        if isinstance(item, socket.socket):
            socket.send_fds(self._sock, [ATTACHED], [item.fileno()])
        else:
            self._sock.send(item)

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
