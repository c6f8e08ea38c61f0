"""What a store holds of a conversation, and the three things that can be done with it.

A record has an owner, the server process that runs the conversation, and a fence, a number that rises with every
change of owner. A write names both and is refused if they are no longer those of the record. Contents are sealed
before they come here (seal.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

PARTS = ("config", "history", "recent")
"""The sealed parts of a record. Each is written when it has changed."""

HASH_BYTES, TOKEN_BYTES = 32, 92
"""Size of a token's hash, and of a token's entry: the hash, then the key that this token unwraps."""

WriteOutcome = Literal["written", "missing", "other_owner"]


@dataclass(frozen=True, slots=True)
class SessionWrite:
    """A change to one record. What it does not give stays as it is."""

    name: str
    fence: int
    owner: str
    now_ms: int  # since 1970
    expires_ms: int
    tokens: bytes | None = None  # entries of the tokens that are valid, one behind the other
    parts: Mapping[str, bytes] = field(default_factory=dict)
    creates: bool = False  # it is complete: make the record if there is none
    ends: bool = False  # the conversation is over: keep the fence alone, so that no later write brings it back


@dataclass(frozen=True, slots=True)
class SessionClaim:
    """A process asks for a conversation whose token it was shown."""

    name: str
    token_hash: bytes
    owner: str
    now_ms: int
    expires_ms: int
    fence: int = 0  # the fence that the record must still have; 0: any
    looks: bool = False  # read the record and change nothing


@dataclass(frozen=True, slots=True)
class ClaimedSession:
    """A record, which belongs to the process that has claimed it."""

    fence: int
    tokens: bytes
    parts: Mapping[str, bytes]


class SessionStore(Protocol):
    """Keeps the records of conversations. Its methods raise StoreUnavailable when the store does not answer in time."""

    outlives_process: bool  # False: what it keeps is gone with the process

    async def open(self) -> None:
        """Make it ready for use; raise ConfigError if it can never be."""

    async def write(self, write: SessionWrite) -> WriteOutcome:
        """Change a record, if its owner and fence are those of the write.

        An expired record counts as missing. So does one with a lower fence: the store was emptied or is a copy that is
        behind, and an earlier owner has written first. The owner with the highest fence writes or ends it anew.
        """

    async def claim(self, claim: SessionClaim) -> ClaimedSession | None:
        """Give a record to another owner; return None if there is none with this token, or with another fence.

        A claim whose caller no longer waits is not carried out.
        The new fence is above the old one, and not below the time: it stays the highest even after the store was
        emptied.
        """

    async def aclose(self) -> None:
        """Write what waits, and let go of files and connections."""


def token_hashes(tokens: bytes) -> list[bytes]:
    """Return the hashes of a record's tokens."""
    return [tokens[at : at + HASH_BYTES] for at in range(0, len(tokens), TOKEN_BYTES)]
