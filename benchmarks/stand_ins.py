"""Empty stand-ins for packages that a machine with a GPU may lack and that the measured parts of the engine never call.

Import this before anything of voxlane. What is installed stays as it is.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

PACKAGES = (
    *("msgpack", "llguidance", "gguf", "gguf.constants", "gguf.quants", "platformdirs", "tokenizers", "jinja2"),
    *("jinja2.runtime", "jinja2.ext", "jinja2.parser", "jinja2.sandbox", "jinja2.nodes", "jinja2.meta"),
    *("jinja2.visitor", "webrtcvad"),
)


class _Kind(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __iter__(cls) -> Any:
        return iter(())


class _Anything(metaclass=_Kind):
    """Whatever is asked of it, it is that."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __iter__(self) -> Any:
        return iter(())


class _StandIn(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # what makes it a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (_Anything,), {"__class_getitem__": classmethod(lambda cls, _: cls)})


def fill_in() -> list[str]:
    """Put a stand-in for each missing package; return their names."""
    missing: list[str] = []
    for name in PACKAGES:
        top = name.partition(".")[0]
        if top in missing or (name == top and name not in sys.modules and importlib.util.find_spec(name) is None):
            sys.modules[name] = _StandIn(name)
            missing.append(name)
    if "platformdirs" in missing:
        sys.modules["platformdirs"].user_cache_dir = lambda *_: ".cache"  # type: ignore[attr-defined]
    return missing


MISSING = fill_in()
