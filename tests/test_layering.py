"""Which package may import which, read from the source itself.

    server → engine.api, codecs     (cli → engine.weights.command, which is mounted as `voxlane models`)
    voxlane_lab → nothing of ours, but for speech; nothing imports it, but for `voxlane lab`
    engine → codecs
    codecs → nothing of ours
Inside engine/ and server/ a room imports those before it: docs/architecture.md has their order.
torch only in engine/, never in engine/api/; asyncio only where there is I/O; pure modules have no clock, no chance
and no log.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("server", "engine", "codecs")
LAB = ROOT / "benchmarks" / "lab"
SOURCES = sorted(
    path for folder in (*(ROOT / one for one in PACKAGES), LAB / "voxlane_lab") for path in folder.rglob("*.py")
)

PURE = {
    "server.errors", "server.limits", "server.client.microphone", "server.client.player",
    "server.validation", "server.api.bodies", "server.api.chat_reply", "server.api.chat_request", "server.api.form",
    "server.api.speech_request", "server.api.thoughts", "server.api.tool_request", "server.api.transcription_request",
    "server.api.voice_request",
    "server.audio.clip", "server.audio.transcript", "server.audio.voices", "server.cluster.facts",
    "server.engine_client.channel", "server.engine_client.step_watch", "server.phone.call_facts",
    "server.phone.call_states", "server.phone.call_tools", "server.phone.departure",
    "server.phone.keypad", "server.phone.line_encoder", "server.phone.line_microphone", "server.phone.line_player",
    "server.phone.patience", "server.phone.phone_codec", "server.phone.tones",
    "server.http.address_rates", "server.http.buckets", "server.http.proxies", "server.room.estimate",
    "server.sessions.outbound",
    "server.tenants.budget", "server.webrtc.sdp", "server.webrtc.track_microphone", "server.webrtc.track_playback",
    "server.watching.heard_sound", "server.watching.turn_account",
    "server.watching.watched_call",
    "voxlane_lab.attribution", "voxlane_lab.call", "voxlane_lab.checking", "voxlane_lab.compare",
    "voxlane_lab.definitions", "voxlane_lab.gates", "voxlane_lab.judge", "voxlane_lab.line", "voxlane_lab.loudspeaker",
    "voxlane_lab.metrics", "voxlane_lab.person", "voxlane_lab.rates", "voxlane_lab.recall", "voxlane_lab.results",
    "voxlane_lab.scenario", "voxlane_lab.script", "voxlane_lab.summary", "voxlane_lab.values", "voxlane_lab.waveform",
    "engine.audio.segmenter", "engine.audio.transcriber", "engine.jobs.admission", "engine.memory.blocks",
    "engine.text.detokenizer",
}  # fmt: skip
PURE_PREFIXES = (
    "server.conversation.", "server.protocols.", "voxlane_lab.dialects.", "codecs.", "engine.api", "engine.schedule.",
    "engine.text.normalise.",
)  # fmt: skip
IMPURITIES = {"asyncio", "time", "random", "secrets", "logging", "socket", "threading", "datetime"}

ASYNC = {
    "server.api.app", "server.cli", "server.client.voice_client",
    "server.api.chat_engine", "server.api.disconnect", "server.api.docs", "server.api.openapi",
    "server.api.speech",
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
    "voxlane_lab.agents.server", "voxlane_lab.commands", "voxlane_lab.holding", "voxlane_lab.runner",
    "voxlane_lab.sounds.make_shipped", "voxlane_lab.versus",
    "server.phone.call", "server.phone.incoming", "server.phone.sockets", "server.phone.tool_webhook",
    "server.room.agent_check", "server.sessions.connection", "server.sessions.conversation",
    "server.sessions.conversations", "server.sessions.drain", "server.sessions.driver", "server.sessions.journal",
    "server.sessions.moving", "server.sessions.parking", "server.sessions.registry", "server.sessions.session_limits",
    "server.store.redis", "server.store.sqlite",
    "server.watching.call_webhook", "server.watching.disk_thread", "server.watching.recordings",
    "server.watching.traces", "server.watching.watch_service",
    "server.webrtc.call_socket", "server.webrtc.calls", "server.webrtc.peer",
}  # fmt: skip
"""Modules that do I/O or wait for it."""

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def rooms_of(package: str) -> tuple[str, ...]:
    """Return the folders of a package and the files at its door in the order of their table in architecture.md."""
    table = ARCHITECTURE.partition(f"### The rooms of `{package}/`\n")[2].partition("\n#")[0]
    return tuple(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


ROOMS = {package: rooms_of(package) for package in ("engine", "server")}
"""Each room may import those before it."""

WEIGHTS_FACES = {"engine.weights.command", "engine.weights.store"}
WEIGHTS_USERS = {"server.cli"}
LAB_USERS = {"server.commands.lab"}
SPEECH_USERS = {"voxlane_lab.sounds.voices", "voxlane_lab.speech_engine", "voxlane_lab.understanding"}
"""The lab's modules that import voxlane, inside functions: it is an extra of theirs."""


