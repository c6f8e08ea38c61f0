"""`voxlane keys`: the tenants of a server in keys.file. A running server sees a change within seconds."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from voxlane.server.commands.terminal import write_text
from voxlane.server.errors import ConfigError
from voxlane.server.log import quote
from voxlane.server.tenants.key_file import KeyRecord, change_keys, check_name, key_hash, new_key, read_keys
from voxlane.server.validation import InvalidValue, checked


def run_add(path: Path, wanted: KeyRecord) -> int:
    """Make a key, write down its hash, and show it: this once, it is nowhere else."""
    check_name(wanted.name)
    key = new_key()
    created = datetime.now(UTC).isoformat(timespec="seconds")
    record = structs.replace(wanted, hash=key_hash(key), created=created)
    try:
        checked(KeyRecord, structs.asdict(record))
    except InvalidValue as error:
        raise ConfigError(f"--{error.path.replace('_', '-')} {error.rule}") from error

    def added(records: tuple[KeyRecord, ...]) -> tuple[KeyRecord, ...]:
        if any(one.name == record.name for one in records):
            raise ConfigError(f"{record.name} has a key already: choose another name, or revoke it first")
        return (*records, record)

    change_keys(path, added)
    print(f"the key of {record.name}, shown this once: keep it safe", file=sys.stderr)
    write_text(sys.stdout, f"{key}\n")
    return 0


def run_revoke(path: Path, name: str) -> int:
    """Take a key out; its conversations on a running server end."""

    def left(records: tuple[KeyRecord, ...]) -> tuple[KeyRecord, ...]:
        rest = tuple(one for one in records if one.name != name)
        if len(rest) == len(records):
            raise ConfigError(f"there is no key of {quote(name)}: see `voxlane keys list`")
        return rest

    read_keys(path)  # a file that is not there has no key to revoke
    change_keys(path, left)
    write_text(sys.stdout, f"{name} is revoked; its conversations end within seconds\n")
    return 0


def run_list(path: Path) -> int:
    """Print the tenants and their limits, a line each."""
    records = read_keys(path)
    if not records:
        print("no keys yet: voxlane keys add NAME", file=sys.stderr)
        return 0
    head = ("name", "created", "conversations", "requests/min", "audio min/min", "priority")
    rows = [head, *(_row(record) for record in records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        write_text(sys.stdout, "  ".join(map(str.ljust, row, widths)).rstrip() + "\n")
    return 0


def _row(record: KeyRecord) -> tuple[str, ...]:
    numbers = (record.conversations, record.requests_per_minute, record.audio_minutes_per_minute)
    return (
        record.name,
        record.created or "-",
        *(f"{number:g}" if number else "-" for number in numbers),
        record.priority,
    )
