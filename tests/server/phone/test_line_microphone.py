"""The caller's sound: order, gaps, silence that is made up."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.server.phone.line_microphone import MOST_WAITING, QUIET_S, LineMicrophone
from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.phone.line_events import Media

FORM = AudioFormat("pcm16", 16_000)
PIECE = 320  # samples of 20 ms


def sound(samples: int) -> bytes:
    return (np.arange(samples) % 30_000 + 1).astype("<i2").tobytes()


def packets(pcm: bytes, *, order: bool = True, times: bool = True, first: int = 5) -> list[Media]:
    pieces = [pcm[at : at + 2 * PIECE] for at in range(0, len(pcm), 2 * PIECE)]
    return [
        Media(piece, first + place if order else None, 1000 + 20 * place if times else None)
        for place, piece in enumerate(pieces)
    ]


def heard(microphone: LineMicrophone, came: list[Media]) -> bytes:
    return b"".join(piece for place, one in enumerate(came) for piece in microphone.push(one, place * 0.02))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=20, max_size=20), st.data())
def test_packets_in_any_near_order_give_the_same_samples(shifts: list[int], data: st.DataObject) -> None:
    sent = packets(sound(20 * PIECE))
    moved = [one for _, one in sorted(enumerate(sent), key=lambda pair: pair[0] + shifts[pair[0]])]
    if moved[0] is not sent[0]:
        moved.remove(sent[0])
        moved.insert(0, sent[0])
    twice = data.draw(st.integers(0, 19))
    moved.insert(data.draw(st.integers(twice + 4, 24)) if twice < 16 else len(moved), sent[twice])  # a repeat
    assert heard(LineMicrophone(FORM), moved) == sound(20 * PIECE)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.integers(1, 900), min_size=1, max_size=30), st.sampled_from(["mulaw", "alaw"]))
def test_any_split_gives_the_same_samples(sizes: list[int], codec: str) -> None:
    form = AudioFormat(codec, 8_000)  # type: ignore[arg-type]
    data = bytes(np.random.default_rng(1).integers(0, 256, sum(sizes), np.uint8))
    whole = heard(LineMicrophone(form), [Media(data)])
    ends = np.cumsum(sizes)
    split = [Media(data[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    assert heard(LineMicrophone(form), split) == whole


@settings(max_examples=examples(200), deadline=None)
@given(st.sets(st.integers(1, 28), max_size=10), st.sampled_from(["order", "times", "order and times"]))
def test_lost_packets_become_silence(lost: set[int], known: str) -> None:
    pcm = sound(40 * PIECE)
    all_sent = packets(pcm, order="order" in known, times="times" in known)
    sent = [one for place, one in enumerate(all_sent) if place not in lost]
    samples = np.frombuffer(heard(LineMicrophone(FORM), sent), "<i2")
    wanted = np.frombuffer(pcm, "<i2").copy()
    for place in lost:
        wanted[place * PIECE : (place + 1) * PIECE] = 0
    assert np.array_equal(samples, wanted[: len(samples)])
    assert len(samples) >= len(wanted) - MOST_WAITING * PIECE


def test_a_clock_that_jumps_is_a_new_clock() -> None:
    microphone = LineMicrophone(FORM)
    first, second, third = packets(sound(3 * PIECE), order=False)
    jumps = [first, Media(second.data, None, 10_000_000_000), Media(third.data, None, 3)]
    assert heard(microphone, jumps) == sound(3 * PIECE)


def test_rounded_times_add_no_silence() -> None:
    microphone = LineMicrophone(FORM)
    one = sound(PIECE)
    came = [Media(one, None, place * 20 + (place * 7) % 13) for place in range(100)]
    assert len(heard(microphone, came)) == 100 * len(one)


def test_a_line_that_sends_nothing_is_given_silence_by_the_clock() -> None:
    microphone = LineMicrophone(FORM)
    assert microphone.quiet(100.0) == b""  # before the first packet
    one = sound(PIECE)
    microphone.push(Media(one, None, 0), 10.0)
    assert microphone.quiet(10.0 + QUIET_S - 0.01) == b""
    made_up = b""
    while quiet := microphone.quiet(12.0):
        made_up += quiet
    assert len(made_up) / 2 / 16_000 == pytest.approx(2.0 - QUIET_S + 0.1, abs=0.11)
    # The packet after the gap brings the rest of the silence, no more.
    after = b"".join(microphone.push(Media(one, None, 2_000), 12.0))
    assert len(made_up + after) == 2 * round(16_000 * (2.0 - 0.02)) + len(one)


def test_odd_bytes_are_refused() -> None:
    with pytest.raises(BadMessage):
        LineMicrophone(FORM).push(Media(b"abc"), 0.0)


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("jump", [100_000, 10**12, -100_000, -40])
def test_numbers_that_jump_begin_a_new_count(jump: int, timed: bool) -> None:
    """No silence is made of the numbers between, and the caller is heard on."""
    microphone = LineMicrophone(FORM)
    before = packets(sound(50 * PIECE), first=1_000_000, times=timed)
    after = packets(sound(60 * PIECE), first=1_000_050 + jump, times=timed)
    first, second = heard(microphone, before), heard(microphone, after)
    assert len(first) == 2 * 50 * PIECE
    lost = MOST_WAITING if jump == -40 else 0
    assert len(second) == 2 * (60 - lost) * PIECE
    assert microphone.seconds == pytest.approx((110 - lost) * 0.02)


def test_inserted_silence_counts_as_sound() -> None:
    microphone = LineMicrophone(FORM)
    heard(microphone, [Media(sound(PIECE), None, place * 4_900) for place in range(5)])
    assert microphone.seconds == pytest.approx(4 * 4.9 + 0.02)


def test_packets_that_wait_for_a_lost_one_are_handed_out_when_nothing_comes() -> None:
    microphone = LineMicrophone(FORM)
    sent = packets(sound(6 * PIECE))
    assert len(heard(microphone, [sent[0], *sent[2:]])) == 2 * PIECE
    assert len(microphone.quiet(99.0)) >= 2 * 5 * PIECE
