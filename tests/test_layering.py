"""Which package may import which, read from the source itself.

    server → engine.api, codecs     (cli → engine.weights.command, which is mounted as `voxlane models`)
    engine → codecs
    codecs → nothing of ours
Inside engine/ and server/ a room imports those before it: ROOMS has their order.
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
    "server.errors", "server.limits", "server.microphone", "server.player",
    "server.validation", "server.api.bodies", "server.api.chat_reply", "server.api.chat_request", "server.api.form",
    "server.api.speech_request", "server.api.thoughts", "server.api.tool_request", "server.api.transcription_request",
    "server.api.voice_request",
    "server.audio.clip", "server.audio.transcript", "server.audio.voices", "server.cluster.facts",
    "server.engine_client.channel", "server.engine_client.step_watch", "server.phone.call_facts",
    "server.phone.call_tools", "server.phone.departure", "server.phone.documents",
    "server.lab.attribution", "server.lab.call", "server.lab.compare", "server.lab.definitions", "server.lab.gates",
    "server.lab.judge", "server.lab.line", "server.lab.loudspeaker", "server.lab.metrics", "server.lab.person",
    "server.lab.recall", "server.lab.results", "server.lab.scenario", "server.lab.script", "server.lab.summary",
    "server.lab.values",
    "server.phone.keypad", "server.phone.line_encoder", "server.phone.line_microphone", "server.phone.line_player",
    "server.phone.patience", "server.phone.phone_codec", "server.phone.signatures", "server.phone.tones",
    "server.http.address_rates", "server.http.buckets", "server.http.proxies", "server.room.estimate",
    "server.sessions.outbound",
    "server.tenants.budget", "server.webrtc.sdp", "server.webrtc.track_microphone", "server.webrtc.track_playback",
    "server.watching.heard_sound", "server.watching.turn_account",
    "server.watching.watched_call",
    "engine.audio.segmenter", "engine.audio.transcriber", "engine.jobs.admission", "engine.memory.blocks",
    "engine.text.detokenizer",
}  # fmt: skip
PURE_PREFIXES = (
    "server.conversation.", "server.lab.dialects.", "server.protocols.", "codecs.", "engine.api", "engine.schedule.",
    "engine.text.normalise.",
)  # fmt: skip
IMPURITIES = {"asyncio", "time", "random", "secrets", "logging", "socket", "threading", "datetime"}

ASYNC = {
    "server.app", "server.cli", "server.client",
    "server.api.chat_engine", "server.api.disconnect", "server.api.reference.docs", "server.api.speech",
    "server.audio.decoding", "server.audio.opus_process", "server.audio.feeding", "server.audio.speaking",
    "server.commands.chat", "server.commands.neighbours", "server.commands.perplexity", "server.commands.say",
    "server.commands.serve", "server.commands.sinks", "server.commands.talk", "server.commands.terminal",
    "server.commands.stopping",
    "server.commands.supervisor", "server.commands.transcribe", "server.commands.voices", "server.commands.worker",
    "server.engine_client.child", "server.engine_client.engine_client", "server.engine_client.engine_process",
    "server.cell.control", "server.cell.member", "server.engine_client.linked_engine", "server.engine_client.packets",
    "server.engine_client.remote_chat", "server.engine_client.stream",
    "server.http.body", "server.http.frames", "server.http.heads", "server.http.middleware",
    "server.http.request_limit", "server.http.tls", "server.http.transports",
    "server.commands.lab", "server.lab.agents.server", "server.lab.holding", "server.lab.runner",
    "server.lab.versus",
    "server.phone.call", "server.phone.incoming", "server.phone.sockets", "server.phone.tool_webhook",
    "server.room.agent_check", "server.sessions.connection", "server.sessions.conversation", "server.sessions.journal",
    "server.sessions.registry", "server.store.redis", "server.store.sqlite",
    "server.watching.call_webhook", "server.watching.disk_thread", "server.watching.recordings",
    "server.watching.traces", "server.watching.watch_service",
    "server.webrtc.call_socket", "server.webrtc.calls", "server.webrtc.peer",
}  # fmt: skip
"""Modules that do I/O or wait for it."""

ROOMS = {
    "engine": (
        "api", "errors", "progress", "links", "weights", "kernels", "memory", "text", "audio", "schedule", "models",
        "runners", "voices", "jobs", "loop", "build", "template", "process",
    ),
    "server": (
        "limits", "errors", "log", "validation", "player", "microphone", "conversation", "config", "auth", "cell",
        "tenants", "engine_client", "metrics", "room", "watching", "store", "audio", "protocols", "http", "sessions",
        "phone", "webrtc", "service", "api", "app", "client", "exchange", "lab", "cluster", "commands", "cli",
    ),
}  # fmt: skip
"""The folders of each package and the files at its door, in order: each may import those before it."""

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
    assert touches(imports_of(ROOT / "server" / "engine_client" / "engine_process.py"), "engine.api")
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


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("package", ROOMS)
def test_every_module_is_in_a_room(package: str) -> None:
    found = {room_of(name) for name in OURS if name.startswith(f"{package}.")}
    assert found == set(ROOMS[package])


@pytest.mark.parametrize("path", [path for path in SOURCES if room_of(name_of(path))], ids=name_of)
def test_rooms_import_those_before_them(path: Path) -> None:
    name = name_of(path)
    package, room = name.split(".")[0], room_of(name)
    if package in ROOMS:
        later = set(ROOMS[package][ROOMS[package].index(room) + 1 :])
        upwards = {one for one in ours(imports_of(path)) if one.startswith(f"{package}.") and room_of(one) in later}
        assert not upwards, f"{name} imports {sorted(upwards)}"


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


def test_a_public_class_name_means_one_thing() -> None:
    defined: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(name_of(path))
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}


def test_no_pickle_anywhere() -> None:
    for path in SOURCES:
        assert not touches(imports_of(path), "pickle", "dill", "cloudpickle", "shelve", "marshal", "torch.load"), path
