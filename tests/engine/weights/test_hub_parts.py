"""Parts of files: where they end, and how several files are fetched at once."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from voxlane.engine.weights.hub_parts import WORKERS, Part, remove_parts, side_by_side

from .file_server import FileServer, serving

CONTENT = bytes(range(256)) * 4096
PIECE = 1 << 16


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with serving() as site:
        site.files["/file"] = CONTENT
        yield site


@pytest.fixture
def part(tmp_path: Path) -> Part:
    return Part(tmp_path, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


def test_a_part_ends_at_its_first_hole(site: FileServer, part: Part, tmp_path: Path) -> None:
    with open(part.path, "wb") as file:
        file.write(CONTENT[:PIECE])
        file.seek(3 * PIECE)
        file.write(CONTENT[3 * PIECE : 4 * PIECE])
    assert part.complete(f"{site.url}/file", {}, tmp_path / "sub" / "whole")
    assert (tmp_path / "sub" / "whole").read_bytes() == CONTENT
    assert site.asked("/file") == [f"bytes={PIECE}-"]
    assert not part.path.exists()


def test_a_part_that_is_whole_is_not_fetched(site: FileServer, part: Part, tmp_path: Path) -> None:
    part.path.write_bytes(CONTENT)
    assert part.complete(f"{site.url}/file", {}, tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == CONTENT
    assert site.log == []


@pytest.mark.parametrize("served", [CONTENT[:-1], CONTENT + b"more", CONTENT[::-1]])
def test_a_server_with_another_file(site: FileServer, part: Part, tmp_path: Path, served: bytes) -> None:
    site.files["/file"] = served
    part.path.write_bytes(CONTENT[:PIECE])
    assert not part.complete(f"{site.url}/file", {}, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()
    assert not part.path.exists()


def test_without_a_part_nothing_is_fetched(site: FileServer, part: Part, tmp_path: Path) -> None:
    assert not part.complete(f"{site.url}/file", {}, tmp_path / "whole")
    assert site.log == []


def test_the_largest_of_the_growing_files_is_kept(part: Part, tmp_path: Path) -> None:
    old, new = tmp_path / "old.incomplete", tmp_path / "new.incomplete"
    for path, size in ((old, PIECE), (new, PIECE // 2), (new, 2 * PIECE)):
        path.write_bytes(CONTENT[:size])
        part.keep([tmp_path / "moved", path])
        assert part.path.stat().st_size == max(PIECE, size)
    old.unlink()
    new.unlink()  # as the library does when a download fails
    assert part.path.read_bytes() == CONTENT[: 2 * PIECE]
    assert [one.name for one in tmp_path.iterdir()] == [part.path.name]
    remove_parts(tmp_path, but=[part.sha256])
    assert part.path.exists()
    remove_parts(tmp_path, but=["another"])
    assert not part.path.exists()


def test_tasks_run_beside_each_other() -> None:
    meeting = threading.Barrier(WORKERS)
    met: list[int] = []
    side_by_side([lambda: met.append(meeting.wait(60))] * WORKERS)
    assert sorted(met) == list(range(WORKERS))


def test_the_first_error_is_raised_and_no_further_task_begins() -> None:
    begun: list[int] = []
    meeting = threading.Barrier(WORKERS)

    def task(number: int) -> None:
        begun.append(number)
        meeting.wait(60)
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^0$"):
        side_by_side([lambda number=number: task(number) for number in range(2 * WORKERS)])  # type: ignore[misc]
    assert sorted(begun) == list(range(WORKERS))
    side_by_side([])
