"""Log records of one line each, as key=value. Prompts, transcripts and audio are never logged.

Text from outside enters a record only through `quote`, so that it cannot forge a line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import TextIO

LONGEST_VALUE = 300
"""Characters of a value that are logged: enough for an error's reason, too few to flood the log."""

_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+%-]+")


def quote(value: object) -> str:
    """Return `value` as one printable ASCII token, in JSON quotes unless it is a plain word."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if len(text) > LONGEST_VALUE:
        text = text[:LONGEST_VALUE] + "…"
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def line(event: str, /, **fields: object) -> str:
    """Return a record's text: a constant event name, then its fields."""
    return " ".join([event, *(f"{key}={quote(value)}" for key, value in fields.items() if value is not None)])


def masked(number: str) -> str:
    """Return a telephone number or SIP address for the log: its last two digits; "" if there is none.

    A telephone number is personal data. The dots are ASCII: a record shows them as they are.
    """
    if not number:
        return ""
    # Of sip:anna@example.org nothing is left, and of a number of up to four digits neither.
    digits = "".join(char for char in number.partition("@")[0] if char in "0123456789")
    return f"...{digits[-2:]}" if len(digits) > 4 else "..."


class LineFormatter(logging.Formatter):
    """Write every record on one line, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as `time LEVEL logger text`."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        text = record.getMessage()
        # Other libraries may log text from outside: a control character could forge a line.
        if not text.isprintable():
            text = json.dumps(text)
        parts = [f"{moment}.{int(record.msecs):03d}Z", record.levelname, record.name, text]
        if record.exc_info:
            parts.append(f"trace={json.dumps(self.formatException(record.exc_info))}")
        return " ".join(parts)


_HANDSHAKE_DENIED = "ASGI callable returned without completing handshake."
"""uvicorn logs this as an error for every WebSocket that is refused with an HTTP status, which our own line says."""


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Log to `stream` (stderr): our records from `level` up, those of libraries from WARNING up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter())
    handler.addFilter(lambda record: record.getMessage() != _HANDSHAKE_DENIED)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("voxlane").setLevel(level.upper())
