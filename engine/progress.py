"""How this process shows the server that its step thread goes on.

Call `advance` and `allow` on the step thread only: the server replaces an engine whose count stands still.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from voxlane.engine.api import ProgressPage

CLAUSE_S = 30.0
"""How long one clause may take: ONNX Runtime does not count. The longest takes 1 s with hibari on two cores, and ten
with Kokoro."""

PROMPT_S = 20.0
"""How long a request may take to be read: its prompt is encoded in one call, 8 MB at most."""

COMPILING_S = 60.0
"""How long a step may take where kernels may have to be compiled in it, or where torch's own operations serve, which do
not count."""

COLLECTING_S = 20.0
"""How long a look for garbage may take."""

_page = ProgressPage()
_usual_s = 0.0


def show_on(page: ProgressPage) -> None:
    """Count on this page from now on."""
    global _page
    _page = page


def set_usual(seconds: float) -> None:
    """Set how long the count may stand still where nothing else is said; 0 leaves it to the server."""
    global _usual_s
    _usual_s = _page.allowed_s = seconds


def address() -> int:
    """Return where the count is in memory, for native code that counts on."""
    return _page.address


def advance() -> None:
    """Show that the step thread goes on."""
    _page.advance()


@contextmanager
def allow(seconds: float) -> Iterator[None]:
    """Announce an operation of the step thread that cannot count and may take so long."""
    _page.allowed_s = max(seconds, _usual_s)
    try:
        yield
    finally:
        _page.advance()
        _page.allowed_s = _usual_s
