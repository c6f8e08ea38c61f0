"""The sockets between this engine and its servers.

One link belongs to the process that has started the engine; the engine ends with it. That process may attach the links
of further server processes. Each link has its own outbox, and its requests are its own: their messages go to that link,
commands of other links do not reach them, and they are cancelled when the link ends.
"""

from __future__ import annotations

import logging
import select
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from voxlane.engine import progress
from voxlane.engine.api import (
    ATTACHED,
    FRAGMENT_BYTES,
    Assembler,
    Attach,
    Cancel,
    Finished,
    FromEngine,
    Pause,
    Ping,
    Pong,
    Refused,
    Shutdown,
    StepStats,
    Submit,
    ToEngine,
    UndecodableMessage,
    bundle,
)

log = logging.getLogger(__name__)

IDLE_S = 0.5
"""How often an idle engine shows that it goes on."""

OUTBOX_PACKETS = 4096
"""Packets kept for a server that is slow to read. Then the engine waits for the one that has started it, and leaves any
other: a slow process must not hold up the rest."""


class Gone(Exception):
    """The server closed the socket or told us to stop."""


class Link:
    """The engine's end of one packet socket."""

    def __init__(self, link: socket.socket) -> None:
        self.open = True
        self.attached: list[socket.socket] = []  # links of other processes that came with commands
        self._attaching = False  # the next packet carries a descriptor
        self._socket = link
        self._assembler = Assembler()
        self._outbox: deque[bytes] = deque()
        self._arrivals = select.poll()
        self._arrivals.register(link, select.POLLIN)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    @property
    def queued(self) -> int:
        """How many packets wait for the socket."""
        return len(self._outbox)

    def send(self, messages: Sequence[FromEngine], *, patient: bool = True) -> None:
        """Send messages as far as the socket takes them; if `patient`, wait when very much is queued."""
        if not messages and not self._outbox:
            return
        self._outbox.extend(bundle(messages))
        self.flush(patient=patient and len(self._outbox) > OUTBOX_PACKETS)

    def read(self) -> list[ToEngine]:
        """Return the commands that are there."""
        commands: list[ToEngine] = []
        self.flush()
        while self._arrivals.poll(0):  # a quarter of the time of a read that finds nothing, and raises
            try:
                packet = self._packet()
            except BlockingIOError:
                break
            except OSError as error:
                raise Gone from error
            if not packet:
                raise Gone
            if self._attaching:
                self._attaching = False
            else:
                self._take(packet, commands)
        return commands

    def _take(self, packet: bytes, commands: list[ToEngine]) -> None:
        """Add the commands of a packet; answer and note those that are for the link itself."""
        for message in self._assembler.messages(packet):
            if isinstance(message, Shutdown):
                raise Gone
            if isinstance(message, Ping):  # answered here: reading it shows that the loop runs
                self.send([Pong()], patient=False)
            elif isinstance(message, Attach):
                self._attaching = True
            else:
                commands.append(message)  # type: ignore[arg-type]  # servers send ToEngine only

    def _packet(self) -> bytes:
        if not self._attaching:  # a descriptor costs a slower call, which few packets need
            return self._socket.recv(FRAGMENT_BYTES, socket.MSG_DONTWAIT)
        packet, descriptors, _, _ = socket.recv_fds(self._socket, FRAGMENT_BYTES, 1, socket.MSG_DONTWAIT)
        self.attached += [socket.socket(fileno=descriptor) for descriptor in descriptors]
        if packet and (packet != ATTACHED or not descriptors):
            raise UndecodableMessage("a link was announced, and none came")
        return packet

    def close(self) -> None:
        """Let the server know that there will be no more."""
        self.open = False
        self._outbox.clear()
        self._socket.close()

    def give(self) -> socket.socket:
        """Return the socket, for another link; this one is not used any more."""
        return self._socket

    def flush(self, *, patient: bool = False) -> None:
        """Send what is queued as far as the socket takes it; if `patient`, all of it."""
        while self._outbox:
            try:
                self._socket.send(self._outbox[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                if not patient:
                    return
                self._wait_writable()
                continue
            except OSError as error:
                raise Gone from error
            self._outbox.popleft()

    def _wait_writable(self) -> None:
        """Wait a moment for a server that is slow to read: that is no hang of this thread."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        poll.poll(IDLE_S * 1e3)
        progress.advance()


@dataclass(slots=True)
class _Owner:
    """The link of a request."""

    link: Link
    submitted: int = 0  # submissions under this id that have not ended: an id may be used again


class Links:
    """The link of the process that has started this engine, and those that it has attached."""

    def __init__(self, first: socket.socket) -> None:
        self._first = Link(first)
        self._others: dict[int, Link] = {}  # attached links by descriptor
        self._owners: dict[str, _Owner] = {}  # of the requests that came over attached links
        self._cancels: list[ToEngine] = []  # for requests whose link has ended
        # poll, not select: a busy server hands us a descriptor beyond select's 1,024.
        self._arrivals = select.poll()
        self._arrivals.register(first, select.POLLIN)

    def send(self, messages: Sequence[FromEngine]) -> None:
        """Send each message to the link that it is for."""
        if not self._others and not self._owners:
            self._first.send(messages)
            return
        shares: dict[Link, list[FromEngine]] = {}
        for message in messages:
            for link in self._receivers(message):
                shares.setdefault(link, []).append(message)
        for link, share in shares.items():
            if link is self._first:
                link.send(share)
            else:
                self._send_attached(link, share)

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """Return the commands that are there; with `wait`, at least one."""
        progress.advance()
        while True:
            if wait:
                self.wait()
            commands, self._cancels = self._cancels, []
            if self._others:
                commands += self._read_ready()
            else:
                commands += self._first.read()
            self._attach()
            if commands or not wait:
                return commands

    def waiting(self) -> bool:
        """Return whether something has come."""
        return bool(self._cancels) or bool(self._arrivals.poll(0))

    def wait(self) -> None:
        """Wait until something has come; meanwhile send what is queued."""
        poll = select.poll()
        while not self._cancels:
            self._flush()
            for link in (self._first, *self._others.values()):
                poll.register(link, select.POLLIN | (select.POLLOUT if link.queued else 0))
            if any(event & ~select.POLLOUT for _, event in poll.poll(IDLE_S * 1e3)):
                return
            progress.advance()

    def give(self) -> socket.socket:
        """Return the first socket, for another process; these links are not used any more."""
        return self._first.give()

    def close(self) -> None:
        """Let the servers know that there will be no more."""
        for link in (self._first, *self._others.values()):
            link.close()

    # ---- whose requests

    def _receivers(self, message: FromEngine) -> Sequence[Link]:
        """Return the links that a message is for."""
        request_id: str | None = getattr(message, "request_id", None)
        if request_id is None:  # figures are for all processes; everything else is for the first
            return (self._first, *self._others.values()) if isinstance(message, StepStats) else (self._first,)
        owner = self._owners.get(request_id)
        if owner is None:
            return (self._first,)
        if isinstance(message, Finished | Refused):
            owner.submitted -= 1
            if not owner.submitted:
                del self._owners[request_id]
        return (owner.link,) if owner.link.open else ()

    def _own(self, link: Link, commands: list[ToEngine]) -> Iterable[ToEngine]:
        """Yield the commands of an attached link that are about its own requests."""
        for command in commands:
            if not link.open:  # an answer could not be sent
                return
            if isinstance(command, Submit):
                owner = self._owners.setdefault(command.request_id, _Owner(link))
                if owner.link is not link:
                    why = "another server process has this id"
                    self._send_attached(link, [Refused(command.request_id, command.epoch, "duplicate_id", why)])
                    continue
                owner.submitted += 1
            elif isinstance(command, Pause):
                mine = tuple(one for one in command.request_ids if self._owns(link, one))
                if mine != command.request_ids:
                    command = Pause(mine)
            elif not self._owns(link, getattr(command, "request_id", "")):
                continue  # it has ended, or is not this link's; only the first link changes voices
            yield command

    def _owns(self, link: Link, request_id: str) -> bool:
        owner = self._owners.get(request_id)
        return owner is not None and owner.link is link

    # ---- sockets

    def _read_ready(self) -> list[ToEngine]:
        """Read the links on which something has come, the first link before the others."""
        ready = {descriptor for descriptor, _ in self._arrivals.poll(0)}
        self._flush()
        commands: list[ToEngine] = []
        if self._first.fileno() in ready:
            commands += self._first.read()
        for descriptor in ready & self._others.keys():
            link = self._others[descriptor]
            try:
                commands += self._own(link, link.read())
            except (Gone, UndecodableMessage):
                self._lose(link)
        cancels, self._cancels = self._cancels, []
        return commands + cancels

    def _attach(self) -> None:
        """Take the links that have come."""
        for found in self._first.attached:
            self._others[found.fileno()] = Link(found)
            self._arrivals.register(found, select.POLLIN)
        self._first.attached.clear()

    def _send_attached(self, link: Link, messages: Sequence[FromEngine]) -> None:
        if not link.open:
            return
        try:
            link.send(messages, patient=False)
        except Gone:
            self._lose(link)
            return
        if link.queued > OUTBOX_PACKETS:
            log.warning("a server process reads nothing: its link is closed")
            self._lose(link)

    def _flush(self) -> None:
        self._first.flush()
        for link in list(self._others.values()):
            try:
                link.flush()
            except Gone:
                self._lose(link)

    def _lose(self, link: Link) -> None:
        """Leave an attached link, and have its requests cancelled."""
        if not link.open:
            return
        self._arrivals.unregister(link)
        del self._others[link.fileno()]
        link.close()
        self._cancels += [Cancel(request_id) for request_id in self._owners if self._owns(link, request_id)]
