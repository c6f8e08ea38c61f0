"""Log records of one line each, as key=value or as JSON. Prompts, transcripts and audio are never logged.

Text from outside enters a record only through `line`, which quotes it, so that it cannot forge a line.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
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


class LogLine(str):
    """A record's text, which also has the event and its fields apart, for records as JSON."""

    __slots__ = ("event", "fields")

    event: str
    fields: Mapping[str, object]


def line(event: str, /, **fields: object) -> LogLine:
    """Return a record's text: a constant event name, then its fields."""
    known = {key: value for key, value in fields.items() if value is not None}
    text = LogLine(" ".join([event, *(f"{key}={quote(value)}" for key, value in known.items())]))
    text.event, text.fields = event, known
    return text


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

    def __init__(self, process: int | None = None) -> None:
        """Format the records of a process; those of one among several carry its number."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as `time LEVEL logger text`."""
        text = record.getMessage()
        # Other libraries may log text from outside: a control character could forge a line.
        if not text.isprintable():
            text = json.dumps(text)
        parts = [_moment(record), record.levelname, record.name, text]
        if self._process is not None:
            parts.append(f"process={self._process}")
        if record.exc_info:
            parts.append(f"trace={json.dumps(self.formatException(record.exc_info))}")
        return " ".join(parts)


class JsonFormatter(LineFormatter):
    """Write every record as one JSON object on one line: time, level, logger, message, fields, trace."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as an object; `fields` and `trace` are there only where a record has them."""
        found: dict[str, object] = {"time": _moment(record), "level": record.levelname, "logger": record.name}
        if self._process is not None:
            found["process"] = self._process
        if isinstance(record.msg, LogLine) and not record.args:
            found["message"] = record.msg.event
            if record.msg.fields:
                found["fields"] = {key: _json_value(value) for key, value in record.msg.fields.items()}
        else:
            found["message"] = _valid(record.getMessage())
        if record.exc_info:
            found["trace"] = _valid(self.formatException(record.exc_info))
        return json.dumps(found)


def _moment(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _json_value(value: object) -> object:
    """Return a field's value as JSON can hold it: numbers as they are, all else as text of bounded length."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else str(value)
    text = _valid(str(value))
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "…"


def _valid(text: str) -> str:
    """Return text without half characters: many readers of JSON refuse them."""
    return text.encode("utf-8", "replace").decode()


_HANDSHAKE_DENIED = "ASGI callable returned without completing handshake."
"""uvicorn logs this as an error for every WebSocket that is refused with an HTTP status, which our own line says."""


FORMAT_VARIABLE = "VOXLANE_LOG_FORMAT"
"""Tells the engine's process how to write its log: text or json."""


def set_up(level: str, stream: TextIO | None = None, *, as_json: bool = False, process: int | None = None) -> None:
    """Log to `stream` (stderr): our records from `level` up, those of libraries from WARNING up.

    With `as_json`, warnings and errors that end a thread or the process become records, too: each line is an object.
    `process` is the number of a server process among several.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process) if as_json else LineFormatter(process))
    if as_json:
        os.environ[FORMAT_VARIABLE] = "json"
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread
    handler.addFilter(lambda record: record.getMessage() != _HANDSHAKE_DENIED)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("voxlane").setLevel(level.upper())


def writes_json() -> bool:
    """Return whether the log is JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("voxlane").critical(line("uncaught", error=kind.__name__), exc_info=(kind, error, trace))


def _log_uncaught_in_thread(uncaught: threading.ExceptHookArgs) -> None:
    error = uncaught.exc_value
    if error is not None and not isinstance(error, SystemExit):
        _log_uncaught(type(error), error, uncaught.exc_traceback)
