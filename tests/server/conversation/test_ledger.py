"""What was heard: words against samples, whatever order of adding, sending, playing and cutting."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxlane.engine.api import SpokenWord
from voxlane.server.conversation.replies.ledger import Ledger, LedgerError

TEXT = "Well, that is $4.50 today. Good?"
FIRST = (SpokenWord(0, 5, 10, 30), SpokenWord(6, 10, 40, 60), SpokenWord(11, 13, 60, 70))
PRICE = (SpokenWord(14, 19, 100, 120), SpokenWord(14, 19, 120, 160), SpokenWord(20, 26, 160, 200))
LAST = (SpokenWord(27, 32, 210, 230),)


def told(*, sent: int, played: int) -> Ledger:
    ledger = Ledger()
    ledger.add(0, 100, FIRST)
    ledger.add(100, 100, PRICE)
    ledger.add(200, 50, LAST)
    ledger.sent(sent)
    ledger.played(played)
    return ledger


@pytest.mark.parametrize(
    ("played", "heard"),
    [
        (0, ""),
        (19, ""),
        (20, "Well,"),
        (49, "Well,"),
        (50, "Well, that"),
        (64, "Well, that"),
        (65, "Well, that is"),
        (129, "Well, that is"),  # half of "four dollars fifty" lies at 130
        (130, "Well, that is $4.50"),
        (180, "Well, that is $4.50 today."),
        (219, "Well, that is $4.50 today."),
        (220, TEXT),
        (250, TEXT),
        (10_000, TEXT),
    ],
)
def test_a_word_is_heard_with_half_of_its_sound(played: int, heard: str) -> None:
    ledger = told(sent=250, played=played)
    assert ledger.heard_text(TEXT) == heard
    assert ledger.heard_chars(ledger.played_samples) == len(heard)


def test_nothing_beyond_what_was_sent_is_heard() -> None:
    ledger = told(sent=60, played=250)
    assert ledger.played_samples == 60
    assert ledger.heard_text(TEXT) == "Well, that"
    assert ledger.heard_chars(250) == len("Well, that")
    assert ledger.unplayed_samples == 0


def test_an_ack_never_takes_back() -> None:
    ledger = told(sent=250, played=130)
    ledger.played(20)
    ledger.played(-5)
    assert ledger.played_samples == 130
    assert ledger.unplayed_samples == 120


def test_truncation_settles_what_was_played() -> None:
    ledger = told(sent=250, played=20)
    assert not ledger.truncated
    ledger.truncate(70)
    ledger.played(250)
    ledger.truncate(200)
    assert ledger.truncated
    assert ledger.played_samples == 70
    assert ledger.heard_text(TEXT) == "Well, that is"


def test_truncation_does_not_unsay_what_was_acked() -> None:
    ledger = told(sent=250, played=130)
    ledger.truncate(10)
    assert ledger.heard_text(TEXT) == "Well, that is $4.50"


def test_truncation_goes_no_further_than_what_was_sent() -> None:
    ledger = told(sent=60, played=0)
    ledger.truncate(10_000)
    ledger.sent(100)
    ledger.played(160)
    assert (ledger.played_samples, ledger.sent_samples, ledger.added_samples) == (60, 160, 250)


@pytest.mark.parametrize(("offset", "what"), [(101, "a gap: .* 101, .* 100"), (99, "a repeat"), (0, "a repeat")])
def test_samples_follow_one_another(offset: int, what: str) -> None:
    ledger = Ledger()
    ledger.add(0, 100, FIRST)
    with pytest.raises(LedgerError, match=what):
        ledger.add(offset, 100, ())
    assert ledger.added_samples == 100


@pytest.mark.parametrize(
    "words",
    [
        (SpokenWord(0, 3, 100, 110),),  # said before
        (SpokenWord(14, 14, 100, 110),),  # no word at all
        (SpokenWord(20, 26, 100, 110), SpokenWord(14, 19, 110, 120)),  # back in the text
        (SpokenWord(14, 26, 100, 110), SpokenWord(14, 19, 110, 120)),  # back inside a word
        (SpokenWord(14, 19, 100, 120), SpokenWord(20, 26, 110, 130)),  # back in time
        (SpokenWord(14, 19, 120, 110),),
        (SpokenWord(14, 19, 69, 110),),  # before the last word ends
        (SpokenWord(14, 19, 190, 201),),  # behind them
    ],
)
def test_words_follow_one_another_up_to_the_last_sample(words: tuple[SpokenWord, ...]) -> None:
    ledger = Ledger()
    ledger.add(0, 100, FIRST)
    with pytest.raises(LedgerError, match="a word"):
        ledger.add(100, 100, words)
    ledger.sent(100)
    assert ledger.heard_chars(100) == 13  # nothing of what was refused is there
    ledger.add(100, 100, PRICE)


def test_a_word_may_begin_in_samples_before() -> None:
    ledger = Ledger()
    ledger.add(0, 100, FIRST)
    ledger.add(100, 50, (SpokenWord(14, 19, 80, 140),))
    ledger.sent(150)
    assert (ledger.heard_chars(109), ledger.heard_chars(110)) == (13, 19)


@pytest.mark.parametrize("samples", [-1, 101])
def test_only_what_exists_is_sent(samples: int) -> None:
    ledger = Ledger()
    ledger.add(0, 100, ())
    with pytest.raises(LedgerError):
        ledger.sent(samples)
    with pytest.raises(LedgerError):
        ledger.add(100, -1, ())


# ---- laws


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    pieces: tuple[tuple[int, int, tuple[SpokenWord, ...]], ...]
    ends: frozenset[int]


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    text, offset, pieces, ends, at = "", 0, [], {0}, 0
    for _ in range(draw(st.integers(0, 5))):
        words, at = [], draw(st.sampled_from([at, offset]))  # told late, or with its own samples
        for _ in range(draw(st.integers(0, 5))):
            start, text = len(text), text + draw(st.sampled_from(["a", "bc", "def,", "$4"]))
            ends.add(len(text))
            for _ in range(draw(st.sampled_from([1, 1, 2]))):  # sounds of one written word
                begin = at + draw(st.integers(0, 20))
                at = begin + draw(st.integers(0, 40))
                words.append(SpokenWord(start, len(text), begin, at))
            text += " "
        samples = max(at - offset, 0) + draw(st.integers(0, 20))
        pieces.append((offset, samples, tuple(words)))
        offset += samples
    return Reply(text, tuple(pieces), frozenset(ends))


STEPS = st.lists(st.tuples(st.sampled_from(["add", "sent", "played", "truncate"]), st.integers(0, 400)), max_size=40)


@given(replies(), STEPS)
def test_heard_text_is_a_prefix_of_whole_words_that_only_grows(reply: Reply, steps: list[tuple[str, int]]) -> None:
    ledger, pieces, heard, played = Ledger(), list(reply.pieces), "", 0
    for step, number in steps:
        match step:
            case "add" if pieces:
                ledger.add(*pieces.pop(0))
            case "sent":
                ledger.sent(min(number, ledger.added_samples - ledger.sent_samples))
            case "played":
                ledger.played(number)
            case "truncate" if number % 4 == 0:
                ledger.truncate(number)
        before, heard = heard, ledger.heard_text(reply.text)
        assert reply.text.startswith(heard)
        assert len(heard) in reply.ends
        assert heard.startswith(before)
        assert played <= ledger.played_samples <= ledger.sent_samples <= ledger.added_samples
        played = ledger.played_samples


@given(replies(), st.integers(0, 400), st.integers(0, 400))
def test_more_sound_is_never_less_text(reply: Reply, some: int, more: int) -> None:
    ledger = Ledger()
    for piece in reply.pieces:
        ledger.add(*piece)
    ledger.sent(ledger.added_samples // 2)
    some, more = sorted((some, more))
    assert ledger.heard_chars(some) <= ledger.heard_chars(more)
    assert ledger.heard_chars(more) <= ledger.heard_chars(ledger.sent_samples)
    for _offset, _samples, words in reply.pieces:
        for first in {word.start: word for word in reversed(words)}.values():  # nothing that has not begun to sound
            assert first.start_sample <= ledger.sent_samples or first.end > ledger.heard_chars(more)


@given(replies())
def test_all_that_was_played_was_heard(reply: Reply) -> None:
    ledger = Ledger()
    for piece in reply.pieces:
        ledger.add(*piece)
    ledger.sent(ledger.added_samples)
    ledger.played(ledger.added_samples)
    assert ledger.heard_text(reply.text) == reply.text.rstrip()
