"""How long a silence ends a turn: by the words, the voice, and the person's habits."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxlane.server.conversation.turns.end_of_turn import (
    Habits,
    PauseEvidence,
    SentenceEnding,
    end_wait_s,
    ending,
    only_stops,
    worth_preparing,
)
from voxlane.server.conversation.turns.policies import Eagerness, TurnPolicy

ENDINGS: dict[SentenceEnding, list[str]] = {
    SentenceEnding.OPEN: [
        "I would like to book a table and", "So, um,", "I was thinking, uh", "Can you tell me the", "It is because",
        "First of all,", "I want to go to", "Well, you know...", "My name is…", "and so", "the thing is -",
        "let me see", "Can you tell me the?", "and I'm", "That is for my", "with the, um.",
    ],
    SentenceEnding.NUMBER: ["My number is 5 5 5", "Call 0171", "It's 42."],
    SentenceEnding.QUESTION: [
        "What time is it?", "Is that what it was?", 'Did he say "no"?', "Really? (laughs)",
    ],
    SentenceEnding.PLAIN: [
        "I think so.", "Tell a story.", "yes", "I want that as well.", "Book it for me", "", "...", "[hm]",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("text", "how"), [(text, how) for how, texts in ENDINGS.items() for text in texts])
def test_endings(text: str, how: SentenceEnding) -> None:
    assert ending(text) is how


def test_a_language_without_phrases_has_no_open_words() -> None:
    assert ending("this and", "tlh") is SentenceEnding.PLAIN


@given(st.text(max_size=60))
def test_any_text_has_an_ending(text: str) -> None:
    assert ending(text) in SentenceEnding


def test_words_voice_and_last_word_decide_together() -> None:
    policy = TurnPolicy()
    sure = PauseEvidence("Tell me a story.", p_words=0.95, p_sound=0.95)
    assert end_wait_s(sure, policy) == policy.min_wait_s
    for doubt in (
        replace(sure, p_words=0.1),
        replace(sure, p_sound=0.1),
        replace(sure, words="Tell me a story about the"),
        replace(sure, fresh=False),
    ):
        assert end_wait_s(doubt, policy) > policy.min_wait_s
    halves = replace(sure, words="Tell me a story about the.", p_words=0.02, p_sound=0.1)
    assert end_wait_s(halves, policy) > 2.0


def test_a_question_mark_alone_does_not_end_a_turn() -> None:
    policy = TurnPolicy()
    invented = PauseEvidence("So this works with mobile maps, can you?", p_words=0.05, p_sound=0.2)
    assert end_wait_s(invented, policy) == end_wait_s(replace(invented, words="It works with mobile maps"), policy)
    assert end_wait_s(invented, policy) > 1.6


def test_nothing_known_means_waiting_about_a_second() -> None:
    assert 0.6 < end_wait_s(PauseEvidence("Tell me a story."), TurnPolicy()) < 2.0


def test_manual_turns_end_when_the_client_says_so_or_are_too_long() -> None:
    policy = TurnPolicy(mode="manual", max_turn_s=30.0)
    done = PauseEvidence("Done.", p_words=1.0, p_sound=1.0, turn_s=29.9)
    assert end_wait_s(done, policy) == inf
    assert not worth_preparing(done, policy)
    assert end_wait_s(replace(done, turn_s=30.0), policy) == 0.0
    assert end_wait_s(PauseEvidence("and", turn_s=31.0), TurnPolicy(max_turn_s=30.0)) == 0.0


def test_only_a_sentence_that_seems_complete_is_answered_early() -> None:
    policy, whole = TurnPolicy(), PauseEvidence("Tell me a story.", p_words=0.95, p_sound=0.9)
    assert worth_preparing(whole, policy)
    assert not worth_preparing(whole, TurnPolicy(eagerness="low"))
    assert not worth_preparing(replace(whole, fresh=False), policy)
    assert not worth_preparing(replace(whole, p_words=0.02, p_sound=0.5), policy)
    assert not worth_preparing(replace(whole, words="Tell me about the", p_words=0.3), policy)


policies = st.builds(
    TurnPolicy,
    eagerness=st.sampled_from(get_args(Eagerness)),
    min_wait_s=st.floats(0.1, 0.5),
    max_wait_s=st.floats(0.5, 4.0),
)
probabilities = st.none() | st.floats(0, 1)
pauses = st.builds(
    PauseEvidence,
    st.sampled_from([text for texts in ENDINGS.values() for text in texts]),
    st.booleans(),
    probabilities,
    probabilities,
    st.floats(0, 200),
)


@given(policies, pauses, st.floats(0, 1), st.floats(0, 1), st.floats(0.9, 1.6))
def test_the_laws_of_waiting(
    policy: TurnPolicy, pause: PauseEvidence, less: float, more: float, patience: float
) -> None:
    less, more = sorted((less, more))
    for longer, shorter in (
        (replace(pause, p_words=less), replace(pause, p_words=more)),
        (replace(pause, p_sound=less), replace(pause, p_sound=more)),
        (replace(pause, fresh=False), replace(pause, fresh=True)),
    ):
        assert end_wait_s(shorter, policy, patience) <= end_wait_s(longer, policy, patience)
    assert end_wait_s(pause, policy, 0.9) <= end_wait_s(pause, policy, patience)
    if pause.turn_s < policy.max_turn_s:
        assert policy.min_wait_s <= end_wait_s(pause, policy, patience) <= policy.max_wait_s
    else:
        assert end_wait_s(pause, policy, patience) == 0.0


@given(pauses)
def test_the_more_eager_the_sooner(pause: PauseEvidence) -> None:
    pause = replace(pause, turn_s=1.0)
    low, medium, high = (end_wait_s(pause, TurnPolicy(eagerness=how)) for how in ("low", "medium", "high"))
    assert high <= medium <= low
    if pause.fresh:
        assert high < medium < low


@given(st.lists(st.one_of(st.floats(0, 10), st.none()), max_size=30))
def test_patience_stays_within_bounds_and_grows_with_cut_offs(pauses: list[float | None]) -> None:
    habits = Habits()
    for pause in pauses:
        before = habits.patience
        if pause is None:
            habits.cut_off()
            assert habits.patience >= before
        else:
            habits.paused(pause)
        assert 0.9 <= habits.patience <= Habits.MOST


def test_a_person_who_pauses_long_is_given_more_time() -> None:
    slow, quick = Habits(), Habits()
    for _ in range(8):
        slow.paused(1.4)
        quick.paused(0.35)
    assert slow.patience > 1.3
    assert quick.patience <= 1.0


def test_a_person_who_searches_for_words_is_given_the_time_of_the_last_pauses() -> None:
    def wait_s(pauses: int, longest_s: float) -> float:
        evidence = PauseEvidence("I have a question about the train.", True, 0.99, 0.95, 4.0, pauses, longest_s)
        return end_wait_s(evidence, TurnPolicy())

    assert wait_s(1, 0.6) == wait_s(0, 0.0) == 0.25
    assert wait_s(2, 0.6) == pytest.approx(0.78)
    assert wait_s(5, 3.0) == 1.0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Stop, that is enough.", True),
        ("Wait.", True),
        ("Hold on a second.", True),
        ("Stop, that is enough. What is the capital of France?", False),
        ("Wait, what?", False),
        ("Stop the music in the kitchen at nine o'clock.", False),
        ("Please don't stop.", False),
        ("", False),
    ],
)
def test_after_a_bare_stop_the_person_has_time_to_say_what_they_want(words: str, expected: bool) -> None:
    sure = PauseEvidence(words, p_words=0.999, p_sound=0.99)
    assert only_stops(words) is expected
    assert (end_wait_s(sure, TurnPolicy(eagerness="auto")) >= 0.8) is expected
