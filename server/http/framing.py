"""Rules for the framing of HTTP requests that h11 does not have.

A request that declares its length twice is read in two ways by two programs: the second program takes a part of the
body for another request. A body in tiny chunks takes the parser 20 µs for each of them, so a read of 256 KiB would
block the event loop for a second.
"""

from __future__ import annotations

import time

import h11

from voxlane.server import limits
from voxlane.server.http.buckets import Bucket


class StrictConnection(h11.Connection):
    """h11's parser of one connection; it raises RemoteProtocolError for ambiguous heads and bodies in tiny chunks."""

    def __init__(self, most_incomplete: int) -> None:
        super().__init__(h11.SERVER, most_incomplete)
        self._small_chunks = Bucket(limits.SMALL_CHUNKS_PER_SECOND, limits.SMALL_CHUNKS, time.monotonic())

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event of the client, or raise RemoteProtocolError."""
        event = super().next_event()
        if isinstance(event, h11.Data):
            # Whole chunks alone: a piece that is small because the network cut it there comes with a read of its own.
            small = event.chunk_start and event.chunk_end and len(event.data) < limits.SMALL_CHUNK_BYTES
            if small and not self._small_chunks.spend(1, time.monotonic()):
                raise h11.RemoteProtocolError("a body in too many small chunks")
        elif isinstance(event, h11.Request):
            check_head(event)
        return event


def check_head(request: h11.Request) -> None:
    """Raise RemoteProtocolError if two programs may disagree on where the request ends."""
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version < b"1.1"):
        raise h11.RemoteProtocolError("Transfer-Encoding with Content-Length or in HTTP/1.0")


def is_ascii(request: h11.Request) -> bool:
    """Return whether all headers are ASCII: the WebSocket library fails on others."""
    return all(value.isascii() for _, value in request.headers)
