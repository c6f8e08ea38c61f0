"""Tenants: whose key it is, what each may use, and what happens when the file changes."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.api import Priority
from voxlane.server import limits
from voxlane.server.errors import ConfigError, Forbidden, KeyRevoked, QuotaReached, TenantFull, Unauthorized
from voxlane.server.tenants.accounts import Account, Tenants
from voxlane.server.tenants.budget import MinuteBudget
from voxlane.server.tenants.key_file import KeyRecord, change_keys, key_hash, new_key, parse_keys, read_keys

KEYS = {name: new_key() for name in ("acme", "bolt")}


class Clock:
    """A time that only passes when told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def record(name: str = "acme", **values: object) -> KeyRecord:
    return KeyRecord(name=name, hash=key_hash(KEYS[name]), **values)  # type: ignore[arg-type]


def written(path: Path, *records: KeyRecord) -> Path:
    change_keys(path, lambda _: records)
    return path


# ---- whose key


def test_each_key_has_its_tenant(tmp_path: Path) -> None:
    tenants = Tenants("sesame", written(tmp_path / "keys.json", record("acme"), record("bolt")))
    assert tenants.key_needed
    assert [tenants.admit(key).name for key in ("sesame", *KEYS.values())] == ["default", "acme", "bolt"]
    for wrong in (None, "", "other", KEYS["acme"][:-1], KEYS["acme"] + "x", key_hash(KEYS["acme"]), "ö\ud800"):
        with pytest.raises(Unauthorized):
            tenants.admit(wrong)


def test_a_server_without_keys_has_one_tenant() -> None:
    tenants = Tenants()
    assert not tenants.key_needed
    assert tenants.admit(None) is tenants.admit("anything") is tenants.default
    assert tenants.default.cache_salt("") == ""


def test_an_empty_file_lets_no_client_in(tmp_path: Path) -> None:
    tenants = Tenants("", written(tmp_path / "keys.json"))
    assert tenants.key_needed
    with pytest.raises(Unauthorized):
        tenants.admit(None)


def test_no_two_tenants_share_a_salt(tmp_path: Path) -> None:
    tenants = Tenants("sesame", written(tmp_path / "keys.json", record("acme"), record("bolt")))
    accounts = [tenants.admit(key) for key in ("sesame", *KEYS.values())]
    salts = {account.cache_salt(asked) for account in accounts for asked in ("", "mine", accounts[0].salt)}
    assert len(salts) == 9  # the same words of two tenants are two salts
    assert not any(key_hash(key) in salt for key in KEYS.values() for salt in salts)
    again = Tenants("sesame", tmp_path / "keys.json")
    assert again.admit(KEYS["acme"]).salt == accounts[1].salt  # a restart changes nothing


# ---- limits


def test_requests_come_back_with_time() -> None:
    clock = Clock()
    account = Account(record(requests_per_minute=3), clock=clock)
    for _ in range(3):
        account.count_request()
    with pytest.raises(QuotaReached) as refused:
        account.count_request()
    assert refused.value.retry_after_s == pytest.approx(20)
    assert (refused.value.http_status, refused.value.close_code, refused.value.retryable) == (429, 4429, True)
    clock.now += 20
    account.count_request()
    with pytest.raises(QuotaReached):
        account.count_request()


def test_sound_may_be_overdrawn_once_and_is_paid_back() -> None:
    clock = Clock()
    account = Account(record(audio_minutes_per_minute=0.5), clock=clock)  # 30 s a minute
    account.check_audio()
    account.count_audio(60)  # a recording of a minute, whose length was not known before
    with pytest.raises(QuotaReached) as refused:
        account.check_audio()
    assert refused.value.retry_after_s == pytest.approx(60)
    clock.now += 61
    account.check_audio()


def test_conversations_are_counted() -> None:
    account = Account(record(conversations=2))
    account.begin_conversation()
    account.begin_conversation()
    with pytest.raises(TenantFull) as refused:
        account.begin_conversation()
    assert (refused.value.http_status, refused.value.close_code) == (429, 1013)
    account.end_conversation()
    account.begin_conversation()


@pytest.mark.parametrize(
    ("right", "asked", "allowed"),
    [
        ("normal", Priority.NORMAL, True),
        ("normal", Priority.HIGH, False),
        ("high", Priority.HIGH, True),
        ("high", Priority.CRITICAL, False),
        ("critical", Priority.CRITICAL, True),
    ],
)
def test_priorities_are_a_right(right: str, asked: Priority, allowed: bool) -> None:
    account = Account(record(priority=right))
    if allowed:
        account.check_priority(asked)
    else:
        with pytest.raises(Forbidden, match=f"at most {right}"):
            account.check_priority(asked)


