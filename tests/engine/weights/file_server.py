"""An HTTP server for tests: files by path, a log of the requests, and the failures of servers and networks."""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

DEADLINE_SECONDS = 60


@dataclass(slots=True)
class Cut:
    """The connection hangs at this byte of a file until `now` is set, and breaks then."""

    at: int
    now: threading.Event = field(default_factory=threading.Event)
    resume_body: bool = False  # it continues instead of breaking
    reset: bool = False  # it breaks by a reset, not by an end


@dataclass(slots=True)
class RefusedAnswer:
    """A status with headers that is sent in the place of a file or a redirect, the first `times` times."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1 << 30
    ranged: bool = False  # only requests with a range get it


@dataclass(slots=True)
class Asked:
    """A request that was answered."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass(slots=True)
class FileServer:
    """The files of a server, and its behaviour."""

    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)  # by path
    redirects: dict[str, str] = field(default_factory=dict)  # by path
    cuts: dict[str, Cut] = field(default_factory=dict)  # by path
    refusals: dict[str, RefusedAnswer] = field(default_factory=dict)  # by the beginning of a path
    whole: set[str] = field(default_factory=set)  # paths that are sent whole, whatever range is asked for
    redirect_status: int = 302
    authorization: str | None = None
    reached: threading.Event = field(default_factory=threading.Event)  # a connection hangs at a cut
    log: list[Asked] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, ending: str) -> list[str | None]:
        """Return the requested ranges of the files with this ending, None for a whole file."""
        return [one.range for one in self.log if one.method == "GET" and one.path.endswith(ending)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: FileServer

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *arguments: object) -> None:
        """Print nothing: the log is a list."""

    def _answer(self, *, body: bool) -> None:
        site, path = self.site, unquote(urlsplit(self.path).path)
        wanted = self.headers.get("Range")
        site.log.append(Asked(self.command, path, wanted, self.headers.get("Authorization")))
        if site.authorization is not None and self.headers.get("Authorization") != site.authorization:
            self._refuse(401, {"WWW-Authenticate": 'Basic realm="test"'})
        elif (refusal := self._refusal(path)) is not None:
            self._refuse(refusal.status, refusal.headers)
        elif path in site.redirects:
            self._refuse(site.redirect_status, {"Location": site.redirects[path], **site.headers.get(path, {})})
        elif path not in site.files:
            self._refuse(404)
        elif wanted is None or path in site.whole:
            self._serve(path, 0, body=body)
        else:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            if start >= len(site.files[path]):
                self._refuse(416, {"Content-Range": f"bytes */{len(site.files[path])}"})
            else:
                self._serve(path, start, body=body)

    def _refusal(self, path: str) -> RefusedAnswer | None:
        for start, refusal in self.site.refusals.items():
            applies = self.headers.get("Range") is not None or not refusal.ranged
            if path.startswith(start) and applies and refusal.times > 0:
                refusal.times -= 1
                return refusal
        return None

    def _serve(self, path: str, start: int, *, body: bool) -> None:
        site, content = self.site, self.site.files[path]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        for name, value in {"Content-Type": "application/octet-stream", **site.headers.get(path, {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self._send(path, content, start)

    def _send(self, path: str, content: bytes, start: int) -> None:
        cut = self.site.cuts.get(path)
        try:
            if cut is None:
                self.wfile.write(content[start:])
                return
            self.wfile.write(content[start : cut.at])
            self.site.reached.set()
            assert cut.now.wait(DEADLINE_SECONDS), "the test did not cut the connection"
            if cut.resume_body:
                self.wfile.write(content[max(start, cut.at) :])
            else:
                if cut.reset:  # a socket that is closed without lingering sends a reset
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client was killed

    def _refuse(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a client that went away: it may have been killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving() -> Iterator[FileServer]:
    """Serve on a port of this machine until the end of the block."""
    site = FileServer()
    with _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": site})) as server:
        site.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield site
        finally:
            for cut in site.cuts.values():
                cut.now.set()
            server.shutdown()
            thread.join()
