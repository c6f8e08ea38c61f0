"""What is known about a call, as data for instructions and tools. Pure.

Values come from outside: a caller can put any text into them. In instructions each value is a JSON string, so that it
cannot end its quotation; line breaks and control characters are gone.
"""

from __future__ import annotations

import json
import re

from voxlane.server.protocols.phone.line_events import CallFacts

MOST_CHARACTERS = 512
"""Characters of one value."""

_PLACE = re.compile(r"\{(caller|called|parameter\.(?P<name>[\w-]{1,64}))\}")


def described(instructions: str, facts: CallFacts) -> str:
    """Return instructions with facts in the place of {caller}, {called} and {parameter.NAME}."""

    def fact(place: re.Match[str]) -> str:
        name = place["name"]
        return quoted(facts.parameters.get(name, "") if name else getattr(facts, place[1]))

    return _PLACE.sub(fact, instructions)


def quoted(value: str) -> str:
    """Return a value from outside as a JSON string on one line, cut to its length; "unknown" where it is empty."""
    text = "".join(char if char.isprintable() else " " for char in value[:MOST_CHARACTERS]).strip()
    return json.dumps(text, ensure_ascii=False) if text else "unknown"


def as_data(facts: CallFacts) -> dict[str, object]:
    """Return the facts for a tool's request."""
    return {
        "system": facts.system,
        "id": facts.call_id,
        "from": facts.caller,
        "to": facts.called,
        "parameters": dict(facts.parameters),
    }
