"""The private folder of a cell."""

from __future__ import annotations

import fcntl
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from voxlane.server.cell import folder as module
from voxlane.server.cell.folder import PREFIX, cell_folder
from voxlane.server.errors import ConfigError


def test_only_its_owner_can_read_it_and_it_is_deleted(tmp_path: Path) -> None:
    with cell_folder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o77 == 0
        (folder / "counts").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_supervisor_left_is_deleted_and_a_running_ones_is_not(tmp_path: Path) -> None:
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    (left / "lock").touch()
    (left / "conversations.sqlite").write_bytes(b"x")
    killed_early = tmp_path / f"{PREFIX}without-a-lock"
    killed_early.mkdir()
    foreign = tmp_path / "something else"
    foreign.mkdir()
    with cell_folder(tmp_path) as first, cell_folder(tmp_path) as second:
        assert first.is_dir()
        assert second.is_dir()
        assert not left.exists()
        assert not killed_early.exists()
        assert foreign.exists()


@pytest.mark.parametrize("moment", ["before its lock is there", "before its lock is taken"])
def test_a_folder_that_another_supervisor_takes_for_left_over_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another supervisor cleans up at the very moment at which this one has made its folder."""
    opened, taken, cleaned = os.open, fcntl.flock, []

    def clean(path: Path) -> None:
        if not cleaned:
            cleaned.append(path)
            monkeypatch.setattr(os, "open", opened)
            monkeypatch.setattr(fcntl, "flock", taken)
            module._delete_left_over(tmp_path)

    def open_late(path: Path, flags: int, *mode: int) -> int:
        if moment == "before its lock is there":
            clean(path)
        return opened(path, flags, *mode)

    def lock_late(descriptor: int, how: int) -> None:
        if moment == "before its lock is taken":
            clean(tmp_path)
        taken(descriptor, how)

    monkeypatch.setattr(os, "open", open_late)
    monkeypatch.setattr(fcntl, "flock", lock_late)
    with cell_folder(tmp_path) as folder:
        assert cleaned
        assert folder.is_dir()
        module._delete_left_over(tmp_path)
        assert (folder / "lock").exists()  # its lock is held
    assert list(tmp_path.iterdir()) == []


def test_many_supervisors_start_at_once(tmp_path: Path) -> None:
    lost: list[Path] = []

    def start() -> None:
        for _ in range(50):
            with cell_folder(tmp_path) as folder:
                if not (folder / "lock").exists():
                    lost.append(folder)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(start) for _ in range(4)]:
            done.result()
    assert not lost
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    shutil.rmtree(gone)
    with pytest.raises(ConfigError, match="no folder for the cell"), cell_folder(gone):
        pass
