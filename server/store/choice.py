"""Make the store that the configuration names."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from platformdirs import user_state_path

from voxlane.codecs.extras import install_command
from voxlane.server.config import StoreConfig
from voxlane.server.errors import ConfigError
from voxlane.server.store.memory import MemoryStore
from voxlane.server.store.seal import can_seal
from voxlane.server.store.values import SessionStore


def make_store(config: StoreConfig, password: str = "") -> SessionStore:
    """Return the store of a configuration, not yet open."""
    if config.kind == "memory":
        return MemoryStore()
    if not can_seal() or (config.kind == "redis" and find_spec("redis") is None):
        raise ConfigError(f"store.kind: {config.kind} needs more packages: {install_command('store')}")
    if config.kind == "sqlite":
        from voxlane.server.store.sqlite import SqliteStore

        path = Path(config.path) if config.path else user_state_path("voxlane") / "conversations.sqlite"
        return SqliteStore(path, config.wait_s)
    from voxlane.server.store.redis import RedisStore

    return RedisStore(config.url, password, config.wait_s)
