"""The page of a call through @openai/agents-realtime: files of tests/browser/call, from an origin of its own.

Offers may go to the server over this page's own address: then their answers can be changed on the way.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

TESTS = Path(__file__).parents[2]
NODE = TESTS / "clients" / "node" / "node_modules"
BUNDLE = NODE / "@openai" / "agents-realtime" / "dist" / "bundle" / "openai-realtime-agents.mjs"
INSTALL = "make clients"
"""The command that installs the SDK."""

needs_sdk = pytest.mark.skipif(not BUNDLE.exists(), reason=f"@openai/agents-realtime is not installed: {INSTALL}")

CALLS = "/v1/realtime/calls"
PASSED_ON = ("authorization", "content-type", "x-openai-agents-sdk")
FILES = {
    "/": (TESTS / "browser" / "call" / "page.html", "text/html"),
    "/call.js": (TESTS / "browser" / "call" / "call.js", "text/javascript"),
    "/scenarios": (TESTS / "browser" / "call" / "scenarios.html", "text/html"),
    "/scenarios.js": (TESTS / "browser" / "call" / "scenarios.js", "text/javascript"),
    **{
        f"/clients/{name}": (TESTS / "clients" / "node" / name, "text/javascript")
        for name in ("agents_scenarios.mjs", "portable.mjs")
    },
    **{f"/agents/{path.name}": (path, "text/javascript") for path in BUNDLE.parent.glob("*.mjs")},
}


class _Handler(BaseHTTPRequestHandler):
    server: Any  # it has `url` and `change`

    def do_GET(self) -> None:
        """Serve a file."""
        if self.path not in FILES:
            self.send_error(404)
            return
        path, kind = FILES[self.path]
        self._answer(200, {"content-type": kind}, path.read_bytes())

    def do_POST(self) -> None:
        """Pass an offer on, and change its answer."""
        offer = self.rfile.read(int(self.headers["content-length"]))
        headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
        answer = httpx.post(f"{self.server.url}{self.path}", content=offer, headers=headers, timeout=60)
        body = self.server.change(answer.text) if answer.is_success else answer.text
        self._answer(answer.status_code, {"location": answer.headers.get("location", "")}, body.encode())

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write no log."""


@contextlib.contextmanager
def call_page(port: int = 0, url: str = "", change: Callable[[str], str] = str) -> Iterator[str]:
    """Serve the page; give its address. Offers to it go to the server at `url`, and `change` sees their answers."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.url, server.change = url, change
    thread = threading.Thread(target=server.serve_forever, name="page of a call")
    thread.start()
    try:
        yield f"http://localhost:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
