"""A client that sends quiet frames three at a time while the state is `listening` gets the same decisions."""

from __future__ import annotations

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from session_simulation import sound
from session_table import FRAME_S, Table

from voxlane.server.conversation.client_events import Audio
from voxlane.server.conversation.server_events import FloorState, ReplyStarted, SpeechStarted

GATHERED = 3


class LongTable(Table):
    """Its client does as client_js: quiet frames wait for others while the state is `listening`, loud ones do not."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = b""
        self.messages = 0

    @property
    def calm(self) -> bool:
        """Whether nothing can be interrupted, as the client was told."""
        told = self.of(FloorState)
        return not told or told[-1].name == "listening"

    def speak(self, kind: str, frames: int) -> list:
        events = []
        for _ in range(frames):
            self.now += FRAME_S
            self.waiting += sound(kind, 1)
            if kind != "s" or not self.calm or len(self.waiting) == GATHERED * len(sound(kind, 1)):
                events += self.flush()
            events += self.work(3)
        return events

    def flush(self) -> list:
        self.messages += 1
        heard, self.waiting = self.waiting, b""
        return self.feed(Audio(heard))


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("vns"), st.integers(1, 60)), min_size=1, max_size=12))
def test_long_frames_change_no_decision(scene: list[tuple[str, int]]) -> None:
    short, long = Table(), LongTable()
    for kind, frames in [*scene, ("s", 90)]:
        for table in (short, long):
            table.speak(kind, frames)
    long.flush()
    assert long.client.events == short.client.events
    assert long.ear.heard == short.ear.heard


def test_a_conversation_in_long_frames_is_one() -> None:
    """The test above compares something: a turn, a reply, an interruption, and fewer messages."""
    table = LongTable()
    for kind, frames in (("s", 300), ("v", 40), ("s", 60), ("v", 40), ("s", 300)):
        table.speak(kind, frames)
        table.wait(0.5)
    assert table.of(SpeechStarted)
    assert table.of(ReplyStarted)
    assert table.messages < 600
