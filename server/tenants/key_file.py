"""The file of keys: who may connect, and with which limits. The keys themselves are not in it, only their hashes.

A key is 256 random bits, so one SHA-256 is enough: there is no dictionary to try, and a slow hash would only slow down
every request. A new file replaces the old one in one step, so a reader sees all of a change or nothing of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from voxlane.server import limits
from voxlane.server.errors import ConfigError
from voxlane.server.log import quote
from voxlane.server.validation import InvalidValue, checked

KEY_PREFIX = "vox_"
"""Programs that look for leaked secrets can find a key by this prefix."""

DEFAULT_NAME = "default"
"""The tenant of VOXLANE_API_KEY, and of a server without keys."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
NAME_RULE = "a name has up to 64 of a-z, 0-9, dot, dash and underscore, and begins with a letter or a digit"

PriorityRight = Literal["normal", "high", "critical"]


class KeyRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One tenant: its name, the hash of its key, and its limits; 0 is no limit."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    hash: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    created: Annotated[str, Meta(max_length=32)] = ""
    conversations: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    requests_per_minute: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    audio_minutes_per_minute: Annotated[float, Meta(ge=0, le=1 << 20)] = 0.0
    priority: PriorityRight = "normal"


class _KeyFile(Struct, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    keys: Annotated[tuple[KeyRecord, ...], Meta(max_length=limits.KEYS)] = ()


def new_key() -> str:
    """Return a new key of 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_hash(key: str) -> str:
    """Return the hash under which a key is kept."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(name: str) -> None:
    """Raise ConfigError for a name that a tenant cannot have."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{quote(name)}: {NAME_RULE}")
    if name == DEFAULT_NAME:
        raise ConfigError(f"{DEFAULT_NAME} is the tenant of VOXLANE_API_KEY: choose another name")


def read_keys(path: Path) -> tuple[KeyRecord, ...]:
    """Return the tenants in a file; raise ConfigError if it cannot be read or is not what `voxlane keys` writes."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(
            f"keys.file: {path} does not exist: `voxlane keys add NAME --file {path}` makes it"
        ) from error
    except OSError as error:
        raise ConfigError(f"keys.file: {path}: {error.strerror or error}") from error
    return parse_keys(data, str(path))


def parse_keys(data: bytes, source: str) -> tuple[KeyRecord, ...]:
    """Return the tenants in a file's bytes."""
    if len(data) > limits.KEY_FILE_BYTES:
        raise ConfigError(f"keys.file: {source} is larger than {limits.KEY_FILE_BYTES} bytes")
    try:
        found = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 too
        raise ConfigError(f"keys.file: {source} is not JSON") from error
    try:
        records = checked(_KeyFile, found).keys
    except InvalidValue as error:
        raise ConfigError(f"keys.file: {source}: {error.path or 'the file'} {error.rule}") from error
    names = [record.name for record in records]
    for name in names:
        check_name(name)
    if len(set(names)) < len(names) or len({record.hash for record in records}) < len(records):
        raise ConfigError(f"keys.file: {source} has a name or a key twice")
    return records


def others_can_read(path: Path) -> bool:
    """Return whether users beside the owner and its group can read a file."""
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def change_keys(path: Path, change: Callable[[tuple[KeyRecord, ...]], tuple[KeyRecord, ...]]) -> None:
    """Replace the tenants in a file, which need not exist; two commands at one time do not lose each other's change."""
    with _locked(path.parent):
        before = read_keys(path) if path.exists() else ()
        _write(path, change(before))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"keys.file: {folder}: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, records: tuple[KeyRecord, ...]) -> None:
    text = json.dumps({"version": 1, "keys": [msgspec.to_builtins(record) for record in records]}, indent=1) + "\n"
    if len(records) > limits.KEYS:
        raise ConfigError(f"keys.file: {path} has {limits.KEYS} keys already: revoke one")
    target = Path(os.path.realpath(path))  # a link stays a link
    try:
        owner = target.stat() if target.exists() else None
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # its mode is 0600
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(descriptor)
                if owner is not None and os.geteuid() == 0:
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)  # root adds a key: the server still reads it
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise ConfigError(f"keys.file: {path}: {error.strerror or error}") from error
