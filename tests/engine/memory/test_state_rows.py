"""Which stream yields its row to which."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from voxlane.engine.memory.state_rows import IDLE, StateRows


@dataclass(eq=False)
class Stream:
    rows: StateRows
    rank: int
    idle: bool = False
    engaged: bool = False
    waits: bool = True
    slot: int = -1

    @property
    def claim(self) -> tuple[int, float]:
        return (IDLE if self.idle else self.rank, 0.0)

    def give_up(self) -> int:
        slot, self.slot = self.slot, -1
        return slot

    def refresh(self, now: float) -> None:
        if self.rows.serves(self):
            self.slot = self.rows.take(self)


@pytest.mark.parametrize(
    ("owner", "gets"),
    [
        ({"rank": 0}, True),
        ({"rank": 1}, False),
        ({"rank": 2}, False),
        ({"rank": 2, "idle": True}, True),
        ({"rank": 0, "engaged": True}, False),
    ],
)
def test_a_stream_takes_a_row_from_an_idle_one_or_a_lower_class(owner: dict[str, int], gets: bool) -> None:
    rows = StateRows(1)
    first, second = Stream(rows, **owner), Stream(rows, 1)  # type: ignore[arg-type]
    for stream in (first, second):
        rows.wait(stream)
        stream.refresh(0.0)
    assert (first.slot, second.slot) == ((-1, 0) if gets else (0, -1))
