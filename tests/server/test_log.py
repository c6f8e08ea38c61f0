"""One line per record, whatever is put into it."""

from __future__ import annotations

import io
import json
import logging

from hypothesis import given
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
