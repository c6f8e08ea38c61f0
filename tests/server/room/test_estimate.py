"""The room that is left by what was measured: monotone, without flapping, never without KV blocks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from voxlane.server.config import RoomConfig
from voxlane.server.room.estimate import BAND, MOVING_S, Door, RoomEstimate, RoomLeft, RoomLevels
from voxlane.server.room.meter import levels

pytestmark = pytest.mark.property

LEVELS = RoomLevels(
    step_share=0.95, block_share=0.95, lag_s=0.05, first_sound_s=1.0, kept=0.1, sure=2, most=100
)  # fmt: skip

shares = st.floats(0, 1)
seconds = st.floats(0, 10)
counts = st.integers(0, 120)


def measured(
    share: float = 0.0,
    available: float = 1.0,
    lag_s: float = 0.0,
    first_sound_s: float = 0.0,
    conversations: int = 0,
    of: RoomLevels = LEVELS,
) -> RoomEstimate:
    """Return an estimate that has seen these values for long, until second 60."""
    estimate = RoomEstimate(of)
    estimate.looped(lag_s, 600.0, conversations)
    estimate.stepped(share, 600.0, available, 60.0)
    for _ in range(30):
        estimate.sounded(first_sound_s, 60.0)
    return estimate


def room(estimate: RoomEstimate, conversations: int) -> RoomLeft:
    return estimate.room_left(conversations, 60.0)


def test_an_idle_server_has_all_its_room() -> None:
    left = RoomEstimate(LEVELS).room_left(0, 0.0)
    assert (left.percent, left.takes_new, left.takes_resumed) == (100, True, True)
    assert left.more == 90  # as many as are allowed, but for what is kept
    assert left.more_resumed == 100


def test_half_a_thread_for_ten_conversations_leaves_room_for_eight() -> None:
    left = room(measured(share=0.475, conversations=10), 10)
    assert left.percent == 50
    assert left.tightest == "steps"
    assert 8 <= left.more <= 12  # a tenth is kept; few conversations make the cost uncertain


@pytest.mark.parametrize(
    ("values", "tightest"),
    [
        ({"share": 1.0}, "steps"),
        ({"available": 0.02}, "blocks"),
        ({"lag_s": 0.06}, "loop"),
        ({"first_sound_s": 1.5}, "first_sound"),
    ],
)
def test_each_measure_can_close_the_door_and_is_named(values: dict[str, float], tightest: str) -> None:
    left = room(measured(conversations=10, **values), 10)  # type: ignore[arg-type]
    assert (left.takes_new, left.percent, left.more, left.tightest) == (False, 0, 0, tightest)


def test_a_second_page_is_not_refused_on_a_busy_little_machine() -> None:
    busy = measured(
        share=1.0, lag_s=0.2, first_sound_s=9.0, conversations=1, of=levels(RoomConfig(), 1024, on_cpu=True)
    )
    assert room(busy, 1).takes_new
    assert not room(busy, 4).takes_new


def test_a_gpu_whose_thread_is_always_busy_still_takes_conversations() -> None:
    busy = measured(share=1.0, first_sound_s=0.3, conversations=160, of=levels(RoomConfig(), 1024, on_cpu=False))
    left = room(busy, 160)
    assert left.takes_new
    assert 60 <= left.more <= 100


def test_a_burst_counts_before_it_is_measured() -> None:
    """Conversations that came in the last second are in no moving value yet; they must count all the same."""
    estimate = measured(share=0.19, conversations=10)  # 2 % each
    taken = 10
    while estimate.room_left(taken, 60.0).takes_new:
        taken += 1
    assert 40 <= taken <= 60


def test_one_slow_turn_closes_no_door() -> None:
    estimate = RoomEstimate(LEVELS)
    estimate.sounded(2.0, 1.0)
    assert estimate.room_left(5, 1.0).takes_new


def test_what_was_slow_is_forgotten() -> None:
    estimate = measured(share=1.0, first_sound_s=5.0, conversations=10)
    assert not estimate.room_left(10, 60.0).takes_new
    assert estimate.room_left(10, 60.0 + 5 * MOVING_S).takes_new  # no report since: the engine is idle


def test_blocks_that_were_given_back_are_seen_though_the_engine_is_idle() -> None:
    estimate = measured(available=0.02, conversations=10)
    assert not estimate.room_left(10, 60.0).takes_new
    estimate.stepped(0.0, 0.01, 1.0, 60.0)  # the last report before the engine had nothing to do
    assert estimate.room_left(10, 60.0 + 5 * MOVING_S).takes_new


def test_a_new_engine_begins_with_all_its_room() -> None:
    estimate = measured(share=1.0, available=0.0, conversations=10)
    assert not estimate.room_left(10, 60.0).takes_new
    estimate.engine_lost()
    assert estimate.room_left(10, 60.0).takes_new


def test_resumed_conversations_have_room_when_new_ones_have_none() -> None:
    left = room(measured(share=0.9, conversations=10), 10)
    assert not left.takes_new
    assert left.takes_resumed
    assert left.more_resumed >= 1


@settings(max_examples=examples(300), deadline=None)
@given(
    shares, shares, seconds, seconds, counts, counts, st.sampled_from(("share", "available", "lag_s", "first_sound_s"))
)
def test_room_never_grows_with_what_is_measured(
    share: float, available: float, lag_s: float, first: float, seen: int, now: int, worse: str
) -> None:
    values = {"share": share, "available": available, "lag_s": lag_s, "first_sound_s": first}
    before = room(measured(conversations=seen, **values), now)  # type: ignore[arg-type]
    values[worse] = values[worse] / 2 if worse == "available" else values[worse] * 1.5 + 0.01
    after = room(measured(conversations=seen, **values), now)  # type: ignore[arg-type]
    assert after.percent <= before.percent
    assert after.more <= before.more
    assert after.more_resumed <= before.more_resumed
    assert before.takes_new or not after.takes_new


@settings(max_examples=examples(300), deadline=None)
@given(shares, shares, seconds, seconds, counts, counts)
def test_room_never_grows_with_conversations(
    share: float, available: float, lag_s: float, first: float, seen: int, now: int
) -> None:
    fewer = room(measured(share, available, lag_s, first, seen), now)
    more = room(measured(share, available, lag_s, first, seen), now + 1)
    assert more.percent <= fewer.percent
    assert more.more <= fewer.more
    assert fewer.takes_new or not more.takes_new


@settings(max_examples=examples(300), deadline=None)
@given(shares, shares, seconds, seconds, counts, counts)
def test_the_numbers_agree_with_the_doors(
    share: float, available: float, lag_s: float, first: float, seen: int, now: int
) -> None:
    left = room(measured(share, available, lag_s, first, seen), now)
    assert 0 <= left.percent <= 100
    assert (left.percent > 0) == (left.more > 0) == left.takes_new
    assert (left.more_resumed > 0) == left.takes_resumed
    assert left.more <= left.more_resumed
    assert now + left.more <= LEVELS.most or left.more == 0
    if left.takes_new:
        assert left.takes_resumed


@settings(max_examples=examples(300), deadline=None)
@given(shares, seconds, seconds, counts, counts, st.integers(0, 100))
def test_nothing_is_admitted_without_kv_blocks(
    share: float, lag_s: float, first: float, seen: int, now: int, sure: int
) -> None:
    estimate = measured(share, 1.0, lag_s, first, seen, replace(LEVELS, sure=sure))
    estimate.stepped(share, 0.01, 0.0, 60.0)  # just now; the mean has hardly moved
    left = estimate.room_left(now, 60.0)
    assert not left.takes_new
    assert not left.takes_resumed
    assert left.tightest == "blocks"


@settings(max_examples=examples(300), deadline=None)
@given(st.floats(0.2, 1.0), st.lists(st.floats(0, 2), max_size=200))
def test_a_door_moves_only_when_the_use_has_crossed_the_band(closes: float, uses: list[float]) -> None:
    door, moved_at = Door(closes), 0.0
    for use in uses:
        before = door.open
        if door.admits(use) != before:
            assert abs(use - moved_at) >= BAND - 1e-9 or moved_at == 0.0
            moved_at = use
            assert door.open == (use <= closes - BAND)


@settings(max_examples=examples(60), deadline=None)
@given(st.floats(0.80, 0.90), st.integers(0, 1 << 32))
def test_noise_does_not_flap(centre: float, seed: int) -> None:
    """Values that jump by a third around a level near the door close it once, if at all."""
    estimate, noise = measured(share=centre, conversations=10), random.Random(seed)
    moves, was = 0, room(estimate, 10).takes_new
    for tick in range(300):
        now = 60.0 + tick
        estimate.looped(0.0, 1.0, 10)
        jump = 1 + (noise.random() - 0.5) / 3
        estimate.stepped(min(1.0, centre * jump), 1.0, 1.0, now)
        is_open = estimate.room_left(10, now).takes_new
        moves, was = moves + (is_open != was), is_open
    assert moves <= 3  # in five minutes; without the band, dozens


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 40), st.floats(0.002, 0.2))
def test_admission_settles_where_conversations_fill_the_engine(arrivals: int, cost: float) -> None:
    """However many come each second, as many stay as the step thread can work for, but for the band and the margin."""
    assume(cost * LEVELS.most > 1)  # else voice.sessions is reached first
    estimate, inside = RoomEstimate(replace(LEVELS, sure=0)), 0
    for second in range(120):
        now = float(second)
        for _ in range(arrivals):
            inside += estimate.room_left(inside, now).takes_new
        estimate.looped(0.0, 1.0, inside)
        estimate.stepped(min(1.0, inside * cost), 1.0, 1.0, now)
    holds = 0.95 / cost
    assert inside <= holds * 1.1 + arrivals + 1
    assert inside >= holds * 0.7 - 1
