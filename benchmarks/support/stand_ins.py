"""Empty stand-ins for packages that a machine with a GPU may lack and that the measured parts of the engine never call.

Import this before anything of voxlane. Installed packages are left alone.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

PACKAGES = (
    "msgpack", "llguidance", "gguf", "gguf.constants", "gguf.quants", "platformdirs", "tokenizers", "jinja2",
    "jinja2.runtime", "jinja2.ext", "jinja2.parser", "jinja2.sandbox", "jinja2.nodes", "jinja2.meta", "jinja2.visitor",
    "webrtcvad",
)  # fmt: skip


class _Kind(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __iter__(cls) -> Any:
        return iter(())


class _Anything(metaclass=_Kind):
    """An object that allows every use."""

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
        self.__path__ = []  # makes it a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kind(name, (_Anything,), {"__class_getitem__": classmethod(lambda cls, _: cls)})


def fill_in() -> list[str]:
    """Install a stand-in for each missing package; return their names."""
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
