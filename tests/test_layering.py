"""Who may import whom, read from the source itself.

    server → engine.api, codecs     (cli → engine.weights.command, which is mounted as `voxlane models`)
    engine → codecs
    codecs → nothing of ours
torch only in engine/, never in engine/api/; asyncio only where there is I/O; pure modules have no clock, no chance
and no log.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("server", "engine", "codecs")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

PURE = {
    "server.floor", "server.probes",
    "server.session", "server.ear", "server.turns", "server.ledger", "server.speech", "server.limits", "server.events",
    "server.api.chat_reply", "server.api.chat_request", "server.errors",
    "engine.scheduler", "engine.cost", "engine.kv", "engine.wire", "engine.request", "engine.lookup",
    "engine.step_time", "engine.ahead",
    "engine.detokenizer", "engine.intake", "engine.listening", "engine.segmenter",
    "server.answers",
    "server.mailbox",
    "server.buckets",
    "server.channel",
    "server.player",
    "server.reply",
    "server.history",
    "server.closing",
    "server.editing",
    "server.user_turn",
    "server.transcript",
    "server.voices",
    "server.clip",
    "server.api.fields",
    "server.api.multipart",
    "server.api.speech_request",
    "server.api.transcription_request",
    "engine.plan",
}  # fmt: skip
PURE_PREFIXES = ("server.protocols.", "codecs.", "engine.spoken", "engine.api")
IMPURITIES = {"asyncio", "time", "random", "secrets", "logging", "socket", "threading", "datetime"}

ASYNC = {
    "server.app", "server.connection", "server.engine_link", "server.packets", "server.front", "server.gate",
    "server.serve", "server.cli", "server.chat_cli", "server.perplexity_cli", "server.api.chat",
    "server.api.disconnect", "server.api.docs", "server.api.body", "server.api.speech", "server.decoding",
    "server.feeding",
    "server.client", "server.conversation", "server.hub", "server.remote_chat", "server.talk_cli",
    "server.say_cli", "server.sinks", "server.speaking", "server.stream", "server.terminal", "server.transcribe_cli",
}  # fmt: skip
"""Modules that do I/O or wait for it."""

WEIGHTS_FACES = {"engine.weights.command", "engine.weights.store"}
WEIGHTS_USERS = {"server.cli"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
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
    return {name.removeprefix("voxlane.") for name in found}


def touches(imported: set[str], *modules: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in imported for module in modules)


def ours(imported: set[str]) -> set[str]:
    """Return our own modules among the imports, names inside modules cut off."""
    modules = {name_of(path) for path in SOURCES}
    return {name for name in imported if name in modules}


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 20
    assert touches(imports_of(ROOT / "server" / "engine_link.py"), "engine.api")
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
