"""partner.py --page: the page's own tools are offered, every exchange can be passed and failed, calls are counted."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import partner
from support.partner.exchanges import Exchange
from support.partner.rules import Called, Reply
from support.partner.talk import Answered

CATALOGUE = partner.load_page()
WORDS = {"time": "It's 16:25.", "timer": "Your timer is set.", "chat": "That is a good question."}
AFTER = [
    ["You rolled 5.", "It showed a five."],
    ["The timer is set.", "You're welcome."],
    ["It's 16:25.", "Goodbye!"],
    ["You rolled 5.", "Another 5."],
    ["Good evening!", "It's 25 past 4."],
    ["It rings in two minutes.", "The clock says 16:25."],
    ["It's 16:25.", "It rings in ten minutes."],
    ["You rolled 5 and 2.", "No, it's only seven."],
]


def said_of(exchange: Exchange) -> list[str]:
    """Return a right reply to every turn, without its calls."""
    if exchange.category == "after":
        return AFTER[int(exchange.name.split()[1]) - 1]
    if exchange.category == "dice":
        rolled = json.loads(result_of(exchange, "roll_dice"))["rolled"]
        return [f"You rolled {', '.join(map(str, rolled))}."]
    return [WORDS[exchange.category]]


def result_of(exchange: Exchange, name: str) -> str:
    return next(tool.result for tool in exchange.tools if tool.name == name)


def right_replies(exchange: Exchange) -> list[Reply]:
    """Return right replies with the calls that the exchange expects."""
    expected = dict(partner.expected_calls(exchange))
    replies = []
    for turn, said in enumerate(said_of(exchange), start=1):
        rules = exchange.rules.get(turn)
        name = rules.call.get("name") if rules else None
        calls = (Called(name, json.dumps(expected[name])),) if name else ()
        replies.append(Reply(said, calls))
    return replies


def judged(exchange: Exchange, replies: list[Reply]) -> partner.Judged:
    turns = [Answered(said, said, reply, None) for said, reply in zip(exchange.turns, replies, strict=True)]
    return partner.judge(exchange, 1, turns)


def test_there_are_turns_for_every_tool_and_for_none() -> None:
    held = Counter(exchange.category for exchange in CATALOGUE.exchanges)
    assert held == {"time": 14, "timer": 14, "dice": 14, "chat": 22, "after": 8}
    turns = [turn for exchange in CATALOGUE.exchanges for turn in exchange.turns]
    assert len(set(turns)) == len(turns)


def test_the_tools_are_those_of_the_page_and_answer_as_the_page_does() -> None:
    source = (Path(__file__).parent.parent / "client_js" / "demo" / "tools.js").read_text("utf-8")
    for exchange in CATALOGUE.exchanges:
        assert [tool.name for tool in exchange.tools] == ["get_time", "set_timer", "roll_dice"]
        assert all(f'"{tool.description}"' in source for tool in exchange.tools)
    by_turn = {exchange.turns[0]: exchange for exchange in CATALOGUE.exchanges}
    four = by_turn["Roll four dice with eight sides each, would you?"]
    assert json.loads(result_of(four, "roll_dice")) == {"rolled": [7, 2, 5, 8], "sum": 22}
    roast = by_turn["Set it to two hours, the roast is big."]
    assert json.loads(result_of(roast, "set_timer")) == {"set": True, "rings_in": "2 hours"}
    assert json.loads(result_of(by_turn["How late is it already?"], "get_time"))["time"] == "16:25"


def test_right_replies_pass_and_wrong_ones_fail() -> None:
    other = Called("lock_doors", "{}")
    for exchange in CATALOGUE.exchanges:
        name, right = exchange.name, right_replies(exchange)
        assert exchange.broken_by(right) == [], name
        assert exchange.broken_by([Reply(one.text, (*one.calls, other)) for one in right]) != [], name
        assert exchange.broken_by([Reply("", one.calls) for one in right]) != [] or name == "after 7", name
        if dict(partner.expected_calls(exchange)):
            assert exchange.broken_by([Reply(one.text) for one in right]) != [], name


@pytest.mark.parametrize(
    ("arguments", "right"),
    [({}, True), ({"dice": 1, "sides": 6}, True), ({"dice": 2}, False), ({"sides": 20}, False)],
)
def test_an_argument_may_be_missing_or_have_its_default(arguments: dict[str, int], right: bool) -> None:
    exchange = next(one for one in CATALOGUE.exchanges if one.name == "dice 1")
    replies = [Reply("You rolled 5.", (Called("roll_dice", json.dumps(arguments)),))]
    assert (exchange.broken_by(replies) == []) is right


def test_calls_are_counted() -> None:
    everything = [judged(exchange, right_replies(exchange)) for exchange in CATALOGUE.exchanges]
    assert partner.tool_uses(everything) == partner.ToolUses(52, 52, 52, 26, 26)
    silent = [judged(one.exchange, [Reply("") for _ in one.exchange.turns]) for one in everything]
    assert partner.tool_uses(silent) == partner.ToolUses(52, 0, 0, 26, 26)
    mute = [judged(one.exchange, [Reply("", turn.reply.calls) for turn in one.turns]) for one in everything]
    assert partner.tool_uses(mute) == partner.ToolUses(52, 52, 0, 26, 26)
    calls = (Called("get_time", "{}"),)
    eager = [judged(one.exchange, [Reply("It's 16:25.", calls) for _ in one.exchange.turns]) for one in everything]
    found = partner.tool_uses(eager)
    assert (found.left_alone, found.called, found.told) == (0, 18, 18)


def test_the_table_of_the_page_has_no_bars(capsys: pytest.CaptureFixture[str]) -> None:
    kept = tuple(judged(exchange, right_replies(exchange)) for exchange in CATALOGUE.exchanges)
    partner.report([partner.Run(partner.BARRED, "text", kept, None)], list(CATALOGUE.titles), uses=True)
    told = capsys.readouterr().out
    assert "52 of 52" in told
    assert "26 of 26" in told
    assert "bar:" not in told


def test_without_node_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    with pytest.raises(SystemExit, match="needs Node"):
        partner.page_tools([])
