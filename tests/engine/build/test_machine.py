"""What a machine can do: measured once, kept, and never the reason for a start that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from voxlane.engine.build import machine
from voxlane.engine.weights import store


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path / "cache"))


def test_the_speed_is_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter([2e9])  # a second measurement would find nothing
    monkeypatch.setattr(machine, "measure", lambda bits: next(measured))
    assert [machine.weights_per_second(2) for _ in range(2)] == [2e9, 2e9]
    (speed,) = json.loads((store.cache_root() / machine.SPEED_FILE).read_text()).values()
    assert speed == 2e9


@pytest.mark.parametrize("content", ["", "not JSON", "[1, 2]", '{"another machine": 1e9}', '{"x": "fast", "y": -1}'])
def test_a_file_that_says_nothing_of_this_machine_is_measured_anew(
    content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.cache_root().mkdir(parents=True)
    (store.cache_root() / machine.SPEED_FILE).write_text(content)
    monkeypatch.setattr(machine, "measure", lambda bits: 3e9)
    assert machine.weights_per_second(2) == 3e9


def test_a_cache_that_takes_no_file_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path / "file"))
    monkeypatch.setattr(machine, "measure", lambda bits: 4e9)
    assert machine.weights_per_second(2) == 4e9


@pytest.mark.parametrize("bits", [4, 8])
def test_a_real_measurement_is_a_speed(bits: int) -> None:
    assert 1e6 < machine.measure(bits) < 1e13


def test_each_number_of_bits_has_its_own_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "measure", lambda bits: bits * 1e9)
    assert [machine.weights_per_second(2, bits) for bits in (4, 8, 4, 8)] == [4e9, 8e9, 4e9, 8e9]


def test_a_container_has_what_its_control_group_leaves(tmp_path: Path) -> None:
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    own = tmp_path / "cgroup"
    own.write_text("1:name=systemd:/\n0::/a/b\n")
    (group / "memory.max").write_text("1000\n")
    (group / "memory.current").write_text("400\n")
    assert machine._control_group(tmp_path, own) == 600
    (group / "memory.current").write_text("1400\n")
    assert machine._control_group(tmp_path, own) == 0
    (group / "memory.max").write_text("max\n")
    assert machine._control_group(tmp_path, own) is None
    own.write_text("1:name=systemd:/\n")
    assert machine._control_group(tmp_path, own) is None


def test_the_smaller_of_two_limits_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_meminfo", lambda: 5000)
    monkeypatch.setattr(machine, "_control_group", lambda: 3000)
    assert machine.free_memory_bytes() == 3000
    monkeypatch.setattr(machine, "_control_group", lambda: None)
    assert machine.free_memory_bytes() == 5000
    monkeypatch.setattr(machine, "_meminfo", lambda: None)
    assert machine.free_memory_bytes() > 1 << 60
