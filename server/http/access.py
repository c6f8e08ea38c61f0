"""What the middleware must know of each address: who may use it, and how it is called in the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use an address, and when."""

    key: Literal["middleware", "endpoint", "none"]  # what asks for the server's key
    any_host: bool = False  # a server without a key that only its own machine can reach answers under any name
    when_full: bool = False  # answered when the limit of connections is reached, too
    quiet: bool = False  # frequent, and of no interest in a log


KEYED = Access("middleware")
OWN_KEY = Access("endpoint")
OPEN = Access("none")
SIGNED = Access("none", any_host=True)  # the endpoint checks the sender
FILES = Access("none", any_host=True, quiet=True)
METRICS = Access("none", when_full=True, quiet=True)
PROBE = Access("none", any_host=True, when_full=True, quiet=True)


class AccessTable:
    """The access of all addresses; a name in braces stands for whatever follows."""

    def __init__(self, accesses: Mapping[str, Access]) -> None:
        self._plain = {path: access for path, access in accesses.items() if "{" not in path}
        self._families = {path.partition("{")[0]: (path, access) for path, access in accesses.items() if "{" in path}

    def find(self, path: str) -> tuple[str, Access]:
        """Return how an address is called in the metrics, and its access; elsewhere under /v1/ a key is asked for."""
        if path in self._plain:
            return path, self._plain[path]
        for beginning, (template, access) in self._families.items():
            if path.startswith(beginning):
                return f"{beginning}{{{template[len(beginning) + 1 :].partition('}')[0].partition(':')[0]}}}", access
        return "other", KEYED if path.startswith("/v1/") else OPEN
