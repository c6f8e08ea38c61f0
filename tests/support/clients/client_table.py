"""The clients that we did not write, and what each of them can do with the server: the table in docs/openai.md.

`make soak` runs every cell that is not "not offered" and compares what happens with what is written here. As a
program it writes the table into the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

Api = Literal["Realtime", "HTTP"]

DOCUMENT = Path(__file__).parents[3] / "docs" / "openai.md"
BEGIN, END = "<!-- table of clients -->\n", "<!-- end of the table -->\n"

SCENARIOS = {
    "connect": "connect",
    "voice": "voice turn",
    "interruption": "interruption, truncate",
    "tool": "tool",
    "text": "text",
    "push_to_talk": "push-to-talk",
}
"""Each scenario with its heading in the document."""

WORKS, NOT_OFFERED, REFUSED = "✓", "not offered", "refused"
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ForeignClient:
    """A client in one version."""

    package: str  # as its registry calls it
    version: str  # or the beginning of it
    api: Api
    script: tuple[str, ...]  # a file in tests/clients and its own arguments
    environment: str = ""  # a folder in .venv-clients; "": the tests' own
    part: str = ""  # which part of the package, if there are several
    over_tls: bool = False
    browser: Literal["", "WebSocket", "WebRTC"] = ""  # how it connects in Chromium, where tests/browser plays it
    others: Mapping[str, str] = field(default_factory=lambda: NOTHING)  # by scenario: what it is instead of WORKS

    @property
    def key(self) -> str:
        """Return a name for tests."""
        return " ".join(filter(None, (self.package, self.version, self.part)))

    def result(self, scenario: str) -> str:
        """Return the cell of a scenario."""
        return self.others.get(scenario, WORKS)


def _all_but(works: str, result: str) -> Mapping[str, str]:
    return MappingProxyType({name: result for name in SCENARIOS if name not in works.split()})


BETA = _all_but("", REFUSED)

OVER_HTTP = _all_but("connect voice tool text", NOT_OFFERED)
WITHOUT_SPEECH = _all_but("connect tool text", NOT_OFFERED)


def _node(package: str, version: str, api: Api, script: str, **more: Any) -> ForeignClient:
    return ForeignClient(package, version, api, (f"node/{script}", *more.pop("arguments", ())), "node", **more)


def _python(package: str, version: str, api: Api, script: str, environment: str, **more: Any) -> ForeignClient:
    return ForeignClient(package, version, api, (script, *more.pop("arguments", ())), environment, **more)


def _browser(package: str, version: str, browser: Literal["WebSocket", "WebRTC"]) -> ForeignClient:
    part = f"in Chromium over {browser}"
    return ForeignClient(package, version, "Realtime", ("node/agents_scenarios.mjs",), "node", part, browser=browser)


def _beta(package: str, version: str, script: str, environment: str, part: str) -> ForeignClient:
    return ForeignClient(package, version, "Realtime", (script, "--beta"), environment, part, others=BETA)


CLIENTS = (
    _python("openai (Python)", "1.109", "Realtime", "openai_client.py", "openai_1_109"),
    _beta("openai (Python)", "1.109", "openai_client.py", "openai_1_109", "`client.beta.realtime`"),
    _python("openai (Python)", "2.54", "Realtime", "openai_client.py", "openai_2_54"),
    _python("openai (Python)", "3", "Realtime", "openai_client.py", ""),
    _node("openai (npm)", "7.55", "Realtime", "openai_realtime.mjs", over_tls=True),
    _python("litellm", "1.104", "HTTP", "litellm_client.py", "openai_2_54", others=OVER_HTTP),
    _node("@ai-sdk/openai", "4.0", "HTTP", "ai.mjs", part="`ai` 7", others=OVER_HTTP),
    _node(
        "@ai-sdk/openai-compatible",
        "3.0",
        "HTTP",
        "ai.mjs",
        part="`ai` 7",
        arguments=("--compatible",),
        others=WITHOUT_SPEECH,
    ),
    _python("langchain-openai", "1.7", "HTTP", "langchain_client.py", "openai_2_54", others=WITHOUT_SPEECH),
    _python("openai-agents", "0.7", "Realtime", "agents_client.py", "openai_2_15"),
    _python("openai-agents", "0.24", "Realtime", "agents_client.py", ""),
    _node("@openai/agents-realtime", "0.20", "Realtime", "agents_realtime.mjs", part="in Node"),
    _browser("@openai/agents-realtime", "0.20", "WebSocket"),
    _browser("@openai/agents-realtime", "0.20", "WebRTC"),
    _python("livekit-agents", "1.2", "Realtime", "livekit_client.py", "openai_2_15"),
    _beta("livekit-agents", "1.2", "livekit_client.py", "openai_2_15", "`RealtimeModelBeta`"),
    _python("livekit-agents", "1.8", "Realtime", "livekit_client.py", "openai_3"),
    _python("pipecat-ai", "0.0.85", "Realtime", "pipecat_client.py", "openai_1_99"),
    _beta("pipecat-ai", "0.0.85", "pipecat_client.py", "openai_1_99", "`openai_realtime_beta`"),
    _python("pipecat-ai", "1.14", "Realtime", "pipecat_client.py", "openai_2_54"),
    _python(
        "semantic-kernel",
        "1.45",
        "Realtime",
        "semantic_kernel_client.py",
        "openai_2_54",
        others={"push_to_talk": NOT_OFFERED},
    ),
    _python(
        "semantic-kernel",
        "1.45",
        "HTTP",
        "semantic_kernel_client.py",
        "openai_2_54",
        part="chat",
        arguments=("--chat",),
        others=OVER_HTTP,
    ),
    _node("@mastra/voice-openai-realtime", "0.14", "Realtime", "mastra.mjs"),
    _node("@mastra/core", "1.71", "HTTP", "mastra.mjs", arguments=("--chat",), others=WITHOUT_SPEECH),
)


def rows() -> list[str]:
    """Return the table in Markdown, a line each."""
    head = ["client", "version", "API", *SCENARIOS.values()]
    lines = [head, ["---"] * len(head)]
    for one in CLIENTS:
        name = f"{one.package}, {one.part}" if one.part else one.package
        lines.append([name, one.version, one.api, *(one.result(scenario) for scenario in SCENARIOS)])
    return [f"| {' | '.join(cells)} |\n" for cells in lines]


def split(text: str) -> tuple[str, str, str]:
    """Return the document before its table, the table, and what follows."""
    before, begin, rest = text.partition(BEGIN)
    table, end, after = rest.partition(END)
    assert begin, f"{DOCUMENT} has no line {BEGIN}"
    assert end, f"{DOCUMENT} has no line {END}"
    return before + begin, table, end + after


def main() -> None:
    """Write the table into the document."""
    before, _, after = split(DOCUMENT.read_text())
    DOCUMENT.write_text(before + "".join(rows()) + after)


if __name__ == "__main__":
    main()
