"""The lanes of the long tests: each file in one of them, and the choice of `.ci/run`."""

from __future__ import annotations

from pathlib import Path

from lanes import Lane, choose, digest, lane_of, read_lanes

LANES = read_lanes()
TESTS = Path(__file__).parent


def test_every_file_belongs_to_a_lane() -> None:
    files = [path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")]
    assert [file for file in files if not lane_of(file, LANES.values())] == []


def test_a_lane_names_only_what_exists() -> None:
    for lane in LANES.values():
        assert [path for path in lane.tests if not (TESTS / path).exists()] == [], lane.name
        assert [path for path in lane.covers if not (TESTS.parent / path).exists()] == [], lane.name


def test_the_long_tests_of_a_lane_are_its_own() -> None:
    for lane in LANES.values():
        for beginning in lane.long:
            file, _, test = beginning.partition("::")
            found = [path for path in (TESTS / file).parent.glob(f"{Path(file).name}*") if path.suffix != ".txt"]
            assert found, f"{lane.name}: there is no {beginning}"
            if test:
                assert f"def {test.partition('[')[0]}" in found[0].read_text(), f"{lane.name}: there is no {beginning}"
            elif found[0].is_file():
                assert lane_of(found[0].relative_to(TESTS).as_posix(), LANES.values()) == lane.name, beginning


def test_a_file_beats_its_folder() -> None:
    lanes = [Lane("wide", 8, (), ("engine",)), Lane("narrow", 8, (), ("engine/test_links.py",))]
    assert lane_of("engine/test_links.py", lanes) == "narrow"
    assert lane_of("engine/loop/test_core.py", lanes) == "wide"
    assert lane_of("engineering/test_x.py", lanes) == ""


def test_the_state_of_a_lane_is_that_of_its_files() -> None:
    lane = Lane("lab", 8, ("benchmarks/lab",), ("lab",))
    listing = "100644 aaa 0\tbenchmarks/lab/a.py\n100644 bbb 0\ttests/lab/test_call.py\n100644 ccc 0\tserver/cli.py"
    assert digest(lane, listing) == digest(lane, listing.replace("ccc", "ddd"))
    assert digest(lane, listing) != digest(lane, listing.replace("aaa", "ddd"))
    assert digest(lane, listing) != digest(lane, listing.replace("bbb", "ddd"))


def test_changed_lanes_come_first_and_one_more_takes_its_turn() -> None:
    lanes = {name: Lane(name, 8, (), ()) for name in "abcde"}
    assert choose(lanes, ["b"], 0, 24) == ["b", "a"]
    assert choose(lanes, ["b"], 1, 24) == ["b", "c"]
    assert choose(lanes, [], 3, 24) == ["d"]
    assert choose(lanes, ["a", "b", "c", "d"], 1, 24) == ["b", "c", "d"]
    assert choose(lanes, ["a", "b"], 0, 12) == ["a"]
    assert choose(lanes, ["a", "b"], 0, 7) == []
