"""The scenarios that ship: each is sound, teaches, is found by its name, and fits the schema for editors."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from voxlane_lab import scenario_library
from voxlane_lab.definitions import METRICS
from voxlane_lab.errors import LabError
from voxlane_lab.gates import FEWEST, FLAG_STATISTICS, NUMBER_STATISTICS, gate_limits
from voxlane_lab.scenario import Scenario, ScenarioStep, read_scenario
from voxlane_lab.scenario_library import GROUPS, SCHEMA_FILE, expand, find, load, shipped
from voxlane_lab.sounds.beds import BEDS
from voxlane_lab.sounds.corpus import SOUNDS

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in scenario_library.FOLDER.glob("*.toml"))
ASKED_FOR = (
    "hard_stop", "stop_in_mid_word", "mhm", "cough", "knock", "typing", "slow_talker", "pause_600_ms", "pause_900_ms",
    "pause_1200_ms", "correction", "double_talk", "two_quick_interruptions", "first_200_ms", "last_word",
    "in_tool_call", "silence", "white_noise", "cafe", "street", "television", "echo_20", "echo_12", "quiet_speaker",
    "keypad_tones", "hold_music", "naive_client", "bad_line", "stalls", "counting", "stop_after_long_answer",
)  # fmt: skip


def scenario(name: str) -> Scenario:
    return read_scenario(find(name), name=name)


def test_the_library_holds_what_it_promises() -> None:
    assert len(NAMES) >= 28
    assert set(ASKED_FOR) <= set(NAMES)
    assert list(shipped()) == NAMES
    assert all(one.path.stem == one.name and one.description for one in shipped().values())


def test_the_schema_is_current() -> None:
    """Write it anew with `SCHEMA_FILE.write_text(schema_text())`, both of scenario_library."""
    assert SCHEMA_FILE.read_text(encoding="utf-8") == scenario_library.schema_text()


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    wrong = tomllib.loads(find("hard_stop")) | {"colour": 3}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


def test_a_file_fits_the_schema_and_names_it() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
    for name, one in shipped().items():
        text = find(name)
        validator.validate(tomllib.loads(text))
        directive, _, rest = text.partition("\n")
        assert directive.startswith("#:schema "), name
        assert (one.path.parent / directive.removeprefix("#:schema ")).resolve() == SCHEMA_FILE.resolve()
        assert rest.startswith(f'name = "{name}"\n')


def test_a_description_is_a_few_plain_sentences() -> None:
    for name, one in shipped().items():
        assert 80 <= len(one.description) <= 320, name
        assert one.description.endswith("."), name
        assert "\n" not in one.description, name
        assert "  " not in one.description, name


def test_gates_can_be_measured() -> None:
    """A share is gated only where ten events are certain; a gate needs a step of the kind that it measures."""
    for name in NAMES:
        one = scenario(name)
        assert one.gates, name
        for gate in gate_limits(one.gates):
            events = [step for step in one.step if _measures(step, gate.metric)]
            assert events, (name, gate.metric)
            if gate.statistic == "share":
                assert len(events) * one.repeat >= FEWEST, (name, gate.metric)


def _measures(step: ScenarioStep, metric: str) -> bool:
    if step.means not in METRICS[metric].means:
        return False
    match metric:
        case "cut_off" | "split_turns":
            return isinstance(step.say, list)
        case "memory_wrong":
            return step.recalls
        case "response_ms" | "unanswered":
            return step.answered
        case "unasked":
            return step.when is not None and step.when.agent_silent_s is not None
    return True


def test_the_corpus_has_every_sound_and_bed() -> None:
    for one in map(scenario, NAMES):
        assert {step.sound.partition(":")[0] for step in one.step if step.sound} <= set(SOUNDS), one.name
        assert one.user.noise is None or one.user.noise.bed in BEDS, one.name


def test_the_page_shows_the_whole_library() -> None:
    page = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    for group, members in GROUPS.items():
        assert f"| `{group}` | {', '.join(f'`{name}`' for name in members)} |" in page
    for one in shipped().values():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{one.name}` | "))
        assert one.description.startswith(row.split(" | ")[1].removesuffix(" |"))


def test_a_group_names_scenarios_that_exist_and_none_is_left_out() -> None:
    listed = {name for group in GROUPS.values() for name in group}
    assert listed == set(NAMES)
    assert set(GROUPS) == {"quick", "interruptions", "backchannels", "noise", "lines", "turns", "memory"}
    assert not set(GROUPS) & set(NAMES)


def test_groups_become_their_members_once() -> None:
    assert expand(["memory", "counting", "mhm"]) == ["counting", "counting_after_mhm", "mhm"]
    assert expand(["all"]) == NAMES
    assert [one.name for one in load(["memory"])] == ["counting", "counting_after_mhm"]


def test_a_path_is_read(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text('name = "mine"\n[[step]]\nsay = "Hello."\n', encoding="utf-8")
    assert [one.name for one in load([str(own), "mhm"])] == ["mine", "mhm"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hard_stp", "did you mean hard_stop?"),
        ("interruption", "did you mean interruptions"),
        ("pause", "pause_900_ms"),
        ("", "`voxlane-lab list` shows all names"),
        ("qqqq", "`voxlane-lab list` shows all names"),
        ("no/such.toml", "there is no scenario file no/such.toml"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(name: str, words: str) -> None:
    with pytest.raises(LabError, match=words.replace("?", r"\?")):
        load([name])


def test_files_that_are_no_text_and_folders_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (binary, tmp_path):
        with pytest.raises(LabError):
            load([str(path)])


def test_the_page_of_figures_defines_every_one_in_the_same_words() -> None:
    page = " ".join((ROOT / "docs" / "lab-metrics.md").read_text(encoding="utf-8").split())
    for name, metric in METRICS.items():
        assert f"### `{name}`" in page
        assert metric.sentence in page, name
        assert metric.what_it_does_not_say in page, name
    for statistic in (*NUMBER_STATISTICS, *FLAG_STATISTICS):
        assert f"`{statistic}`" in page
