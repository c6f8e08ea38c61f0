"""A program that stands in for `voxlane`: `serve … --host H --port P …` answers /readyz until SIGTERM.

`--fail TEXT` among its arguments makes it say so and end, as a wrong configuration does.
`--answer TEXT` is what it answers instead.
"""

from __future__ import annotations

import json
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

ROOM = {"state": "open", "percent": 80, "more": 7, "conversations": 2}


class Answers(BaseHTTPRequestHandler):
    """Says that it is ready."""

    def do_GET(self) -> None:
        """Answer."""
        body = value_of("--answer") if "--answer" in sys.argv else json.dumps({"at": value_of("--at"), "room": ROOM})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def value_of(flag: str) -> str:
    """Return the last value of a flag, as argparse would."""
    given = sys.argv[2:]
    return given[len(given) - given[::-1].index(flag)]


if __name__ == "__main__":
    if "--fail" in sys.argv:
        sys.exit(f"voxlane: {value_of('--fail')}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    HTTPServer((value_of("--host"), int(value_of("--port"))), Answers).serve_forever()
