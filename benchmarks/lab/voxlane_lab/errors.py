"""What goes wrong in the lab and is the user's to mend: one line each."""

from __future__ import annotations

import json
import re

_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+%-]+")
_LONGEST = 300


class LabError(Exception):
    """The lab cannot do what it was asked to; the text is one line that says why."""


def quote(text: str) -> str:
    """Return a text from outside as one printable ASCII token, in JSON quotes unless it is a plain word."""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
