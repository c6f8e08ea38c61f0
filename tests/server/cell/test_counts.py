"""Counts that several processes share: each writes its own column, and reads the sum of the others."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from voxlane.server.cell.counts import COLUMN, CellCounts, SharedCounts, make_counts
from voxlane.server.errors import ConfigError, Overloaded, QuotaReached, TenantFull
from voxlane.server.http.request_limit import Allowance, RequestLimit
from voxlane.server.tenants.accounts import Account
from voxlane.server.tenants.key_file import KeyRecord

PROCESSES = 3
SECRET = b"s" * 32


@contextlib.contextmanager
def columns(folder: Path, secret: bytes = SECRET) -> Iterator[list[SharedCounts]]:
    path = folder / "counts"
    path.unlink(missing_ok=True)
    make_counts(path, PROCESSES)
    with contextlib.ExitStack() as opened:
        yield [
            opened.enter_context(contextlib.closing(SharedCounts(path, PROCESSES, number, secret)))
            for number in range(PROCESSES)
        ]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, PROCESSES - 1), st.sampled_from("abcdef"), st.integers(-2, 3)), max_size=30
    ),
    dead=st.integers(0, PROCESSES - 1),
)
@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_process_sees_the_sum_of_the_others(tmp_path: Path, steps: list[tuple[int, str, int]], dead: int) -> None:
    with columns(tmp_path) as counts:
        keyed: Counter[tuple[int, str]] = Counter()
        total: Counter[int] = Counter()
        for process, key, amount in steps:
            counts[process].add_keyed("conversations of address", key, amount)
            counts[process].add("conversations", amount)
            keyed[process, key] += amount
            total[process] += amount
        counts[0].clear(dead)
        for process, own in enumerate(counts):
            others = {other for other in range(PROCESSES) if other not in (process, dead)}
            assert own.elsewhere("conversations") == sum(total[other] for other in others)
            for key in "abcdef":
                expected = sum(keyed[other, key] for other in others)
                assert own.keyed_elsewhere("conversations of address", key) == expected


def test_the_memory_of_the_counts_is_reserved(tmp_path: Path) -> None:
    """A write to a hole of a file on a full file system would kill the process with SIGBUS."""
    make_counts(tmp_path / "counts", PROCESSES)
    found = (tmp_path / "counts").stat()
    assert found.st_blocks * 512 >= found.st_size == 8 * COLUMN * PROCESSES


def test_counts_that_do_not_fit_are_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"server\.processes: 6 MB .*No space left"):
        make_counts(tmp_path / "counts", PROCESSES)
    assert not (tmp_path / "counts").exists()


def test_a_process_alone_has_no_others() -> None:
    counts = CellCounts()
    counts.add("sockets", 5)
    counts.add_keyed("sockets of address", "a", 5)
    assert counts.elsewhere("sockets") == counts.keyed_elsewhere("sockets of address", "a") == 0


def test_few_of_many_addresses_are_counted_together(tmp_path: Path) -> None:
    with columns(tmp_path) as (one, two, _):
        for number in range(1000):
            one.add_keyed("sockets of address", f"address {number}", 1)
        wrong = sum(two.keyed_elsewhere("sockets of address", f"address {number}") != 1 for number in range(1000))
        assert wrong < 10
        assert two.keyed_elsewhere("sockets of address", "address 7") >= 1  # never too few


def test_a_tenant_has_its_limits_once(tmp_path: Path) -> None:
    record = KeyRecord(name="one", hash="0" * 64, conversations=2, requests_per_minute=3, audio_minutes_per_minute=1)
    now = [0.0]
    with columns(tmp_path) as counts:
        first, second, _ = (Account(record, "salt", lambda: now[0], one) for one in counts)
        first.begin_conversation()
        second.begin_conversation()
        for account in (first, second):
            with pytest.raises(TenantFull):
                account.check_room()
        first.end_conversation()
        second.continue_conversation()
        second.count_request()  # the third of this minute: each beginning was one
        for account in (first, second):
            with pytest.raises(QuotaReached):
                account.count_request()
        now[0] = 20.0  # one is earned
        first.count_request()
        with pytest.raises(QuotaReached):
            second.count_request()
        first.count_audio(61.0)
        with pytest.raises(QuotaReached):
            second.check_audio()


def admitted(account: Account) -> int:
    """Return how many requests an account may make at this moment."""
    for number in itertools.count():
        try:
            account.count_request()
        except QuotaReached:
            return number
    raise AssertionError


def test_what_others_spend_over_an_hour_blocks_nothing_that_was_earned_meanwhile(tmp_path: Path) -> None:
    record = KeyRecord(name="one", hash="0" * 64, requests_per_minute=60)
    now = [0.0]
    with columns(tmp_path) as counts:
        busy, quiet, _ = (Account(record, "salt", lambda: now[0], one) for one in counts)
        for _ in range(3000):  # one in 1.2 s, while one a second is earned
            now[0] += 1.2
            busy.count_request()
            quiet.follow()
        late = Account(record, "salt", lambda: now[0], counts[2])  # of a process that was started again
        # Of the minute's 60 the last request of `busy` alone is not yet earned back.
        assert admitted(quiet) == 59
        assert admitted(busy) == 0
        # What was spent before its start does not count: of a whole minute of its own, `quiet` has spent 59.
        assert admitted(late) == 1
        now[0] += 10.0
        assert admitted(quiet) == 9  # ten are earned; one of them pays for what `late` had more
        assert admitted(busy) == 0


def test_a_process_that_has_died_gives_its_places_back(tmp_path: Path) -> None:
    record = KeyRecord(name="one", hash="0" * 64, conversations=1)
    with columns(tmp_path) as counts:
        first, second, _ = (Account(record, "salt", counts=one) for one in counts)
        first.continue_conversation()
        with pytest.raises(TenantFull):
            second.check_room()
        counts[1].clear(0)
        second.check_room()


def test_requests_and_bytes_are_limited_together(tmp_path: Path) -> None:
    with columns(tmp_path) as (one, two, _):
        limits = RequestLimit(1, counts=one), RequestLimit(1, counts=two)
        with limits[0].admit(), pytest.raises(Overloaded):
            limits[1].check()
        limits[1].check()
        held = Allowance(100, one), Allowance(100, two)
        with held[0].share() as share:
            share.hold(60)
            with pytest.raises(Overloaded):
                held[1].take(60)
            share.give_back(30)
            held[1].take(60)
        assert one.elsewhere("held_bytes") == 60
        assert two.elsewhere("held_bytes") == 0
