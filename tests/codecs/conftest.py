"""An installation without the extra."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import av` fail as it does where PyAV is not installed."""
    monkeypatch.setitem(sys.modules, "av", None)
