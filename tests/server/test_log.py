"""One line per record, whatever is put into it."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.server import log


@given(st.text())
def test_a_quoted_value_is_one_printable_token_that_tells_the_truth(text: str) -> None:
    quoted = log.quote(text)
    assert quoted.isascii()
    assert quoted.isprintable()
    if quoted.startswith('"'):
        assert json.loads(quoted) == (text if len(text) <= log.LONGEST_VALUE else text[: log.LONGEST_VALUE] + "…")
    else:
        assert quoted == text
        assert " " not in quoted


def test_long_values_are_cut() -> None:
    assert len(log.quote("a" * 10_000)) < 400


def test_a_line_is_the_event_and_its_fields() -> None:
    assert log.line("ready", model="m", path="a b", left=None, s=0.25) == 'ready model=m path="a b" s=0.25'


def test_every_record_is_one_line() -> None:
    stream = io.StringIO()
    root, ours = logging.getLogger(), logging.getLogger("voxlane")
    before = root.handlers[:], root.level, ours.level
    try:
        log.set_up("info", stream)
        logging.getLogger("voxlane.x").info("plain a=b")
        logging.getLogger("voxlane.x").debug("not shown")
        logging.getLogger("someone.else").warning("forged\n2026 INFO line")
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logging.getLogger("voxlane.x").exception("bug")
    finally:
        root.handlers[:], root.level = before[0], before[1]
        ours.setLevel(before[2])
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("INFO voxlane.x plain a=b")
    assert "forged\\n2026" in lines[1]
    assert "trace=" in lines[2]


def test_of_a_telephone_number_two_digits_are_shown() -> None:
    assert log.masked("+49 171 2345689") == "...89"
    assert log.masked("sip:4917123@192.168.1.20") == "...23"
    assert log.masked("sip:anna@192.168.1.20") == "..."
    assert log.masked("1234") == "..."  # two of four digits would be half of it
    assert log.masked("anonymous") == "..."
    assert log.masked("") == ""
    assert log.line("call open", caller=log.masked("+491712345689")) == "call open caller=...89"


@given(st.text())
def test_whatever_a_number_holds_at_most_two_characters_of_it_are_shown(number: str) -> None:
    shown = log.masked(number)
    assert len(shown) <= 5
    assert shown.removeprefix("...").isdigit() or shown in ("", "...")


def json_records(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(one) for one in stream.getvalue().splitlines()]


@pytest.fixture
def json_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Log as JSON into a string, and undo it."""
    stream, root, ours = io.StringIO(), logging.getLogger(), logging.getLogger("voxlane")
    before = root.handlers[:], root.level, ours.level
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setenv(log.FORMAT_VARIABLE, "text")
    log.set_up("info", stream, as_json=True)
    yield stream
    logging.captureWarnings(False)
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


def test_a_json_record_has_its_fields_apart(json_log: io.StringIO) -> None:
    logging.getLogger("voxlane.x").info(log.line("voice closed", session="voice-1", close=1000, seconds=1.5, code=None))
    (record,) = json_records(json_log)
    assert record.pop("time").endswith("Z")
    assert record == {
        "level": "INFO",
        "logger": "voxlane.x",
        "message": "voice closed",
        "fields": {"session": "voice-1", "close": 1000, "seconds": 1.5},
    }


def test_every_json_record_is_one_line_tracebacks_included(json_log: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").warning("forged\n{%s", '"}\n')
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("voxlane.x").exception(log.line("bug", error="ValueError"))
    first, second = json_records(json_log)
    assert first["message"] == 'forged\n{"}\n'
    assert second["message"] == "bug"
    assert "ValueError: two\nlines" in second["trace"]


def test_warnings_and_uncaught_errors_are_json_too(json_log: io.StringIO) -> None:
    warnings.showwarning(UserWarning("old"), UserWarning, "there.py", 1)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    try:
        raise KeyError("x")
    except KeyError as error:
        sys.excepthook(KeyError, error, error.__traceback__)
    records = json_records(json_log)
    assert "UserWarning: old" in records[0]["message"]
    assert [record["message"] for record in records[1:]] == ["uncaught", "uncaught"]
    assert "ZeroDivisionError" in records[-2]["trace"]
    assert records[-1]["fields"] == {"error": "KeyError"}


@settings(max_examples=examples(600))
@given(st.one_of(st.text(), st.floats(), st.integers(), st.booleans()))
def test_whatever_a_field_holds_a_json_record_is_one_valid_line(value: object) -> None:
    record = logging.LogRecord("voxlane.x", logging.INFO, "", 0, log.line("event", value=value), None, None)
    text = log.JsonFormatter().format(record)
    assert text.isascii()
    assert "\n" not in text
    found = json.loads(text)["fields"]["value"]
    assert json.dumps(found, allow_nan=False)
    found.encode() if isinstance(found, str) else None  # no half characters
