"""What is played runs on the microphone's clock, without gaps, and follows reports that differ much."""

from __future__ import annotations

import numpy as np
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.server.conversation.hearing.playback_clock import RATE, PlaybackClock

SOUND = (np.arange(RATE * 4) % 30_000 + 1).astype("<i2")


def clock(epoch: int = 1, sound: np.ndarray = SOUND) -> PlaybackClock:
    made = PlaybackClock(RATE)
    made.send(epoch, sound.tobytes())
    return made


def numbers(played: np.ndarray | None) -> list[int]:
    return [] if played is None else np.rint(played * 32768).astype(int).tolist()


@settings(max_examples=examples(30), deadline=None)
@given(sizes=st.lists(st.integers(1, 2_000), min_size=1, max_size=20), late=st.lists(st.integers(0, 500), min_size=20))
def test_reports_that_come_a_little_late_leave_no_gap(sizes, late) -> None:
    made, told, played = clock(), 0, []
    for size, lateness in zip(sizes, late, strict=False):
        told += size
        played += numbers(made.play(size, max(size, told - lateness)))
    assert played == SOUND[: sum(sizes)].tolist()


def test_nothing_is_played_before_a_reply_begins() -> None:
    assert PlaybackClock(RATE).play(320, None) is None


def test_a_reply_that_is_stopped_is_heard_for_a_moment_and_goes_on_where_it_stopped() -> None:
    made = clock()
    made.play(320, 320)
    heard = [numbers(made.play(320, None)) for _ in range(50)]
    assert heard[0] == SOUND[320:640].tolist()
    assert [] in heard
    assert heard[-1] == []
    assert numbers(made.play(320, 640)) == SOUND[320:640].tolist()
    assert made.jumped


def test_a_client_far_behind_the_clock_sets_it_back() -> None:
    made = clock()
    for end in range(320, RATE, 320):
        made.play(320, end)
        assert made.jumped == (end == 320)
    assert numbers(made.play(320, 960)) == SOUND[640:960].tolist()
    assert made.jumped


def test_a_microphone_that_was_off_sets_the_clock_forward() -> None:
    made = clock()
    made.play(320, 320)
    ends = range(10_000, 30_000, 320)
    heard = [numbers(made.play(320, end)) for end in ends]
    assert heard[0] == SOUND[320:640].tolist()  # one late piece may be chance
    assert heard[-1] == SOUND[ends[-1] - 320 : ends[-1]].tolist()


def test_a_reply_without_more_sound_waits_for_it() -> None:
    made = clock(sound=SOUND[:400])
    assert numbers(made.play(320, 320)) == SOUND[:320].tolist()
    assert numbers(made.play(320, 400)) == [*SOUND[320:400].tolist(), *[0] * 240]
    assert made.play(320, 400) is None
    made.send(1, SOUND[400:2000].tobytes())
    assert numbers(made.play(320, 720)) == SOUND[400:720].tolist()


def test_another_reply_begins_with_its_first_sample() -> None:
    made = clock()
    made.play(3200, 3200)
    made.send(2, SOUND[5000:9000].tobytes())
    assert numbers(made.play(320, 320)) == SOUND[5000:5320].tolist()


def test_without_a_microphone_little_of_a_reply_is_kept() -> None:
    clock = PlaybackClock(24_000)
    for _ in range(25 * 60):
        clock.send(1, bytes(2 * 960))
    assert len(clock._sound) <= 13 * 16_000


def test_a_reply_that_has_not_begun_plays_nothing_and_then_from_its_first_sample() -> None:
    clock = PlaybackClock(16_000)
    clock.send(1, np.arange(1, 3201, dtype="<i2").tobytes())
    assert clock.play(320, 0) is None
    played = clock.play(320, 320)
    assert played is not None
    assert round(float(played[0]) * 32768) == 1
