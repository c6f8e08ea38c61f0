"""The scenarios that ship with the lab: their names, their groups, and how a name or a path becomes a scenario."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from voxlane_lab.errors import LabError
from voxlane_lab.scenario import Scenario, read_scenario, schema

FOLDER = Path(__file__).parent / "scenarios"
SCHEMA_FILE = Path(__file__).parent / "scenario.schema.json"
SUFFIX = ".toml"
ALL = "all"

GROUPS: dict[str, tuple[str, ...]] = {
    "quick": ("hard_stop", "mhm", "stop_and_ask", "pause_900_ms", "counting"),
    "interruptions": (
        "hard_stop", "stop_and_ask", "stop_in_mid_word", "stop_after_long_answer", "two_quick_interruptions",
        "first_200_ms", "last_word", "in_tool_call", "correction", "double_talk", "quiet_speaker",
    ),
    "backchannels": ("mhm", "short_words", "mhm_then_stop", "cough", "knock", "typing", "breath_and_door"),
    "noise": (
        "white_noise", "cafe", "street", "television", "hold_music", "keypad_tones", "noises_in_silence", "echo_20",
        "echo_12",
    ),
    "lines": ("long_delay", "bad_line", "stalls", "naive_client"),
    "turns": (
        "questions", "pause_600_ms", "pause_900_ms", "pause_1200_ms", "slow_talker", "afterthought", "silence",
    ),
    "memory": ("counting", "counting_after_mhm"),
}  # fmt: skip
"""Names that stand for several scenarios. `all` stands for every one."""


@dataclass(frozen=True, slots=True)
class ShippedScenario:
    """A scenario of the library."""

    name: str
    path: Path
    description: str


@cache
def shipped() -> dict[str, ShippedScenario]:
    """Return the scenarios that ship, by name, in the order of the alphabet."""
    found = {}
    for path in sorted(FOLDER.glob(f"*{SUFFIX}")):
        scenario = read_scenario(path.read_text(encoding="utf-8"), name=path.stem)
        found[path.stem] = ShippedScenario(path.stem, path, scenario.description)
    return found


def find(name: str) -> str:
    """Return the text of the scenario with this name, or of the file at this path."""
    one = shipped().get(name)
    return _text(one.path if one else _file(name))


def expand(names: Iterable[str]) -> list[str]:
    """Return names and paths with every group replaced by its members, each once."""
    found: dict[str, None] = {}
    for name in names:
        members = tuple(shipped()) if name == ALL else GROUPS.get(name, (name,))
        found.update(dict.fromkeys(members))
    return list(found)


def load(names: Iterable[str]) -> list[Scenario]:
    """Return the scenarios of names, groups and paths, checked."""
    return [read_scenario(find(name), name=name) for name in expand(names)]


def schema_text() -> str:
    """Return what scenario.schema.json must hold."""
    return json.dumps(schema(), indent=2) + "\n"


def _file(name: str) -> Path:
    """Return the path of a file that is there; raise LabError that suggests names otherwise."""
    path = Path(name)
    if path.is_file():
        return path
    if path.suffix == SUFFIX or len(path.parts) > 1:
        raise LabError(f"there is no scenario file {name}")
    known = [*shipped(), *GROUPS, ALL]
    close = difflib.get_close_matches(name, known, n=3)
    near = [one for one in known if name and name in one][:3]
    hint = f"did you mean {' or '.join(close or near)}?" if close or near else "`voxlane-lab list` shows all names"
    raise LabError(f"there is no scenario {name}: {hint}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise LabError(f"{path}: not a text file") from None
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}") from None
