"""Transports whose end does not depend on the peer.

`close` of a transport waits until the peer has read what was written, and a peer may never read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class BoundedTransport:
    """Passes everything on to a transport; a close that is not complete after `flush_s` becomes an abort."""

    def __init__(self, inner: asyncio.Transport, flush_s: float) -> None:
        self.inner = inner
        self.write = inner.write  # bound here: it is called for every piece of sound
        self._flush_s = flush_s
        self._due: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def close(self) -> None:
        """Close the transport when its buffer is empty, or when its time is over."""
        if self.inner.is_closing():
            return
        unsent = self.inner.get_write_buffer_size()  # asked before: of a closed TLS transport it cannot be asked
        self.inner.close()
        if unsent:
            self._abort_later(self._flush_s)

    def lost(self) -> None:
        """Note that the connection is gone."""
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _abort_later(self, seconds: float) -> None:
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(seconds, self.inner.abort)


class SocketTransport(BoundedTransport):
    """The transport of a WebSocket: it asks its owner before it reads, and waits for no peer that is far behind."""

    def __init__(
        self,
        inner: asyncio.Transport,
        flush_s: float,
        hold: Callable[[], None],
        release: Callable[[], None],
        stuck: Callable[[], bool],
    ) -> None:
        super().__init__(inner, flush_s)
        self.pause_reading = hold
        self.resume_reading = release
        self._stuck = stuck

    def close(self) -> None:
        """Close the transport; abort it if the peer has stopped reading."""
        if self._stuck():
            self.inner.abort()
        else:
            super().close()


class HttpTransport(BoundedTransport):
    """The transport of an HTTP connection: it can say that it ends, and let the rest of a body pass unread.

    A socket that is closed with bytes unread resets the connection, and the client may lose the answer.
    """

    lingering = False
    _resting: asyncio.TimerHandle | None = None

    def linger(self, seconds: float) -> None:
        """Send what waits, then the end; read on until the peer ends its side or the time is over."""
        self.lingering = True
        if self.inner.can_write_eof():  # TLS cannot
            self.inner.write_eof()
        self._abort_later(seconds)

    def rest(self, seconds: float) -> None:
        """Read nothing for a while: bytes that no request needs may not take the time of others."""
        if self._resting is None and not self.inner.is_closing():
            self.inner.pause_reading()
            self._resting = asyncio.get_running_loop().call_later(seconds, self._go_on)

    def lost(self) -> None:
        """Note that the connection is gone."""
        super().lost()
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    def _go_on(self) -> None:
        self._resting = None
        if not self.inner.is_closing():
            self.inner.resume_reading()

    def is_closing(self) -> bool:
        """Return whether nothing more can be written."""
        return self.lingering or self.inner.is_closing()
