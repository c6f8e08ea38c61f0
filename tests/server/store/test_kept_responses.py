"""Responses that are kept for the one that follows: by one process, and by the processes of a cell."""

from __future__ import annotations

from pathlib import Path

from voxlane.server.store.kept_responses import KeptResponses
from voxlane.server.store.notes import FILE, SharedNotes


def test_what_is_kept_is_bounded_in_number_size_and_time() -> None:
    now = 0.0
    kept = KeptResponses(clock=lambda: now, most=2, most_bytes=3, seconds=10)
    for name in ("a", "b", "c"):
        kept.keep("peter", name, b"1")
    kept.keep("maria", "a", b"2")
    kept.keep("maria", "large", b"1234")
    assert [kept.get("peter", name) for name in ("a", "b", "c")] == [None, b"1", b"1"]
    assert (kept.get("maria", "a"), kept.get("maria", "large"), kept.get("maria", "b")) == (b"2", None, None)
    assert len(kept) == 3
    now = 9.0
    assert kept.drop("peter", "b")
    assert not kept.drop("peter", "b")
    kept.keep("peter", "d", b"4")
    now = 10.0
    assert (kept.get("peter", "c"), kept.get("peter", "d"), kept.get("maria", "a")) == (None, b"4", None)
    assert len(kept) == 1


def test_the_oldest_of_any_key_make_room() -> None:
    kept = KeptResponses(most=9, most_bytes=9, all_bytes=10)
    assert kept.keep("peter", "a", b"12345")
    assert kept.keep("maria", "a", b"1234")
    assert kept.keep("maria", "b", b"12")
    assert (kept.get("peter", "a"), kept.get("maria", "a"), kept.get("maria", "b")) == (None, b"1234", b"12")
    assert not kept.keep("peter", "b", b"1234567890")
    assert len(kept) == 2


def test_the_processes_of_a_cell_keep_them_together(tmp_path: Path) -> None:
    now = 0.0
    notes = [SharedNotes(tmp_path, b"s" * 32, lambda: now) for _ in range(2)]
    one, other = (KeptResponses(each, most=2, most_bytes=3, seconds=10) for each in notes)
    for name in ("a", "b", "c"):
        one.keep("peter", name, name.encode())
        now += 1
    one.keep("peter", "large", b"1234")
    assert [other.get("peter", name) for name in ("a", "b", "c", "large")] == [None, b"b", b"c", None]
    assert other.get("maria", "b") is None
    assert not other.drop("maria", "b")
    assert other.drop("peter", "b")
    assert one.get("peter", "b") is None
    assert b"peter" not in (tmp_path / FILE).read_bytes()
    now = 12.0
    assert one.get("peter", "c") is None
    for each in notes:
        each.close()
