"""The account of turns: each is closed once, with its stages, its costs and no words."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from voxlane.server.conversation.server_events import (
    BargeIn,
    Fault,
    Latency,
    ReplyStarted,
    ReplyText,
    SpeechStarted,
    SpeechStopped,
    Thought,
    ToolCalled,
    TurnDone,
    UserTurn,
)
from voxlane.server.watching.traces import segments
from voxlane.server.watching.turn_account import MOST_OPEN, MS, TurnAccount, TurnRecord

S = 1000 * MS


class Clock:
    def __init__(self) -> None:
        self.now_ns = 100 * S

    def __call__(self) -> int:
        return self.now_ns

    def pass_ms(self, ms: float) -> None:
        self.now_ns += int(ms * MS)


def spoken_turn(account: TurnAccount, clock: Clock) -> TurnRecord:
    """Two seconds of speech, an end after 300 ms of silence, a reply of 1.5 s."""
    account.follow(SpeechStarted(1, 0.0))
    clock.pass_ms(2300)
    account.follow(SpeechStopped(1, 2.0))
    clock.pass_ms(50)
    account.follow(UserTurn(1, "what is the time"))
    account.follow(ReplyStarted(1, 1, "r1"))
    for piece in ("It", " is ", "ni", "ne."):
        account.follow(ReplyText(1, piece))
    account.follow(Thought(1, "stop", 120, 100, 4))
    clock.pass_ms(1500)
    account.follow(Latency(1, 300.0, 350.0, 320.0, 420.0, 425.0))
    record = account.follow(TurnDone(1, "done"))
    assert record is not None
    return record


def test_a_spoken_turn() -> None:
    clock = Clock()
    account = TurnAccount(clock)
    record = spoken_turn(account, clock)
    assert (record.number, record.end, record.words, record.reply_words) == (1, "done", 4, 3)
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (120, 100, 4)
    assert record.began_ns == 100 * S
    assert record.last_sound_ns == 102 * S  # SpeechStopped came 300 ms after it
    assert record.ended_ns == 100 * S + 3850 * MS
    assert dict(record.stages) == {
        "turn_end": 300.0, "words": 350.0, "first_token": 320.0, "first_sample": 420.0, "first_frame": 425.0,
    }  # fmt: skip
    assert account.turns == 1
    assert account.leave() == []


def test_the_spans_of_a_turn_follow_one_another_as_in_the_latency_bar() -> None:
    clock = Clock()
    found = segments(spoken_turn(TurnAccount(clock), clock))
    # The first token was there before the last words: a reply may be prepared.
    assert [name for name, _, _ in found] == [
        "speech", "turn_end", "first_token", "words", "first_sample", "first_frame", "playing",
    ]  # fmt: skip
    for (_, _, end), (_, start, _) in itertools.pairwise(found):
        assert end == start
    assert found[0][1] == 100 * S
    assert found[-1][2] == 100 * S + 3850 * MS


def test_a_record_holds_numbers_and_names_of_ours_alone() -> None:
    clock = Clock()
    record = spoken_turn(TurnAccount(clock), clock)
    assert "nine" not in repr(record)
    assert "time" not in repr(dataclasses.astuple(record))


def test_a_typed_turn_begins_where_it_was_typed() -> None:
    clock = Clock()
    account = TurnAccount(clock)
    account.follow(UserTurn(1, "hello"))
    account.follow(ReplyStarted(1, 1, "r1"))
    clock.pass_ms(400)
    account.follow(Latency(1, 0.0, 0.0, 100.0, 200.0, 210.0))
    record = account.follow(TurnDone(1, "done"))
    assert record is not None
    assert record.last_sound_ns == record.began_ns == 100 * S


def test_a_greeting_has_no_last_sound_and_no_stages() -> None:
    account = TurnAccount(Clock())
    account.follow(ReplyStarted(1, 1, "r1"))
    record = account.follow(TurnDone(1, "done"))
    assert record is not None
    assert (record.last_sound_ns, record.stages, segments(record)) == (None, (), [])


def test_tools_faults_and_interruptions_are_counted_with_their_turn() -> None:
    account = TurnAccount(Clock())
    account.follow(UserTurn(1, "one"))
    account.follow(ReplyStarted(1, 1, "r1"))
    account.follow(ToolCalled(1, "c1", "secret_tool", "{}"))
    account.follow(ReplyStarted(2, 1, "r2"))  # the answer to the tool's result
    account.follow(BargeIn(2, 40.0, 600.0, True))
    account.follow(Fault("engine_failed", "…", retryable=True, epoch=2))
    account.follow(Fault("unknown_call", "…", retryable=False))  # of no reply
    account.follow(Thought(1, "stop", 10, 0, 5))
    account.follow(Thought(2, "cancelled", 20, 10, 7))
    record = account.follow(TurnDone(1, "interrupted"))
    assert record is not None
    assert (record.tools, record.barge_ins, record.faults) == (1, 1, 1)
    assert (record.prompt_tokens, record.output_tokens) == (30, 12)
    assert account.interruptions == 1


def test_an_aside_belongs_to_no_turn() -> None:
    account = TurnAccount(Clock())
    account.follow(ReplyStarted(9, 0, ""))
    account.follow(ReplyText(9, "aside"))
    assert account.leave() == []


def test_open_turns_are_closed_when_the_conversation_ends() -> None:
    account = TurnAccount(Clock())
    account.follow(UserTurn(1, "bye"))
    (record,) = account.leave()
    assert record.end == "left"
    assert account.leave() == []


def test_open_turns_are_bounded() -> None:
    account = TurnAccount(Clock())
    for number in range(1, 10 * MOST_OPEN):
        account.follow(SpeechStarted(number, 0.0))
    assert len(account.leave()) == MOST_OPEN


@pytest.mark.parametrize(("pieces", "words"), [((), 0), (("a b",), 2), (("a", " b", "c "), 2), (("a ", "", "b"), 2)])
def test_words_are_counted_across_pieces(pieces: tuple[str, ...], words: int) -> None:
    account = TurnAccount(Clock())
    account.follow(ReplyStarted(1, 1, "r1"))
    for piece in pieces:
        account.follow(ReplyText(1, piece))
    (record,) = account.leave()
    assert record.reply_words == words
