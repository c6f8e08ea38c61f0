"""A person who is too faint is told so once: after onsets that were dropped, or turns without words."""

from __future__ import annotations

import pytest
from session_table import Table

from voxlane.server.conversation.hearing.audibility import Audibility
from voxlane.server.conversation.server_events import HardToHear, TurnDone


def murmur(table: Table) -> None:
    """Send something like a voice that is dropped, then silence."""
    table.speak("n", 3)
    table.speak("s", 10)


def speak_wordlessly(table: Table) -> None:
    """Send a turn in which the recogniser finds no words."""
    table.engine.transcripts[0] = ""
    table.speak("v", 40)
    table.speak("s", 150)
    table.work()


@pytest.mark.parametrize("miss", [murmur, speak_wordlessly])
def test_it_is_told_at_the_third_miss_and_never_again(miss) -> None:
    table = Table()
    table.session._floor._ear.faint = True
    for number in range(1, 8):
        miss(table)
        assert len(table.of(HardToHear)) == (number >= Audibility.TIMES)
    if miss is speak_wordlessly:
        assert len(table.of(TurnDone)) == 7


@pytest.mark.parametrize("miss", [murmur, speak_wordlessly])
def test_it_is_not_told_of_a_voice_that_is_loud_enough(miss) -> None:
    table = Table()
    for _ in range(5):
        miss(table)
    assert not table.of(HardToHear)


def test_it_is_not_told_if_words_are_understood() -> None:
    table = Table()
    table.session._floor._ear.faint = True
    for _ in range(5):
        table.speak("v", 40)
        table.speak("s", 60)
        table.work()
    assert not table.of(HardToHear)