def test_without_a_limit_nothing_is_refused() -> None:
    account = Account(record())
    for _ in range(1000):
        account.count_request()
        account.begin_conversation()
        account.count_audio(1e6)
        account.check_audio()


@settings(max_examples=examples(300), deadline=None)
@given(st.floats(0.01, 1000), st.lists(st.tuples(st.floats(0, 500), st.floats(0, 300)), max_size=30))
def test_a_budget_gives_what_it_earns(per_minute: float, steps: list[tuple[float, float]]) -> None:
    now = 0.0
    budget = MinuteBudget(per_minute, now)
    spent, largest = 0.0, 0.0
    for count, pause in steps:
        wait = budget.wait_s(now)
        if not wait:
            budget.spend(count, now)
            spent, largest = spent + count, max(largest, count)
        else:
            assert not budget.wait_s(now + wait * 1.001 + 1e-6)  # the told wait is enough
            now += wait * 1.001 + 1e-6
        assert spent <= per_minute * (1 + now / 60) + largest + 1e-6
        now += pause


# ---- the file


def test_the_file_is_private_and_holds_no_key(tmp_path: Path) -> None:
    path = written(tmp_path / "keys.json", record("acme", conversations=3, priority="high"))
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert KEYS["acme"] not in text
    assert key_hash(KEYS["acme"]) in text
    assert read_keys(path) == (record("acme", conversations=3, priority="high"),)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"keys": [], "x": "\xff"}', "not JSON"),
        (b"[]", "must be an object"),
        (b'{"keys": [{"name": "a"}]}', "hash"),
        (b'{"keys": [{"name": "a", "hash": "zz"}]}', "hash"),
        (b'{"keys": [{"name": "A B", "hash": "%s"}]}' % (b"0" * 64), "a name has"),
        (b'{"keys": [{"name": "default", "hash": "%s"}]}' % (b"0" * 64), "another name"),
        (b'{"keys": [{"name": "a", "hash": "%s", "more": 1}]}' % (b"0" * 64), "not known"),
        (b'{"version": 2}', "version"),
        (b" " * (limits.KEY_FILE_BYTES + 1), "larger"),
        (json.dumps({"keys": [{"name": name, "hash": "0" * 64} for name in "ab"]}).encode(), "twice"),
    ],
)
def test_a_file_that_is_wrong_is_told_in_a_sentence(text: bytes, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_keys(text, "keys.json")


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse_keys(data, "keys.json")


def test_a_missing_file_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="voxlane keys add NAME"):
        Tenants("", tmp_path / "keys.json")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target = written(tmp_path / "real.json", record("acme"))
    link = tmp_path / "keys.json"
    link.symlink_to(target)
    change_keys(link, lambda records: (*records, record("bolt")))
    assert link.is_symlink()
    assert [one.name for one in read_keys(target)] == ["acme", "bolt"]


def test_changes_are_seen(tmp_path: Path) -> None:
    path = written(tmp_path / "keys.json", record("acme", requests_per_minute=1))
    tenants = Tenants("", path)
    acme = tenants.admit(KEYS["acme"])
    assert not tenants.refresh()
    acme.count_request()
    written(path, record("acme", requests_per_minute=2), record("bolt"))
    assert not tenants.refresh()  # no key was revoked
    assert tenants.admit(KEYS["acme"]) is acme
    acme.count_request()  # the new limit counts for those who are there
    with pytest.raises(QuotaReached):
        acme.count_request()
    assert tenants.admit(KEYS["bolt"]).name == "bolt"
    written(path, record("bolt"))
    assert tenants.refresh()
    assert acme.revoked
    with pytest.raises(Unauthorized):
        tenants.admit(KEYS["acme"])
    with pytest.raises(KeyRevoked):
        acme.begin_conversation()


def test_a_name_with_another_key_is_another_holder(tmp_path: Path) -> None:
    path = written(tmp_path / "keys.json", record("acme"))
    tenants = Tenants("", path)
    before = tenants.admit(KEYS["acme"])
    other = new_key()
    written(path, KeyRecord(name="acme", hash=key_hash(other)))
    assert tenants.refresh()
    after = tenants.admit(other)
    assert before.revoked
    assert not after.revoked
    assert after is not before
    assert after.salt != before.salt


def test_a_broken_or_missing_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "keys.json", record("acme"))
    tenants = Tenants("", path)
    path.write_text('{"keys": [')
    for _ in range(3):
        assert not tenants.refresh()
    path.unlink()
    for _ in range(3):
        assert not tenants.refresh()
    assert caplog.text.count("keys not read again") == 2  # once for each change
    assert tenants.admit(KEYS["acme"]).name == "acme"


def test_a_file_that_others_can_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "keys.json", record("acme"))
    Tenants("", path)
    assert not caplog.text
    os.chmod(path, 0o644)
    Tenants("", path)
    assert "keys file readable by others" in caplog.text
