"""The player of a line against a line in memory that plays in real time."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from phone_line import FarEnd, PlainCodec

from voxlane.server.phone.line_player import LinePlayer
from voxlane.server.protocols.dialect import AudioFormat
from voxlane.server.protocols.phone.line_events import LineCodec, LineTraits

RATE = 8000
STEP_S = 0.005


def speech(samples: int, seed: int = 0) -> bytes:
    """Return sound in which every sample is told from its neighbours."""
    return (np.arange(samples, dtype=np.int64) * 7 + seed).astype("<i2").tobytes()


class Stage:
    """A player and its line, driven by one clock."""

    def __init__(self, traits: LineTraits, **far: float | bool) -> None:
        self.player = LinePlayer(cast(LineCodec, PlainCodec(traits)), AudioFormat("pcm16", RATE))
        self.far = FarEnd(RATE, **far)  # type: ignore[arg-type]
        self.now = 0.0

    def send(self, messages: list[bytes | str]) -> None:
        self.far.send(cast(list[str], messages), self.now)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.send(self.player.due(self.now))
            self.now += STEP_S
            self.far.run(self.now)
            for name in self.far.returned(self.now):
                self.player.marked(name, self.now)

    def warm_up(self) -> None:
        """Measure the delay of the line."""
        self.send(self.player.probe(self.now))
        self.run(1.0)

    def say(self, epoch: int, sound: bytes) -> None:
        self.player.add(epoch, 0, sound)
        self.player.finish(epoch)

    def heard(self) -> list[tuple[int, int]]:
        return [(one.epoch, one.samples) for one in self.player.heard(self.now)]


LINES = {
    "marks come back on a clear": (LineTraits("a"), {"returns_cleared_marks": True}),
    "marks are lost by a clear": (LineTraits("b"), {}),
    "a far line": (LineTraits("c"), {"delay_s": 0.15, "returns_cleared_marks": True}),
    "a line that waits": (LineTraits("d"), {"delay_s": 0.05, "wait_s": 0.06}),
    "no marks": (LineTraits("e", marks=False), {"delay_s": 0.05}),
    "long pieces": (LineTraits("f", piece_ms=100, marks=False), {}),
    "few messages": (LineTraits("g", lead_s=1.0, piece_ms=250, marks=False, most_messages=(4.0, 20.0)), {}),
}


@pytest.mark.parametrize("name", LINES)
def test_all_sound_is_played_in_order(name: str) -> None:
    traits, far = LINES[name]
    stage = Stage(traits, **far)
    stage.warm_up()
    first, second = speech(12_345), speech(4_321, 5)
    stage.say(1, first)
    stage.say(2, second)
    stage.run(3.0)
    assert bytes(stage.far.heard) == first + second
    assert stage.player.finished(stage.now)
    assert stage.heard()[-1] == (2, 4_321)


@pytest.mark.parametrize("name", LINES)
def test_a_hold_loses_and_repeats_nothing(name: str) -> None:
    traits, far = LINES[name]
    stage = Stage(traits, **far)
    stage.warm_up()
    stage.say(1, speech(16_000))
    stage.run(0.7)
    stage.send(stage.player.hold(stage.now))
    stage.run(0.5)
    held = len(stage.far.heard) // 2
    stage.run(0.5)
    assert len(stage.far.heard) // 2 == held  # silence
    (reported,) = stage.heard()
    assert reported[0] == 1
    assert abs(reported[1] - held) <= RATE * 0.02
    stage.send(stage.player.release(stage.now))
    stage.run(3.0)
    heard = np.frombuffer(bytes(stage.far.heard), "<i2")
    wanted = np.frombuffer(speech(16_000), "<i2")
    assert np.array_equal(heard[:held], wanted[:held])
    seam = len(heard) - len(wanted)
    assert abs(seam) <= RATE * 0.02  # what is repeated, or lost, of the word at the seam
    assert np.array_equal(heard[held + 400 :], wanted[held + 400 - seam :])


@pytest.mark.parametrize("name", LINES)
def test_an_interrupted_reply_is_not_heard_any_more(name: str) -> None:
    traits, far = LINES[name]
    stage = Stage(traits, **far)
    stage.warm_up()
    stage.say(1, speech(16_000))
    stage.run(0.6)
    before = stage.heard()[-1][1]
    stage.send(stage.player.drop(1, stage.now))
    stage.run(1.0)
    heard = len(stage.far.heard) // 2
    assert abs(heard - before) <= RATE * 0.02
    stage.say(2, speech(800, 9))
    stage.run(1.0)
    assert bytes(stage.far.heard[heard * 2 :]) == speech(800, 9)
    assert stage.heard()[-1] == (2, 800)


class CountedStage(Stage):
    """A line that takes four messages a second and twenty at once, and ends a call that sends more."""

    def __init__(self) -> None:
        super().__init__(LINES["few messages"][0])
        self._left, self._counted_s = 20.0, 0.0

    def send(self, messages: list[bytes | str]) -> None:
        self._left = min(20.0, self._left + (self.now - self._counted_s) * 4.0) - len(messages)
        self._counted_s = self.now
        assert self._left >= 0, "the system ends the call"
        super().send(messages)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.02, 1.5), st.sampled_from(["hold", "release", "duck", "drop"])), min_size=1, max_size=120
    )
)
def test_a_line_that_takes_few_messages_is_never_sent_more(moves: list[tuple[float, str]]) -> None:
    """A person who murmurs all the time makes the player clear and send again, again and again."""
    stage, epoch = CountedStage(), 1
    stage.say(epoch, speech(40 * RATE))
    for seconds, move in moves:
        stage.run(seconds)
        match move:
            case "hold":
                stage.send(stage.player.hold(stage.now))
            case "release":
                stage.send(stage.player.release(stage.now))
            case "duck":
                stage.send(stage.player.duck(0.3, stage.now))
            case _:
                stage.send(stage.player.drop(epoch, stage.now))
                epoch += 1
                stage.say(epoch, speech(40 * RATE, epoch))
    stage.send(stage.player.release(stage.now))
    before = len(stage.far.heard)
    stage.run(2.0)
    assert len(stage.far.heard) > before, "the reply goes on"


def test_after_a_hold_a_line_that_takes_few_messages_gets_a_second_of_sound_at_once() -> None:
    stage = CountedStage()
    stage.say(1, speech(20 * RATE))
    stage.run(2.1)
    held = stage.player.hold(stage.now)
    stage.send(held)
    stage.run(0.3)
    stage.send(stage.player.release(stage.now))
    sent = cast(list[str], stage.player.due(stage.now))
    assert held == ["clear"]
    assert [len(message) for message in sent] == [len("media:") + 2 * 2 * RATE]


def test_a_line_that_cannot_clear_is_sent_hardly_anything_ahead() -> None:
    stage = Stage(LineTraits("x", lead_s=0.04, clears=False, marks=False))
    stage.say(1, speech(16_000))
    stage.run(0.5)
    assert stage.player.hold(stage.now) == []
    before = len(stage.far.heard)
    stage.run(1.0)
    assert len(stage.far.heard) - before <= 2 * RATE * 0.06
    stage.send(stage.player.release(stage.now))
    stage.run(3.0)
    assert bytes(stage.far.heard) == speech(16_000)


def test_a_lowered_reply_goes_on_from_where_it_was() -> None:
    stage = Stage(LineTraits("a"))
    stage.warm_up()
    loud = np.full(16_000, 10_000, "<i2").tobytes()
    stage.say(1, loud)
    stage.run(0.5)
    stage.send(stage.player.duck(0.25, stage.now))
    stage.run(0.4)
    stage.send(stage.player.release(stage.now))
    stage.run(3.0)
    heard = np.frombuffer(bytes(stage.far.heard), "<i2")
    low = np.flatnonzero(heard == 2_500)
    assert abs(len(heard) - 16_000) <= 2 * RATE * 0.02
    assert abs(low[0] / RATE - 0.5) < 0.03
    assert abs((low[-1] - low[0]) / RATE - 0.4) < 0.03


def test_a_full_line_is_sent_nothing() -> None:
    stage = Stage(LineTraits("a"))
    stage.player.set_full(True)
    stage.say(1, speech(1_600))
    stage.run(0.5)
    assert not stage.far.heard
    stage.player.set_full(False)
    stage.run(0.5)
    assert bytes(stage.far.heard) == speech(1_600)


def test_nothing_counts_as_played_before_it_was_sent() -> None:
    stage = Stage(LineTraits("a"))
    (probe,) = stage.player.probe(stage.now)
    stage.player.marked(str(probe).removeprefix("mark:"), stage.now + 0.3)  # the machine was busy
    stage.say(1, speech(16_000))
    stage.run(0.75)
    assert abs(stage.player.position(stage.now) - len(stage.far.heard) // 2) <= RATE * 0.02


def test_marks_that_were_never_sent_move_nothing() -> None:
    stage = Stage(LineTraits("a"), delay_s=0.02)
    stage.warm_up()
    stage.say(1, speech(16_000))
    stage.run(0.5)
    before = stage.player.position(stage.now)
    for name in ("", "1", "999999", "p1", "p999", "x" * 300):
        stage.player.marked(name, stage.now)
    assert abs(stage.player.position(stage.now) - before) <= RATE * 0.02


def test_a_mark_of_discarded_sound_moves_nothing() -> None:
    stage = Stage(LineTraits("a"))
    stage.warm_up()
    stage.say(1, speech(16_000))
    sent = stage.player.due(stage.now)
    stage.send(stage.player.hold(stage.now))
    stage.send(stage.player.release(stage.now))
    stage.run(0.05)
    before = stage.player.position(stage.now)
    for message in sent:
        stage.player.marked(str(message).removeprefix("mark:"), stage.now)
    assert stage.player.position(stage.now) == before


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["say", "hold", "release", "duck", "drop", "wait"]), st.integers(1, 60)), max_size=25
)


@settings(max_examples=examples(300), deadline=None)
@given(ACTIONS, st.sampled_from(sorted(LINES)))
def test_positions_never_exceed_what_was_sent_and_held_lines_are_silent(
    actions: list[tuple[str, int]], name: str
) -> None:
    traits, far = LINES[name]
    stage = Stage(traits, **far)
    epoch, sizes = 0, {}
    held = False
    for action, amount in actions:
        match action:
            case "say":
                epoch += 1
                sizes[epoch] = amount * 100
                stage.say(epoch, speech(amount * 100, epoch))
            case "hold":
                stage.send(stage.player.hold(stage.now))
                held = True
            case "release":
                stage.send(stage.player.release(stage.now))
                held = False
            case "duck" if not held:
                stage.send(stage.player.duck(0.2, stage.now))
            case "drop" if epoch:
                stage.send(stage.player.drop(epoch, stage.now))
                held = False
        if held:
            stage.run(0.4)
            before = len(stage.far.heard)
            stage.run(0.1)
            assert len(stage.far.heard) == before
        else:
            stage.run(amount / 100)
        for one, samples in stage.heard():
            assert 0 <= samples <= sizes[one]
