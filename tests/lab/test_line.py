"""The line of a call: order, delay, jitter, stalls, loss and echo."""

from __future__ import annotations

import numpy as np
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane_lab.line import EchoPath, PacketLoss, Way
from voxlane_lab.scenario import Echo, LineConditions
from voxlane_lab.values import USER_RATE


def chance(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=40),
    st.floats(0, 300),
    st.floats(0, 200),
    st.floats(0, 900),
    st.integers(0, 100),
)
def test_messages_come_in_order_and_never_before_the_delay(
    times: list[float], delay_ms: float, jitter_ms: float, stall_ms: float, seed: int
) -> None:
    times.sort()
    way = Way(LineConditions(delay_ms=delay_ms, jitter_ms=jitter_ms, stall_ms=stall_ms), chance(seed), stalls=True)
    for number, at_s in enumerate(times):
        way.put(str(number), at_s)
    came = [one for tick in range(1000) for one in way.take(tick * 0.02)]
    assert [int(message) for _, message in came] == list(range(len(times)))
    assert all(due_s >= at_s + delay_ms / 1e3 - 1e-9 for (due_s, _), at_s in zip(came, times, strict=True))


def test_nothing_comes_during_a_stall() -> None:
    way = Way(LineConditions(stall_ms=400, stall_every_s=2.0), chance(), stalls=True)
    for tick in range(200):
        way.put(str(tick), tick * 0.02)
    times = [at_s for at_s, _ in way.take(10.0)]
    assert all(at_s % 2.0 >= 0.4 - 1e-9 for at_s in times)
    assert sum(abs(at_s - 2.4) < 1e-9 for at_s in times) == 21  # what was held up, and what came just then


def test_the_share_of_lost_packets() -> None:
    loss = PacketLoss(0.1, chance())
    assert 60 < sum(loss.lost() for _ in range(1000)) < 140
    assert not any(PacketLoss(0.0, chance()).lost() for _ in range(100))


def echoed(echo: Echo, rate: int, click_at: int, ticks: int = 60) -> np.ndarray:
    path = EchoPath(echo, rate, chance())
    played = np.zeros(ticks * rate // 50, np.int16)
    played[click_at * rate // 1000 : click_at * rate // 1000 + rate // 500] = 16_000
    return np.concatenate([path.hear(piece) for piece in played.reshape(ticks, -1)])


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from([8_000, 16_000, 24_000]), st.integers(20, 600), st.sampled_from([-6.0, -20.0, -40.0]))
def test_an_echo_is_as_late_and_as_loud_as_asked(rate: int, delay_ms: int, level_db: float) -> None:
    back = echoed(Echo(level_db=level_db, delay_ms=delay_ms), rate, 100)
    peak = float(np.abs(back).max())
    first_ms = int(np.argmax(np.abs(back) > peak / 2)) / USER_RATE * 1e3
    assert abs(first_ms - 100 - delay_ms) <= 2
    assert abs(20 * np.log10(peak / 16_000) - level_db) < 2.5  # a resampled click overshoots


def test_a_room_spreads_an_echo_and_keeps_its_loudness() -> None:
    plain, room = (echoed(Echo(level_db=-20, delay_ms=60, room=wide), 24_000, 100) for wide in (False, True))
    assert np.count_nonzero(np.abs(room) > 5) > 2 * np.count_nonzero(np.abs(plain) > 5)
    assert abs(10 * np.log10((room**2).sum() / (plain**2).sum())) < 4


def test_without_an_echo_the_microphone_hears_nothing_of_the_loudspeaker() -> None:
    assert not EchoPath(None, 24_000, chance()).hear(np.full(480, 9_000, np.int16)).any()
