"""Notes that all processes of a cell share."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from voxlane.server.phone.passes import NextSteps, Passes, SeenSignatures
from voxlane.server.protocols.phone.line_events import CallFacts
from voxlane.server.sessions.client_secrets import ClientSecrets
from voxlane.server.store.notes import FILE, SharedNotes
from voxlane.server.tenants.accounts import Tenants

SECRET = b"s" * 32
FACTS = CallFacts("twilio", "call", "+4930123456", "+4930654321", {"name": "Ada"})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def both(tmp_path: Path, clock: Clock) -> Iterator[tuple[SharedNotes, SharedNotes]]:
    """The notes as two processes have them."""
    with (
        contextlib.closing(SharedNotes(tmp_path, SECRET, clock)) as one,
        contextlib.closing(SharedNotes(tmp_path, SECRET, clock)) as two,
    ):
        yield one, two


def test_a_pass_is_good_once_at_any_process(both: tuple[SharedNotes, SharedNotes], clock: Clock) -> None:
    here, there = (Passes(notes=notes) for notes in both)
    token = here.issue(FACTS)
    assert there.redeem(token) == FACTS
    assert here.redeem(token) is None
    late = here.issue(FACTS)
    clock.now = 61.0
    assert there.redeem(late) is None


def test_what_follows_a_call_is_known_everywhere(both: tuple[SharedNotes, SharedNotes]) -> None:
    here, there = (NextSteps(notes=notes, secret=b"cell") for notes in both)
    here.transfer("call", "+4930123456", "+49301")
    assert there.ticket("call") == here.ticket("call")
    step = there.take("call")
    assert step is not None
    assert (step.target, step.called) == ("+4930123456", "+49301")
    assert here.take("call") is None


def test_a_signature_is_new_once(both: tuple[SharedNotes, SharedNotes], clock: Clock) -> None:
    here, there = (SeenSignatures(notes=notes) for notes in both)
    assert here.is_first("signature")
    assert not there.is_first("signature")
    assert not here.is_first("signature")
    clock.now = 86401.0
    assert there.is_first("signature")


def test_a_client_secret_opens_every_process_until_it_expires(
    both: tuple[SharedNotes, SharedNotes], clock: Clock
) -> None:
    tenants = Tenants("key")
    here, there = (ClientSecrets(notes=notes, account_of=tenants.with_salt) for notes in both)
    value, _ = here.issue({"instructions": "Be brief."}, 60, tenants.default)
    for secrets in (here, there):
        grant = secrets.redeem(value)
        assert grant is not None
        assert grant.session == {"instructions": "Be brief."}
        assert grant.account is tenants.default
    assert there.redeem("ek_other") is None
    clock.now = 61.0
    assert there.redeem(value) is None


def test_of_too_many_the_first_to_expire_are_dropped(both: tuple[SharedNotes, SharedNotes]) -> None:
    here, there = both
    for number in range(5):
        here.put("kind", bytes([number]), b"value", 60.0 + number, 3)
    here.put("other kind", b"x", b"value", 1.0, 3)
    assert [there.get("kind", bytes([number])) is not None for number in range(5)] == [False, False, True, True, True]
    assert there.get("other kind", b"x") == b"value"


def test_the_file_tells_nothing_of_what_is_kept(both: tuple[SharedNotes, SharedNotes], tmp_path: Path) -> None:
    """Where the memory of a container is small, the file lies on a disk."""
    here, _ = both
    Passes(notes=here).issue(FACTS)
    NextSteps(notes=here, secret=b"cell").transfer("call", "+4930999999", "+4930888888")
    tenants = Tenants("key")
    ClientSecrets(notes=here, account_of=tenants.with_salt).issue({"instructions": "Be brief."}, 60, tenants.default)
    here.put("kind", b"a telling key", b"a telling value", 60.0, 3)
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for told in (b"+4930123456", b"Ada", b"+4930999999", b"Be brief", b"a telling key", b"a telling value"):
        assert told not in written


def test_a_note_is_good_for_its_place_alone(both: tuple[SharedNotes, SharedNotes], tmp_path: Path) -> None:
    here, there = both
    here.put("kind", b"one", b"for one", 60.0, 3)
    here.put("kind", b"two", b"for two", 60.0, 3)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as database:
        (value,) = database.execute("SELECT min(value) FROM notes").fetchone()
        database.execute("UPDATE notes SET value = ?", (value,))  # one of the two is now the other's
    read = [there.get("kind", key) for key in (b"one", b"two")]
    assert read in ([b"for one", None], [None, b"for two"])


def test_another_cell_reads_no_note(both: tuple[SharedNotes, SharedNotes], tmp_path: Path, clock: Clock) -> None:
    here, _ = both
    here.put("kind", b"one", b"for one", 60.0, 3)
    with contextlib.closing(SharedNotes(tmp_path, b"t" * 32, clock)) as other:
        assert other.get("kind", b"one") is None
