"""Packages that take seconds to import: the test that uses one imports it, the collection of all tests does not."""

from __future__ import annotations

import importlib
from typing import Any


class _Transformers:
    """The package transformers, imported when one of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        importlib.import_module("voxlane.engine.audio.torchaudio_import")  # before transformers, which imports it too
        return getattr(importlib.import_module("transformers"), name)


transformers: Any = _Transformers()
