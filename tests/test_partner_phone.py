"""partner.py --phone: the telephone's own tools are offered, every exchange can be passed and failed."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import partner
from support.partner.exchanges import Exchange
from support.partner.rules import Called, Reply

from voxlane.server.conversation.server_events import ToolCalled

CATALOGUE = partner.load_phone()
WORDS = "Of course, with pleasure."


def right_replies(exchange: Exchange) -> list[Reply]:
    """Return right replies with the call that the exchange expects, to its last turn."""
    *earlier, last = (Reply(WORDS) for _ in exchange.turns)
    call = exchange.rules[len(exchange.turns)].call
    if not call:
        return [*earlier, last]
    arguments = {name: re.sub(r"\(\?i\)|\\b", "", pattern) for name, pattern in call.get("arguments", {}).items()}
    return [*earlier, Reply(WORDS, (Called(call["name"], json.dumps(arguments)),))]


def test_there_are_turns_for_every_tool_and_for_none() -> None:
    held = Counter(exchange.category for exchange in CATALOGUE.exchanges)
    assert held == {"bye": 10, "person": 10, "keys": 6, "chat": 14}
    turns = [turn for exchange in CATALOGUE.exchanges for turn in exchange.turns]
    assert len(set(turns)) == len(turns)


def test_right_replies_pass_and_wrong_ones_fail() -> None:
    for exchange in CATALOGUE.exchanges:
        *earlier, last = right = right_replies(exchange)
        assert exchange.broken_by(right) == [], exchange.name
        for name in {"hang_up", "transfer", "collect_digits"} - {call.name for call in last.calls}:
            wrong = [*earlier, Reply(last.text, (Called(name, '{"to": "sales"}'),))]
            assert exchange.broken_by(wrong) != [], (exchange.name, name)
        if last.calls:
            assert exchange.broken_by([*earlier, Reply(last.text)]) != [], exchange.name


def test_the_expected_calls_are_followed_on_a_telephone() -> None:
    for exchange in CATALOGUE.exchanges:
        assert [tool.name for tool in exchange.tools] == ["hang_up", "transfer", "collect_digits"]
        for call in right_replies(exchange)[-1].calls:
            action = partner.PHONE_TOOLS.action(ToolCalled(1, "call", call.name, call.arguments))
            assert type(action).__name__ in {"HangUp", "TransferTo", "CollectKeys"}
