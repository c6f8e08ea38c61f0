"""A machine or an event loop that stands still has heard no silence: nobody's turn ends by what nobody could hear."""

from __future__ import annotations

import pytest
from session_simulation import sound
from session_table import FRAME_S, Table, begin_reply

from voxlane.engine.api import Words
from voxlane.server.conversation.client_events import Audio
from voxlane.server.conversation.effects import Tick
from voxlane.server.conversation.server_events import (
    Duck,
    Hold,
    Interrupted,
    Release,
    SpeechStarted,
    SpeechStopped,
    UserTurn,
)
from voxlane.server.conversation.turns.floor import MUTE_S
from voxlane.server.conversation.turns.silence import LOOK_S

STANDSTILL_S = 3.0


def stand_still(table: Table, first: str = "tick") -> None:
    """Let time pass with nobody to see it, and something else than sound come first after it."""
    table.now += STANDSTILL_S
    table.feed(Tick() if first == "tick" else Words("s/hear1", 0, "", "tell me", 0.0, covered_s=1e6))


def burst(table: Table, kind: str, seconds: float) -> list:
    """Send sound faster than it was said: all that has waited meanwhile."""
    return [event for _ in range(round(seconds / FRAME_S)) for event in table.feed(Audio(sound(kind, 1)))]


@pytest.mark.parametrize("pause_s", [0.0, 0.1], ids=["in a word", "between words"])
@pytest.mark.parametrize("first", ["tick", "words"])
def test_a_standstill_does_not_end_what_somebody_is_saying(pause_s: float, first: str) -> None:
    table = Table()
    table.speak("v", 40)
    table.speak("s", round(pause_s / FRAME_S))
    stand_still(table, first)
    table.wait(0.02)  # where everything stood still, the microphone begins again, too
    burst(table, "v", STANDSTILL_S)
    table.speak("v", 10)
    assert table.session.answers.reply is None
    assert not table.of(SpeechStopped, UserTurn)
    table.speak("s", 100)
    table.work()
    assert [turn.text for turn in table.of(UserTurn)] == ["tell me a story"]
    assert len(table.of(SpeechStarted)) == len(table.of(SpeechStopped)) == 1


def test_sound_that_comes_after_a_standstill_counts_as_long_as_it_lasts() -> None:
    table = Table()
    table.speak("v", 40)
    stand_still(table)
    assert not burst(table, "v", 1.0)
    events = burst(table, "s", 2.0)
    (stopped,) = [event for event in events if isinstance(event, SpeechStopped)]
    assert stopped.at_s == pytest.approx(40 * FRAME_S + 1.0)


def test_a_standstill_does_not_take_a_voice_that_cuts_in_for_noise() -> None:
    table = Table()
    begin_reply(table)
    table.engine.transcripts[0] = "no I meant something else"
    table.speak("v", 3)
    stand_still(table)
    assert not table.of(Release)
    burst(table, "v", STANDSTILL_S)
    table.work()
    assert [type(event) for event in table.of(Duck, Hold, Release, Interrupted)] == [Duck, Hold, Interrupted]


@pytest.mark.parametrize("late_s", [0.0, 0.04, 0.3])
def test_a_microphone_that_is_off_ends_its_turn_however_slow_the_machine(late_s: float) -> None:
    table = Table()
    table.speak("v", 40)
    since, looks = table.now, 0
    while not table.of(SpeechStopped):
        assert looks < 2 * MUTE_S / LOOK_S
        table.now = table.session.wake_at(table.now) + late_s
        table.feed(Tick())
        looks += 1
    assert table.now - since >= MUTE_S
    assert late_s > LOOK_S or table.now - since < MUTE_S + 4 * LOOK_S, "timers are always a little late"
    (stopped,) = table.of(SpeechStopped)
    assert stopped.at_s == pytest.approx(40 * FRAME_S), "in the sound that came"
    table.work()
    assert len(table.of(UserTurn)) == 1
