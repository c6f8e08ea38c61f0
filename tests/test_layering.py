"""Who may import whom, read from the source itself.

    server → engine.api, codecs     (cli → engine.weights.command, which is mounted as `voxlane models`)
    engine → codecs
    codecs → nothing of ours
Inside server/ a room imports those before it, from conversation/ to commands/.
torch only in engine/, never in engine/api/; asyncio only where there is I/O; pure modules have no clock, no chance
and no log.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("server", "engine", "codecs")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

PURE = {
    "server.errors", "server.limits", "server.player",
    "server.api.chat_reply", "server.api.chat_request", "server.api.fields", "server.api.multipart",
    "server.api.speech_request", "server.api.transcription_request",
    "server.audio.clip", "server.audio.transcript", "server.audio.voices",
    "server.link.channel", "server.live.buckets", "server.live.mailbox",
    "engine.ahead", "engine.cost", "engine.detokenizer", "engine.intake", "engine.kv", "engine.listening",
    "engine.lookup", "engine.plan", "engine.request", "engine.scheduler", "engine.segmenter", "engine.step_time",
    "engine.wire",
}  # fmt: skip
PURE_PREFIXES = ("server.conversation.", "server.protocols.", "codecs.", "engine.spoken", "engine.api")
IMPURITIES = {"asyncio", "time", "random", "secrets", "logging", "socket", "threading", "datetime"}

ASYNC = {
    "server.app", "server.cli", "server.client", "server.front", "server.gate",
    "server.api.body", "server.api.chat", "server.api.disconnect", "server.api.reference.docs", "server.api.speech",
    "server.audio.decoding", "server.audio.feeding", "server.audio.speaking",
    "server.commands.chat", "server.commands.heads", "server.commands.neighbours", "server.commands.perplexity",
    "server.commands.say", "server.commands.serve", "server.commands.sinks", "server.commands.talk",
    "server.commands.terminal", "server.commands.transcribe", "server.commands.voices",
    "server.link.engine_link", "server.link.packets", "server.link.remote_chat", "server.link.stream",
    "server.live.connection", "server.live.conversation", "server.live.hub",
}  # fmt: skip
"""Modules that do I/O or wait for it."""

ROOMS = ("conversation", "link", "audio", "protocols", "api", "live", "commands")
"""The server's folders: each may import those before it."""

WEIGHTS_FACES = {"engine.weights.command", "engine.weights.store"}
WEIGHTS_USERS = {"server.cli"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Return every module the file imports, anywhere in it; ours without the leading `voxlane.`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            # `from package import module` and `from module import name` look alike: keep both readings.
            found.add(module)
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return frozenset(name.removeprefix("voxlane.") for name in found)


def touches(imported: frozenset[str], *modules: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in imported for module in modules)


OURS = frozenset(map(name_of, SOURCES))


def ours(imported: frozenset[str]) -> frozenset[str]:
    """Return our own modules among the imports, names inside modules cut off."""
    return imported & OURS


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 20
    assert touches(imports_of(ROOT / "server" / "link" / "engine_link.py"), "engine.api")
    assert ours(imports_of(ROOT / "server" / "cli.py")) >= {"server.config", "engine.weights.command"}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_point_downwards(path: Path) -> None:
    name, imported = name_of(path), ours(imports_of(path))
    match name.split(".")[0]:
        case "server":
            allowed = {"engine", "engine.api"} | (
                WEIGHTS_FACES | {"engine.weights"} if name in WEIGHTS_USERS else set()
            )
            foreign = {module for module in imported if module.startswith("engine")} - allowed
        case "engine":
            foreign = {module for module in imported if module.startswith("server")}
        case _:
            foreign = {module for module in imported if not module.startswith("codecs")}
    assert not foreign, f"{name} imports {sorted(foreign)}"


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_those_before_them(room: str) -> None:
    later = {f"server.{other}" for other in ROOMS[ROOMS.index(room) + 1 :]}
    for path in (ROOT / "server" / room).rglob("*.py"):
        assert not touches(imports_of(path), *later), path


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_torch_stays_in_the_engine(path: Path) -> None:
    name = name_of(path)
    if not name.startswith("engine") or name.startswith("engine.api"):
        assert not touches(imports_of(path), "torch", "triton", "torchaudio")


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_asyncio_stays_where_there_is_io(path: Path) -> None:
    if name_of(path) not in ASYNC:
        assert not touches(imports_of(path), "asyncio", "uvloop")


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_pure_modules_have_no_clock_no_chance_and_no_log(path: Path) -> None:
    name = name_of(path)
    if name in PURE or name.startswith(PURE_PREFIXES):
        assert not touches(imports_of(path), *IMPURITIES)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_no_pickle_anywhere() -> None:
    for path in SOURCES:
        assert not touches(imports_of(path), "pickle", "dill", "cloudpickle", "shelve", "marshal", "torch.load"), path
