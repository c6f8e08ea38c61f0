"""Who has the floor: utterances that take it and those that leave it, and how long a silence is an end."""

from __future__ import annotations

from math import inf
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxlane.server.conversation.turns import (
    PHRASEBOOKS,
    BargePolicy,
    Eagerness,
    SentenceEnding,
    TurnPolicy,
    Verdict,
    eager_wait_s,
    end_wait_s,
    ending,
    judge,
    leaves_floor,
    spell,
    stops,
)

POLICY = BargePolicy()

BACKCHANNELS = [
    "Mhm.", "Mm-hmm.", "Mm-hm", "mm hmm", "Mmm", "M-hm", "Hm.", "Hmm...", "Hmmmm", "Uh-huh.", "Uh huh", "Uhum.",
    "Um-hum", "Ah.", "Ahh", "Aha!", "Oh.", "Ooh!", "Oh, wow.", "Huh.", "Eh", "Yeah,", "Yeah.", "Yeah yeah yeah.",
    "Yeaah", "Yep", "Yup.", "Yes.", "Yes, yes.", "Right.", "Right, right.", "OK.", "Okay, okay.", "Ok", "I see.",
    "I see, yeah.",
    "Got it.", "Sure.", "Of course.", "All right.", "Alright", "That’s right.", "That's true", "Makes sense.",
    "Yeah, that makes sense.",
    "Fair enough.", "Exactly!", "Absolutely", "Really?", "Oh, really?", "No way!", "Interesting.", "Cool", "Nice.",
    "Wow!",
    "Go on.", "Keep going", "Ha ha ha.", "Haha", "Hahaha!", "Heh.", "He he", "[laughter]", "[Laughs] Yeah.", "(coughs)",
    "(sighs", "*sigh*", "<noise>", "♪♪", "Phew.", "Ugh", "Pfft", "Um.", "Uh,", "Er", "Well,", "So", "And", "mm-mm", "a",
    "Yeah. Mm-hmm. Right. Okay.", "Uh-huh, uh-huh, I see.",
]  # fmt: skip

BRIEF_CLAIMS = [
    "No.", "No, no.", "What?", "Yes, but", "Yeah, but what about Tuesday?", "Okay, next.", "Right, so how much is it?",
    "Sorry,", "Actually", "Hello?", "That's wrong.", "Tuesday", "Make it five", "Uh, I don't think so.", "Nope",
    "Thanks, bye.", "Hmm, why?", "Go back.", "5", "Five.",
]  # fmt: skip

CLAIMS = [
    "I", "The", "Can you", "Tell me more about", "I see a problem.", "Mhm, and the price?", "Is it?", "ja", "да",
    "Really good idea",
]  # fmt: skip

STOPS = [
    "Stop.", "stop", "STOP!", "Please stop.", "Stop it", "Wait.", "Wait, wait, wait.", "Wait a second", "Hold on.",
    "Okay, hold on a moment", "Hang on,", "Yeah, stop.", "Mm, wait", "Excuse me", "That’s enough", "Never mind.",
    "Shut up", "Just a second.", "Hold-on",
]  # fmt: skip


def judged(text: str = "", *, confirmed: bool = True, speech: float = 0.4, silence: float = 0.0) -> Verdict:
    return judge(text, confirmed, speech, silence, False, POLICY)


@pytest.mark.parametrize("text", BACKCHANNELS)
def test_backchannels_never_take_the_floor(text: str) -> None:
    assert leaves_floor(text)
    for speech in (0.1, 0.5, 1.0):
        assert judged(text, speech=speech) is Verdict.WAIT
    assert judged(text, silence=POLICY.wordless_release_s) is Verdict.RELEASE
    if spell(text):
        assert judged(text, speech=30.0) is Verdict.WAIT
        assert judged(text, silence=POLICY.backchannel_release_s) is Verdict.RELEASE
        assert judged(text, speech=30.0, silence=POLICY.backchannel_release_s) is Verdict.RELEASE


@pytest.mark.parametrize("text", [*BRIEF_CLAIMS, *CLAIMS])
def test_other_words_take_it_once_they_are_speech(text: str) -> None:
    assert judged(text, speech=POLICY.brief_s) is Verdict.COMMIT
    assert judged(text, speech=POLICY.brief_s, silence=10.0) is Verdict.COMMIT
    assert judged(text, speech=POLICY.brief_s, confirmed=False) is Verdict.WAIT
    assert judged(text, speech=POLICY.brief_s, confirmed=False, silence=POLICY.release_s) is Verdict.RELEASE


