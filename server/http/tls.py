"""TLS in front of the HTTP server: certificates that are renewed while it runs, and handshakes with limits.

uvicorn's own TLS reads its files once, gives a handshake a minute, and counts a connection only after it. So TLS
connections are accepted here, counted from their first moment, and given to the HTTP protocol after their handshake.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import stat
from collections import deque
from collections.abc import Callable
from pathlib import Path

from voxlane.server import limits
from voxlane.server.errors import ConfigError
from voxlane.server.log import line

logger = logging.getLogger(__name__)

Stamp = tuple[int, int, int]

_LOOPS_PER_HANDSHAKE = 3
"""Rounds of the event loop from the start of a handshake to its signature: make the connection, register it, read."""


BACKLOG = 2048
"""Connections that wait to be accepted."""


class _Encrypted(Exception):
    """The private key asks for a password."""


class Certificate:
    """The certificate and key in two files; new handshakes get the pair that was read last.

    A pair is read into a context of its own. Only a whole pair replaces the one before, and connections keep theirs.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._stamps = self._look()
        self._current = self._read()
        # Every handshake begins in this context and asks for the current one.
        self.context = self._read()
        self.context.sni_callback = self._choose
        if os.stat(key).st_mode & stat.S_IROTH:
            logger.warning(line("tls key readable by every user", file=key, advice="chmod 600"))

    def refresh(self) -> bool:
        """Read the files again if they have changed; return whether new handshakes get another pair."""
        stamps = self._look()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            self._current = self._read()
        except ConfigError as error:
            logger.error(line("tls files not read again", reason=error.hint))
            return False
        logger.info(line("tls files read again", cert=self._cert))
        return True

    def _choose(self, handshake: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        handshake.context = self._current

    def _look(self) -> tuple[Stamp, Stamp]:
        return _stamp(self._cert), _stamp(self._key)

    def _read(self) -> ssl.SSLContext:
        """Return a context with the pair; raise ConfigError that says which file is wrong, and how."""
        for name, path in (("server.tls_cert", self._cert), ("server.tls_key", self._key)):
            try:
                path.read_bytes()
            except OSError as error:
                raise ConfigError(f"{name}: {path}: {error.strerror or error}") from error
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except _Encrypted as error:
            raise ConfigError(f"server.tls_key: {self._key} has a password: give a key without one") from error
        except ssl.SSLError as error:
            raise ConfigError(self._explained(error)) from error
        except OSError as error:
            raise ConfigError(f"server.tls_cert: {self._cert}: {error.strerror or error}") from error
        return context

    def _explained(self, error: ssl.SSLError) -> str:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"server.tls_key: {self._key} is not the key of the certificate in {self._cert}"
        if b"PRIVATE KEY-----" not in self._key.read_bytes():
            return f"server.tls_key: {self._key} is not a private key in PEM"
        if b"BEGIN CERTIFICATE-----" not in self._cert.read_bytes():
            return f"server.tls_cert: {self._cert} is not a certificate in PEM"
        return f"server.tls_cert: {self._cert} with {self._key} cannot be used: {error.reason or 'not valid PEM'}"


def _no_password() -> str:
    raise _Encrypted  # without this OpenSSL would ask at the terminal


def _stamp(path: Path) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size


class Handshakes:
    """The TLS handshakes that are about to begin: a few of each address, others of it wait for a place."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def begin(self, address: str) -> None:
        """Wait for a place."""
        if self._running.get(address, 0) < limits.HANDSHAKES_PER_ADDRESS:
            self._running[address] = self._running.get(address, 0) + 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end(address)  # the place was given in the same moment
            raise

    def end(self, address: str) -> None:
        """Give the place to the next one of this address that still waits."""
        queue = self._waiting.get(address, deque())
        while queue:
            turn = queue.popleft()
            if not turn.done():  # it was cancelled: its time was over
                turn.set_result(None)
                return
        self._waiting.pop(address, None)
        self._running[address] -= 1
        if not self._running[address]:
            del self._running[address]


class TlsListener:
    """Accepts connections and shakes hands; `make` gives the protocol that serves a connection afterwards."""

    def __init__(
        self,
        listener: socket.socket,
        certificate: Certificate,
        make: Callable[[], asyncio.Protocol],
        full: Callable[[], bool],
    ) -> None:
        self._listener = listener
        self._certificate = certificate
        self._make = make
        self._full = full  # whether there are too many connections for another handshake
        self._handshakes = Handshakes()
        self._turns = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._accepts = False
        self.beginning: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Accept connections."""
        self._accepts = True
        self._listener.listen(BACKLOG)  # a port that processes share is only bound so far
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accept no more connections; those of before go on."""
        if self._again is not None:
            self._again.cancel()
        if self._accepts:
            self._accepts = False
            self._loop.remove_reader(self._listener)
            self._listener.close()

    async def end(self) -> None:
        """End the handshakes that are under way."""
        self.close()
        for task in self.beginning:
            task.cancel()
        await asyncio.gather(*self.beginning, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(limits.ACCEPTS_PER_TURN):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor is left: the connections wait in the kernel
                logger.error(line("cannot accept", error=error.strerror))
                self._loop.remove_reader(self._listener)
                self._again = self._loop.call_later(limits.ACCEPT_PAUSE_SECONDS, self.start)
                return
            if self._full():
                accepted.close()
                continue
            accepted.setblocking(False)
            task = self._loop.create_task(self._shake(accepted), name="tls handshake")
            self.beginning.add(task)
            task.add_done_callback(self.beginning.discard)

    async def _shake(self, accepted: socket.socket) -> None:
        address = "-"
        secure: asyncio.Transport | None = None
        try:
            address = str(accepted.getpeername()[0])
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(limits.HANDSHAKE_SECONDS):
                await self._readable(accepted)  # a silent connection takes no place from others
                await self._handshakes.begin(address)
                try:
                    await self._turn()
                finally:  # from here on a silent one keeps nobody waiting
                    self._handshakes.end(address)
                secure, _ = await self._loop.connect_accepted_socket(
                    self._make,
                    accepted,
                    ssl=self._certificate.context,
                    ssl_handshake_timeout=limits.HANDSHAKE_SECONDS,
                    ssl_shutdown_timeout=limits.TLS_CLOSE_SECONDS,
                )
            secure.set_write_buffer_limits(high=limits.TLS_WRITE_BYTES)
        except (OSError, TimeoutError) as error:  # an SSLError is an OSError
            logger.debug(line("tls handshake failed", client=address, error=type(error).__name__))
        finally:
            if secure is None:
                accepted.close()

    async def _readable(self, accepted: socket.socket) -> None:
        """Wait until something has come."""
        came = asyncio.Event()
        self._loop.add_reader(accepted, came.set)
        try:
            await came.wait()
        finally:
            self._loop.remove_reader(accepted)

    async def _turn(self) -> None:
        """Let the loop go round between two handshakes: each signs, and many at once would hold up every voice."""
        async with self._turns:
            for _ in range(_LOOPS_PER_HANDSHAKE):
                await asyncio.sleep(0)