def name_of(path: Path) -> str:
    parts = path.relative_to(LAB if path.is_relative_to(LAB) else ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in SOURCES}


@dataclass(frozen=True, slots=True)
class Facts:
    """What a module's source says; its tree would take a hundred times the memory."""

    imports: frozenset[str]
    """Every module that it imports, anywhere in it; ours without the leading `voxlane.`."""
    public_classes: tuple[str, ...]
    documented: bool


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and those inside them, without their expressions: neither import nor class is in one."""
    for one in body:
        yield one
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(one, inner, ()))


@cache
def facts_of(name: str) -> Facts:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    imported: set[str] = set()
    classes = []
    for node in statements(tree.body):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = MODULES[name].relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            # `from package import module` and `from module import name` look alike: keep both readings.
            imported.add(module)
            imported.update(f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            classes.append(node.name)
    ours_named_short = frozenset(one.removeprefix("voxlane.") for one in imported)
    return Facts(ours_named_short, tuple(classes), bool(ast.get_docstring(tree)))


def touched(name: str, *modules: str) -> set[str]:
    """Return what a module imports of others, or of what is in them."""
    inside = tuple(f"{module}." for module in modules)
    return {one for one in facts_of(name).imports if one in modules or one.startswith(inside)}


def ours(name: str) -> frozenset[str]:
    """Return our own modules that a module imports, names inside modules cut off."""
    return facts_of(name).imports & MODULES.keys()


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def offending(found: dict[str, set[str]]) -> dict[str, list[str]]:
    """Return the modules that import what they may not, each with all of it."""
    return {name: sorted(wrong) for name, wrong in found.items() if wrong}


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 20
    assert touched("server.engine_client.engine_process", "engine.api")
    assert ours("server.cli") >= {"server.config", "engine.weights.command"}


def foreign(name: str) -> set[str]:
    """Return the modules of other packages that a module may not import."""
    match name.split(".")[0]:
        case "server":
            weights = WEIGHTS_FACES | {"engine.weights"} if name in WEIGHTS_USERS else set()
            lab = set() if name in LAB_USERS else {one for one in ours(name) if one.startswith("voxlane_lab")}
            return {one for one in ours(name) if one.startswith("engine")} - {"engine", "engine.api"} - weights | lab
        case "engine":
            return {one for one in ours(name) if one.startswith(("server", "voxlane_lab"))}
        case "voxlane_lab":
            return set() if name in SPEECH_USERS else {one for one in ours(name) if not one.startswith("voxlane_lab")}
        case _:
            return {one for one in ours(name) if not one.startswith("codecs")}


def test_imports_point_downwards() -> None:
    assert offending({name: foreign(name) for name in MODULES}) == {}


def test_every_module_is_in_a_room() -> None:
    for package, rooms in ROOMS.items():
        assert {room_of(name) for name in MODULES if name.startswith(f"{package}.")} == set(rooms)


def upwards(name: str) -> set[str]:
    """Return the modules that a module imports from later rooms."""
    package, room = name.split(".")[0], room_of(name)
    if package not in ROOMS or not room:
        return set()
    later = ROOMS[package][ROOMS[package].index(room) + 1 :]
    return {one for one in ours(name) if one.startswith(f"{package}.") and room_of(one) in later}


def test_rooms_import_those_before_them() -> None:
    assert offending({name: upwards(name) for name in MODULES}) == {}


def test_torch_stays_in_the_engine() -> None:
    outside = [name for name in MODULES if not name.startswith("engine") or name.startswith("engine.api")]
    assert offending({name: touched(name, "torch", "triton", "torchaudio") for name in outside}) == {}


def test_asyncio_stays_where_there_is_io() -> None:
    assert offending({name: touched(name, "asyncio", "uvloop") for name in MODULES.keys() - ASYNC}) == {}


def test_pure_modules_have_no_clock_no_chance_and_no_log() -> None:
    pure = [name for name in MODULES if name in PURE or name.startswith(PURE_PREFIXES)]
    assert offending({name: touched(name, *IMPURITIES) for name in pure}) == {}


def test_every_module_says_what_it_is() -> None:
    assert [name for name in MODULES if not facts_of(name).documented] == []


def test_a_public_class_name_means_one_thing() -> None:
    defined: dict[str, list[str]] = {}
    for name in MODULES:
        for one in facts_of(name).public_classes:
            defined.setdefault(one, []).append(name)
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}


def test_no_pickle_anywhere() -> None:
    pickles = ("pickle", "dill", "cloudpickle", "shelve", "marshal", "torch.load")
    assert offending({name: touched(name, *pickles) for name in MODULES}) == {}