@pytest.mark.parametrize("text", BRIEF_CLAIMS)
def test_some_words_take_it_alone(text: str) -> None:
    assert judged(text, speech=0.25) is Verdict.COMMIT


@pytest.mark.parametrize("text", ["Her.", "Tell me.", "I dunno.", "Ma'am.", "Of her.", "If I,", "Eh-hoi!", "The man."])
def test_what_a_recogniser_makes_of_a_hum_does_not_take_it(text: str) -> None:
    assert judged(text, speech=0.5) is Verdict.WAIT
    assert judged(text, speech=0.5, silence=POLICY.release_s) is Verdict.RELEASE
    assert judged(text, speech=0.7) is Verdict.COMMIT


@pytest.mark.parametrize("text", STOPS)
def test_a_stop_phrase_takes_it_at_once(text: str) -> None:
    assert stops(text, POLICY)
    assert judged(text, confirmed=False, speech=0.0) is Verdict.COMMIT
    assert judge(text, False, 0.1, 5.0, True, POLICY) is Verdict.COMMIT


@pytest.mark.parametrize("text", [*BACKCHANNELS, "Stopping", "waiter", "nonstop service", "on hold", "fair enough", ""])
def test_what_is_no_stop_phrase(text: str) -> None:
    assert not stops(text, POLICY)


def test_stop_phrases_can_be_chosen() -> None:
    policy = BargePolicy(stop_phrases=("Computer, halt!", ""))
    assert judge("okay computer halt", False, 0.1, 0, False, policy) is Verdict.COMMIT
    assert judge("wait", False, 0.1, 0, False, policy) is Verdict.WAIT
    assert judge("", False, 0.1, 0, False, policy) is Verdict.WAIT
    assert not stops("stop", BargePolicy(stop_phrases=()))


def test_speech_that_lasts_takes_it_without_words() -> None:
    assert judged(speech=POLICY.lasting_s - 0.01) is Verdict.WAIT
    assert judged(speech=POLICY.lasting_s) is Verdict.COMMIT
    assert judged(speech=10.0, confirmed=False) is Verdict.WAIT


def test_silence_and_noise_give_it_back() -> None:
    assert judged(confirmed=False, silence=POLICY.release_s - 0.01) is Verdict.WAIT
    assert judged(confirmed=False, silence=POLICY.release_s) is Verdict.RELEASE
    assert judged(silence=POLICY.release_s) is Verdict.WAIT  # its words may still come
    assert judged(silence=POLICY.wordless_release_s) is Verdict.RELEASE
    assert judge("", False, 0.2, 0.0, True, POLICY) is Verdict.RELEASE
    assert judge("The", False, 0.2, 0.0, True, POLICY) is Verdict.RELEASE


def test_of_an_unknown_language_all_words_are_words() -> None:
    policy = BargePolicy(language="tlh")
    assert judge("mhm", True, 0.3, 0.0, False, policy) is Verdict.COMMIT
    assert judge("stop", False, 0.3, 0.0, False, policy) is Verdict.WAIT
    assert judge("", True, 0.3, 1.0, False, policy) is Verdict.RELEASE
    assert ending("this and", "tlh") is SentenceEnding.PLAIN


@pytest.mark.parametrize("language", ["en", "EN", "en-GB", "en_US"])
def test_a_region_does_not_change_the_language(language: str) -> None:
    assert leaves_floor("mhm", language)


def test_the_lists_are_spelt_as_transcripts_are() -> None:
    for book in PHRASEBOOKS.values():
        for phrase in (*book.stop, *book.backchannels, *book.claims, *book.open, *book.closed):
            assert " ".join(spell(phrase)) == phrase


texts = st.lists(st.sampled_from([*BACKCHANNELS, *BRIEF_CLAIMS, *CLAIMS, *STOPS]), max_size=3).map(" ".join)
seconds = st.floats(0, 5)


@given(texts, st.booleans(), seconds, seconds, seconds)
def test_a_held_reply_does_not_wait_for_ever(
    text: str, confirmed: bool, speech: float, less: float, more: float
) -> None:
    less, more = sorted((less, more))
    early, late = (judge(text, confirmed, speech, silence, False, POLICY) for silence in (less, more))
    assert judge(text, confirmed, speech, 1.0 + more, False, POLICY) is not Verdict.WAIT
    assert early in (Verdict.WAIT, late)
    assert judge(text, confirmed, speech, less, True, POLICY) is not Verdict.WAIT


@given(st.lists(st.sampled_from(BACKCHANNELS), max_size=6), st.sampled_from([" ", ", ", ". ", "\n"]))
def test_any_number_of_backchannels_is_one(utterances: list[str], between: str) -> None:
    assert leaves_floor(between.join(f"{text})" if text == "(sighs" else text for text in utterances))


