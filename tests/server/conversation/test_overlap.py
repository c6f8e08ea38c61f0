"""What a voice does to a reply before its verdict: lowered for a murmur, on hold for more, and back when it is over."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from voxlane.server.conversation.turns.overlap import Overlap, Playing, VoiceSoFar, playing
from voxlane.server.conversation.turns.policies import BargePolicy

POLICY = BargePolicy()
MURMURS = ["", "Mhm.", "Yeah, right.", "[laughter]"]
WORDS = ["No.", "What about", "Her."]


@pytest.mark.parametrize(
    ("spoken_s", "faded_s", "excess_db", "text", "how"),
    [
        (0.03, 0.0, -5.0, "", Playing.DUCKED),  # the first sound of any voice
        (0.03, 0.0, 15.0, "", Playing.HELD),  # of one that shouts
        (0.4, 0.04, 0.0, "", Playing.DUCKED),  # a syllable's closure
        (0.4, 0.1, 0.0, "", Playing.FULL),  # a murmur that is over
        (0.4, 0.1, 0.0, "Her.", Playing.FULL),  # whatever a recogniser writes for it
        (0.55, 0.0, 0.0, "", Playing.HELD),  # a voice that goes on
        (0.55, 0.0, 0.0, "Okay.", Playing.DUCKED),
        (0.8, 0.0, 0.0, "Yeah, right.", Playing.DUCKED),
        (0.8, 0.1, 0.0, "Yeah, right.", Playing.FULL),
        (0.8, 0.0, 0.0, "Yeah, but", Playing.HELD),
        (1.1, 0.0, 0.0, "Okay,", Playing.HELD),  # more follows than is known
        (1.1, 0.1, 0.0, "Yeah. Right. I see.", Playing.FULL),
        (0.8, 0.3, 0.0, "", Playing.HELD),  # too long for a murmur: its words decide
    ],
)
def test_how_a_reply_is_played(spoken_s: float, faded_s: float, excess_db: float, text: str, how: Playing) -> None:
    assert playing(VoiceSoFar(spoken_s, faded_s, excess_db, text), POLICY) is how


VOICES = st.builds(
    VoiceSoFar, st.floats(0, 5), st.floats(0, 5), st.floats(-60, 30), st.sampled_from([*MURMURS, *WORDS])
)


@given(VOICES)
def test_every_voice_stops_a_reply_that_is_to_pause(voice: VoiceSoFar) -> None:
    assert playing(voice, BargePolicy(hold="pause")) is Playing.HELD


@given(VOICES)
def test_a_sounding_voice_never_leaves_the_reply_at_full_loudness(voice: VoiceSoFar) -> None:
    if voice.faded_s < POLICY.duck_release_s:
        assert playing(voice, POLICY) is not Playing.FULL


@given(VOICES)
def test_a_held_reply_is_not_lowered_again_but_for_murmurs(voice: VoiceSoFar) -> None:
    if playing(voice, POLICY, held=True) is Playing.DUCKED:
        assert voice.text in MURMURS[1:]


@given(VOICES, st.floats(0, 2))
def test_a_voice_that_goes_on_without_murmurs_never_gets_less(voice: VoiceSoFar, more_s: float) -> None:
    sounding = VoiceSoFar(voice.spoken_s, 0.0, voice.excess_db, voice.text)
    longer = VoiceSoFar(voice.spoken_s + more_s, 0.0, voice.excess_db, voice.text)
    if playing(sounding, POLICY) is Playing.HELD:
        assert playing(longer, POLICY) is Playing.HELD


@given(st.lists(st.tuples(st.sampled_from(Playing), st.integers(0, 400)), max_size=20))
def test_the_account_is_of_the_time_between_changes(steps: list[tuple[Playing, int]]) -> None:
    account, now, spent = Overlap(1, 30.0, 9.97), 10.0, dict.fromkeys(Playing, 0.0)
    account.observe(Playing.FULL, now)
    last = Playing.FULL
    for how, ms in steps:
        spent[last] += ms / 1e3
        now += ms / 1e3
        account.observe(how, now)
        last = how
    assert account.ducked_s == pytest.approx(spent[Playing.DUCKED])
    assert account.muted_s == pytest.approx(spent[Playing.HELD])
