"""What a silence means changes only where somebody is told to wake, and each meaning is found."""

from __future__ import annotations

import itertools

import pytest

from voxlane.server.conversation.turns.silence import LAST_WORDS_S, Meaning, meaning, turning_points
from voxlane.server.conversation.turns.user_turn import UserSpeech
from voxlane.server.conversation.values import SessionConfig

CONFIG = SessionConfig()
TEXTS = ("", "Mhm.", "Her.", "Stop.", "No, wait.", "What is the time?", "My number is 5 5 5", "And then we")


def spoken(text: str, *, held: bool, confirmed: bool = True, understood: bool = False) -> UserSpeech:
    turn = UserSpeech(1, "item", "asr", 0, 0, confirmed=confirmed, settled=text, silent=True, held=held)
    turn.understood = understood
    return turn


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("held", [False, True])
def test_nothing_changes_between_the_turning_points(text: str, held: bool) -> None:
    changed, end_wait_s = set(), 1.1
    for confirmed, understood, voice_s in itertools.product((False, True), (False, True), (0.3, 0.7, 1.2)):
        turn = spoken(text, held=held, confirmed=confirmed, understood=understood)
        points = turning_points(end_wait_s, CONFIG)
        for earlier, later in itertools.pairwise(step / 20 for step in range(80)):
            first = meaning(turn, earlier, voice_s, end_wait_s, CONFIG)
            same = first is meaning(turn, later, voice_s, end_wait_s, CONFIG)
            assert same or any(earlier < point <= later for point in points)
            changed.add(same)
    assert False in changed or text in ("Stop.", "No, wait.")


@pytest.mark.parametrize(
    ("text", "held", "silence_s", "voice_s", "what"),
    [
        ("What is the time?", False, 0.0, 1.0, Meaning.PAUSE),
        ("What is the time?", False, 4.0, 1.0, Meaning.END),
        ("No, wait.", True, 0.0, 0.5, Meaning.MEANT),
        ("Mhm.", True, 0.0, 0.5, Meaning.UNDECIDED),
        ("Mhm.", True, 0.4, 0.5, Meaning.NOTHING),
        ("", True, 0.8, 0.7, Meaning.WANTS_WORDS),
        ("", True, 0.8, 0.3, Meaning.NOTHING),
        ("", True, LAST_WORDS_S, 0.7, Meaning.NOTHING),
    ],
)
def test_each_meaning(text: str, held: bool, silence_s: float, voice_s: float, what: Meaning) -> None:
    assert meaning(spoken(text, held=held), silence_s, voice_s, 1.1, CONFIG) is what