@given(st.text(max_size=60))
def test_any_text_is_judged(text: str) -> None:
    assert judged(text) in Verdict
    assert ending(text) in SentenceEnding


@pytest.mark.parametrize("letter", ["m", "h", "a", "ha", "hm", "mh", "he", "ya", "uh"])
def test_a_long_murmur_is_judged_in_no_time(letter: str) -> None:
    # Catastrophic backtracking would take longer than the universe has.
    assert judged(letter * 5000 + "x", speech=1.0) is Verdict.COMMIT


# ---- end of turn

ENDINGS: dict[SentenceEnding, list[str]] = {
    SentenceEnding.OPEN: [
        "I would like to book a table and", "So, um,", "I was thinking, uh", "Can you tell me the", "It is because",
        "First of all,", "I want to go to", "Well, you know...", "My name is…", "and so", "the thing is -",
        "let me see",
        "and I'm", "That is for my", "with the, um.",
    ],
    SentenceEnding.NUMBER: ["My number is 5 5 5", "Call 0171", "It's 42."],
    SentenceEnding.QUESTION: [
        "What time is it?", "Is that what it is for?", 'Did he say "no"?', "And?", "Really? (laughs)",
    ],
    SentenceEnding.PLAIN: [
        "I think so.", "Tell a story.", "yes", "I want that as well.", "Book it for me", "", "...", "[hm]",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("text", "how"), [(text, how) for how, texts in ENDINGS.items() for text in texts])
def test_endings(text: str, how: SentenceEnding) -> None:
    assert ending(text) is how


def test_words_and_probability_decide_together() -> None:
    policy = TurnPolicy()
    question, plain, number, half = (
        end_wait_s(0.6, policy, words)
        for words in ("What time is it?", "Tell me a story.", "My number is 5 5", "Tell me about the")
    )
    assert policy.min_wait_s < question < plain < number < half < policy.max_wait_s
    assert end_wait_s(None, policy, "Tell me a story.") == plain
    assert end_wait_s(1.0, policy, "Tell me a story.") == policy.min_wait_s
    assert end_wait_s(0.0, policy, "Tell me a story.") > 2.0


def test_manual_turns_end_when_the_client_says_so_or_are_too_long() -> None:
    policy = TurnPolicy(mode="manual", max_turn_s=30.0)
    assert end_wait_s(1.0, policy, "Done.", 29.9) == inf
    assert eager_wait_s(1.0, policy, "Done.", 29.9) == inf
    assert end_wait_s(0.0, policy, "and", 30.0) == 0.0
    assert end_wait_s(0.0, TurnPolicy(max_turn_s=30.0), "and", 31.0) == 0.0


def test_only_a_sentence_that_seems_complete_is_answered_eagerly() -> None:
    policy = TurnPolicy()
    for words, p_end in (("What time is it?", None), ("Tell me a story.", 0.9)):
        assert 0 < eager_wait_s(p_end, policy, words) < policy.min_wait_s
    for words, p_end in (("Tell me a story.", 0.2), ("Tell me about the", 1.0)):
        assert eager_wait_s(p_end, policy, words) == end_wait_s(p_end, policy, words)
    careful = TurnPolicy(eagerness="low")
    assert eager_wait_s(1.0, careful, "Done.") == end_wait_s(1.0, careful, "Done.")


policies = st.builds(
    TurnPolicy,
    eagerness=st.sampled_from(get_args(Eagerness)),
    min_wait_s=st.floats(0.1, 0.5),
    max_wait_s=st.floats(0.5, 4.0),
)
utterances = st.sampled_from([text for texts in ENDINGS.values() for text in texts])
probabilities = st.floats(-0.5, 1.5)


@given(policies, utterances, probabilities, probabilities, st.floats(0, 200))
def test_the_laws_of_waiting(policy: TurnPolicy, words: str, less: float, more: float, turn_s: float) -> None:
    less, more = sorted((less, more))
    longer, shorter = (end_wait_s(p_end, policy, words, turn_s) for p_end in (less, more))
    assert shorter <= longer
    assert eager_wait_s(more, policy, words, turn_s) <= shorter
    if turn_s < policy.max_turn_s:
        assert policy.min_wait_s <= shorter
        assert longer <= policy.max_wait_s
    else:
        assert longer == 0.0


@given(utterances, st.none() | st.floats(0, 1))
def test_the_more_eager_the_sooner(words: str, p_end: float | None) -> None:
    low, medium, high = (end_wait_s(p_end, TurnPolicy(eagerness=how), words) for how in ("low", "medium", "high"))
    assert high < medium < low
