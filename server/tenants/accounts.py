"""Which tenant a key belongs to, and what each tenant uses of its limits.

An account lives as long as the server, whatever happens to the file: a conversation that holds it sees new limits and a
revocation at once.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from voxlane.engine.api import Priority
from voxlane.server import limits
from voxlane.server.cell.counts import CellCounts, KeyedTotal
from voxlane.server.config import PRIORITIES
from voxlane.server.errors import ConfigError, Forbidden, KeyRevoked, QuotaReached, TenantFull, Unauthorized
from voxlane.server.log import line
from voxlane.server.tenants.budget import MINUTE_S, MinuteBudget
from voxlane.server.tenants.key_file import DEFAULT_NAME, KeyRecord, key_hash, others_can_read, read_keys

logger = logging.getLogger(__name__)

Clock = Callable[[], float]

_UNLIMITED = KeyRecord(name=DEFAULT_NAME, hash="0" * 64, priority="critical")


_SPENT: tuple[KeyedTotal, ...] = ("requests of tenant", "audio of tenant")


class Account:
    """One tenant, and what it uses now."""

    def __init__(
        self,
        record: KeyRecord = _UNLIMITED,
        salt: str = "",
        clock: Clock = time.monotonic,
        counts: CellCounts | None = None,
    ) -> None:
        self.name = record.name
        self._counts = counts or CellCounts()  # of all server processes
        self.salt = salt  # "": the server asks for no key, and all clients are one tenant
        self.revoked = False
        self.conversations = 0
        self._clock = clock
        self._record = record
        self._requests = MinuteBudget(record.requests_per_minute, clock())
        self._audio_s = MinuteBudget(record.audio_minutes_per_minute * MINUTE_S, clock())
        # What other processes have spent, as far as the budgets here know; what was spent before is over.
        self._followed = {what: self._counts.keyed_elsewhere(what, self._key) for what in _SPENT}

    def change(self, record: KeyRecord, salt: str) -> None:
        """Take over what the file says now."""
        now = self._clock()
        if (record.requests_per_minute > 0) != (self._record.requests_per_minute > 0):
            self._requests = MinuteBudget(record.requests_per_minute, now)
        if (record.audio_minutes_per_minute > 0) != (self._record.audio_minutes_per_minute > 0):
            self._audio_s = MinuteBudget(record.audio_minutes_per_minute * MINUTE_S, now)
        self._requests.change(record.requests_per_minute, now)
        self._audio_s.change(record.audio_minutes_per_minute * MINUTE_S, now)
        self._record, self.salt, self.revoked = record, salt, False

    # ---- what it may do

    def cache_salt(self, asked: str) -> str:
        """Return the salt of an HTTP request's prefix cache: the tenant's own, with the one that it asked for.

        The first word keeps it apart from conversations, whose salts are their names.
        """
        return f"http {self.salt} {asked}" if self.salt or asked else ""

    def check_priority(self, asked: Priority) -> None:
        """Raise Forbidden if this tenant may not ask for a priority."""
        if asked > PRIORITIES[self._record.priority]:
            raise Forbidden(f"With this key, priority may be at most {self._record.priority}.", param="priority")

    def count_request(self) -> None:
        """Count a request, or raise QuotaReached."""
        self._check_key()
        if not self._record.requests_per_minute:
            return
        now = self._clock()
        self._follow("requests of tenant", self._requests, now)
        wait_s = self._requests.wait_s(now, 1)
        if wait_s:
            hint = f"This key has {self._record.requests_per_minute} requests a minute."
            raise QuotaReached(hint, detail="requests_per_minute", retry_after_s=_whole(wait_s))
        self._requests.spend(1, now)
        self._counts.add_keyed("requests of tenant", self._key, 1)

    def check_audio(self) -> None:
        """Raise QuotaReached if this tenant has used up its minutes of sound."""
        if not self._record.audio_minutes_per_minute:
            return
        now = self._clock()
        self._follow("audio of tenant", self._audio_s, now)
        wait_s = self._audio_s.wait_s(now)
        if wait_s:
            hint = f"This key has {self._record.audio_minutes_per_minute:g} minutes of sound a minute."
            raise QuotaReached(hint, detail="audio_minutes_per_minute", retry_after_s=_whole(wait_s))

    def count_audio(self, seconds: float) -> None:
        """Count sound."""
        if self._record.audio_minutes_per_minute:
            self._audio_s.spend(seconds, self._clock())
            self._counts.add_keyed("audio of tenant", self._key, seconds)

    def begin_conversation(self) -> None:
        """Count a conversation, or raise TenantFull or QuotaReached."""
        self.check_room()
        self.count_request()
        self.check_audio()
        self._count_conversation(1)

    def continue_conversation(self) -> None:
        """Count a conversation that another process has begun, or raise TenantFull."""
        self.check_room()
        self._count_conversation(1)

    def check_room(self) -> None:
        """Raise TenantFull if this tenant has as many conversations as it may."""
        self._check_key()
        most = self._record.conversations
        if most and self.conversations + self._counts.keyed_elsewhere("conversations of tenant", self._key) >= most:
            raise TenantFull(f"This key has {self._record.conversations} at one time.", detail="conversations")

    def end_conversation(self) -> None:
        """Count a conversation no more."""
        self._count_conversation(-1)

    @property
    def _key(self) -> str:
        """The name of its counts: another holder of the same name has another one."""
        return f"{self.name} {self.salt}"

    def _count_conversation(self, amount: int) -> None:
        self.conversations += amount
        self._counts.add_keyed("conversations of tenant", self._key, amount)

    def follow(self) -> None:
        """Look at what other server processes have spent; to be called about once a second."""
        now = self._clock()
        if self._record.requests_per_minute:
            self._follow("requests of tenant", self._requests, now)
        if self._record.audio_minutes_per_minute:
            self._follow("audio of tenant", self._audio_s, now)

    def _follow(self, what: KeyedTotal, budget: MinuteBudget, now: float) -> None:
        """Take out of a budget what other server processes have spent since the last look."""
        spent = self._counts.keyed_elsewhere(what, self._key)
        more = spent - self._followed[what]
        if more > 0:
            budget.follow(more, now)
        self._followed[what] = spent  # less than before: a process has died, and its count with it

    def _check_key(self) -> None:
        if self.revoked:
            raise KeyRevoked


class Tenants:
    """The tenants of one server: that of VOXLANE_API_KEY, and those of keys.file."""

    def __init__(
        self,
        api_key: str = "",
        path: Path | None = None,
        clock: Clock = time.monotonic,
        counts: CellCounts | None = None,
    ) -> None:
        self._clock = clock
        self._counts = counts
        self._path = path
        self._seen = _Stamp(path)
        self._accounts: dict[str, Account] = {}  # by name
        self._by_hash: dict[str, Account] = {}  # those that may connect
        self._api_hash = key_hash(api_key) if api_key else ""
        self.default = Account(_UNLIMITED, _salt(self._api_hash) if api_key else "", clock, counts)
        records = read_keys(path) if path is not None else ()
        self._apply(records)
        if path is not None and others_can_read(path):
            logger.warning(line("keys file readable by others", file=path, advice="chmod 600"))

    @property
    def key_needed(self) -> bool:
        """Whether clients must show a key."""
        return bool(self._api_hash) or self._path is not None

    def find(self, key: str) -> Account | None:
        """Return the tenant of a key, None if there is none."""
        # Looked up by hash, so that the time it takes reveals nothing about existing keys.
        return self._by_hash.get(key_hash(key))

    def with_salt(self, salt: str) -> Account | None:
        """Return the tenant with a cache salt, None if it is gone."""
        known = (self.default, *self._accounts.values())
        return next((account for account in known if account.salt == salt and not account.revoked), None)

    def admit(self, key: str | None) -> Account:
        """Return the tenant of a client with this key; raise Unauthorized if it needs another one."""
        if not self.key_needed:
            return self.default
        account = None if key is None else self.find(key)
        if account is None:
            raise Unauthorized
        return account

    def follow(self) -> None:
        """Have all budgets know what other server processes have spent."""
        for account in self._accounts.values():
            account.follow()

    def refresh(self) -> bool:
        """Read the file again if it has changed; return whether a key was revoked.

        A file that cannot be read changes nothing: the keys of before stay.
        """
        if self._path is None or not self._seen.changed():
            return False
        try:
            records = read_keys(self._path)
        except ConfigError as error:
            logger.error(line("keys not read again", reason=error.hint))
            return False
        revoked = self._apply(records)
        logger.info(line("keys read again", keys=len(records), revoked=len(revoked)))
        return bool(revoked)

    def _apply(self, records: Iterable[KeyRecord]) -> list[Account]:
        """Make the accounts those of the file; return those that were revoked."""
        by_hash = {self._api_hash: self.default} if self._api_hash else {}
        for record in records:
            salt = _salt(record.hash)
            account = self._accounts.get(record.name)
            if account is None:
                account = self._accounts[record.name] = Account(record, salt, self._clock, self._counts)
            elif account.salt != salt:  # revoked and added again under the same name: another holder
                account.revoked = True
                account = self._accounts[record.name] = Account(record, salt, self._clock, self._counts)
            else:
                account.change(record, salt)
            by_hash[record.hash] = account
        kept = set(map(id, by_hash.values()))
        gone = [account for account in self._by_hash.values() if id(account) not in kept]
        for account in gone:
            account.revoked = True
            if self._accounts.get(account.name) is account:
                del self._accounts[account.name]
        self._by_hash = by_hash
        return gone


class _Stamp:
    """Tells by its inode, time and size whether a file was written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._last = self._now()

    def changed(self) -> bool:
        now = self._now()
        changed = now != self._last
        self._last = now
        return changed

    def _now(self) -> tuple[int, int, int]:
        if self._path is None:
            return 0, 0, 0
        try:
            status = os.stat(self._path)
        except OSError:
            return 0, 0, 0
        return status.st_ino, status.st_mtime_ns, status.st_size


def _salt(hashed: str) -> str:
    """Return the cache salt of a key; it does not tell the key's hash."""
    return hashlib.blake2b(hashed.encode(), digest_size=16, person=b"voxlane salt").hexdigest()


def _whole(wait_s: float) -> int:
    """Return a wait as clients are told it: in whole seconds."""
    return max(limits.RETRY_AFTER_SECONDS, math.ceil(wait_s))
