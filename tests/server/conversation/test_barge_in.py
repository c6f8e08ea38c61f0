"""Who has the floor: utterances that take it and utterances that leave it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxlane.server.conversation.turns.barge_in import Verdict, judge, stops
from voxlane.server.conversation.turns.phrases import PHRASEBOOKS, leaves_floor, spell
from voxlane.server.conversation.turns.policies import BargePolicy

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
    assert judged(text, speech=0.45) is Verdict.WAIT
    assert judged(text, speech=0.45, silence=POLICY.release_s) is Verdict.RELEASE
    assert judged(text, speech=0.7) is Verdict.COMMIT


@pytest.mark.parametrize(("strong_s", "verdict"), [(0.45, Verdict.WAIT), (0.55, Verdict.COMMIT)])
def test_a_voice_is_brief_by_its_strong_sound(strong_s: float, verdict: Verdict) -> None:
    assert judge("Her.", True, 0.7, 0.0, False, POLICY, strong_s) is verdict
    assert judge("No.", True, 0.7, 0.0, False, POLICY, strong_s) is Verdict.COMMIT
    assert judge("", True, POLICY.lasting_s, 0.0, False, POLICY, strong_s) is Verdict.COMMIT  # lasts, faintly


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


@pytest.mark.parametrize("letter", ["m", "h", "a", "ha", "hm", "mh", "he", "ya", "uh"])
def test_a_long_murmur_is_judged_in_no_time(letter: str) -> None:
    # Catastrophic backtracking would take longer than the universe has.
    assert judged(letter * 5000 + "x", speech=1.0) is Verdict.COMMIT
