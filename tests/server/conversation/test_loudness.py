"""The levels of a room: percentiles, the person, the bed and the gain."""

from __future__ import annotations

from math import inf

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.server.conversation.hearing.loudness import LoudLevel, Room, RoomPolicy

LEVELS = st.lists(st.floats(-120, 0), max_size=400)


@settings(max_examples=examples(100), deadline=None)
@given(LEVELS)
def test_a_loud_level_is_what_a_fifth_of_the_last_frames_exceed(levels: list[float]) -> None:
    loud = LoudLevel(1.0, 0.5)
    for level in levels:
        loud.feed(level)
    whole = len(levels) // LoudLevel.EVERY * LoudLevel.EVERY
    assert loud.known is (whole >= 50)
    if loud.known:
        last = levels[max(0, whole - 100) : whole]
        assert sum(level > loud.level for level in last) <= len(last) / 5
        assert sum(level < loud.level for level in last) <= len(last) * 4 / 5
        assert loud.level in last
    assert sorted(loud.frames) == sorted(levels[-100:])


def told(levels: list[float], person: list[float], bed: list[float]) -> Room:
    room = Room()
    for level in levels:
        room.feed(level)
    for level in person:
        room.learn_person(level)
    for level in bed:
        room.learn_bed(level)
    for _ in range(25):
        room.feed(levels[-1] if levels else -70.0)
    return room


@settings(max_examples=examples(100), deadline=None)
@given(LEVELS, LEVELS, LEVELS)
def test_gain_is_bounded_and_amplifies_neither_noise_nor_a_loud_person(
    levels: list[float], person: list[float], bed: list[float]
) -> None:
    room, policy = told(levels, person, bed), RoomPolicy()
    for gain in (room.gain, room.turn_gain):
        assert 0 <= gain <= policy.gain_most
        assert gain == 0 or room.noise + gain <= policy.noise_to + 1e-9
        if room.knows_person and room.person >= policy.gain_to:
            assert gain == 0


@settings(max_examples=examples(100), deadline=None)
@given(LEVELS, LEVELS)
def test_before_the_person_is_known_every_voice_is_theirs(levels: list[float], bed: list[float]) -> None:
    room = told(levels, [], bed)
    assert not room.knows_person
    assert not room.has_bed
    assert room.bar == room.open_bar == room.near == room.soft == room.faintest == -inf


@settings(max_examples=examples(100), deadline=None)
@given(LEVELS, st.lists(st.floats(-60, -10), min_size=100, max_size=300), LEVELS)
def test_a_voice_as_loud_as_the_person_is_never_hidden(
    levels: list[float], person: list[float], bed: list[float]
) -> None:
    room = told(levels, person, bed)
    assert max(room.bar, room.open_bar, room.near, room.soft, room.faintest) < room.person


def test_a_person_becomes_loud_at_once_and_soft_slowly() -> None:
    room = told([-75.0] * 300, [-30.0] * 500, [])
    assert room.person == -30.0
    for _ in range(500):
        room.learn_person(-20.0)
    assert room.person == -20.0
    for _ in range(900):  # after 4 s most of the last 5 s are soft
        room.learn_person(-40.0)
    assert -20.0 - 5.5 * RoomPolicy().fall <= room.person <= -20.0 - 4.5 * RoomPolicy().fall


def test_a_bed_is_what_stands_out_of_the_noise() -> None:
    hiss = told([-50.0] * 300, [-20.0] * 100, [-50.0] * 800)
    television = told([-50.0] * 300, [-20.0] * 100, [-50.0, -35.0] * 400)
    assert not hiss.has_bed
    assert television.bed == -35.0
    assert -31.0 < television.faintest < -25.0
    assert -40.0 < hiss.faintest < -31.0
    assert hiss.soft == hiss.near
    hiss.admit(-40.0)
    assert hiss.faintest == hiss.soft < -42.0 < hiss.near
