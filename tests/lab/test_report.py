"""The page of a run: what it says, that it needs nothing else, and that texts from outside stay texts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from lab_example import ANSWER, STORY, THREE, Fault, call, run

from voxlane.codecs.g711 import decode_mulaw
from voxlane_lab import results
from voxlane_lab.attribution import owned
from voxlane_lab.errors import LabError
from voxlane_lab.recording_file import call_folder, save, stereo
from voxlane_lab.report import drawing
from voxlane_lab.report.again import replay, report_again
from voxlane_lab.report.html import rendered, write_report
from voxlane_lab.report.strips import Point, strip
from voxlane_lab.report.timeline import MOST_EVENTS, events, is_over, timeline
from voxlane_lab.report.view import page_of, shown_address, verdict_words
from voxlane_lab.report.words import MEANINGS, RESULTS, WORDS, amount, interval_words, statistic_amount
from voxlane_lab.results import RunResult
from voxlane_lab.values import Occurrence, Recording

NASTY = """</script><script>alert(1)</script><img src=x onerror=alert(2)>"'&{{ 7*7 }}"""
Calls = dict[tuple[str, int], Recording]


class Tags(HTMLParser):
    """The tags of a page, its text, and the data in it."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        self.text += " "
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    def all(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of all tags of a name."""
        return [attributes for tag, attributes in self.tags if tag == name]

    @property
    def data(self) -> Any:
        """The data of the calls."""
        return json.loads(self.scripts[0])


@pytest.fixture(scope="module")
def three() -> tuple[RunResult, Calls]:
    """A good call, one with stale sound, and one false stop."""
    return run()


@pytest.fixture(scope="module")
def page(three: tuple[RunResult, Calls]) -> Tags:
    """Its page."""
    return Tags(rendered(page_of(*three)))


# ---- what it says


def test_the_top_says_what_was_tested_and_the_verdict(page: Tags) -> None:
    text = " ".join(page.text.split())
    assert "mhm, then stop" in text
    assert "ws://127.0.0.1:8000/v1/voice" in text
    assert "1 of 5 gates is missed Stale sound at the ear, in the worst case: 470 ms; limit 0 ms." in text
    assert "1 of 9 steps: there was nothing to interrupt." in text


def test_the_gate_table_has_words_and_signs(page: Tags) -> None:
    text = " ".join(page.text.split())
    assert "Time to yield in 95 of 100 cases · yield_ms.p95 ≤ 500 ms 340 ms 2 – met" in text
    assert "stale_ms.max ≤ 0 ms 470 ms 2 – missed" in text
    assert "false_stop.share ≤ 10 % 33.3 % 3 6–79 % not measurable too few to gate: 3 of at least 10" in text
    verdicts = [row["data-verdict"] for row in page.all("tr") if "data-verdict" in row]
    assert verdicts == ["met", "not_measurable", "met", "missed", "not_measurable"]
    marks = [one for one in page.all("svg") if one.get("class") == "mark"]
    assert len(marks) == len(verdicts) + 1, "a verdict has no sign beside its word"


@pytest.mark.parametrize(
    ("faults", "verdict", "line"),
    [
        (["none"], "met", "All 3 gates are met"),
        (["none", "stale"], "missed", "1 of 5 gates is missed"),
        (["none"] * 9 + ["false_stop"] * 3, "missed", "1 of 5 gates is missed"),
    ],
)
def test_the_verdict_in_a_line(faults: list[Fault], verdict: str, line: str) -> None:
    assert verdict_words(run(faults)[0])[:2] == (verdict, line)


def test_a_run_that_could_not_be_held_says_why() -> None:
    result, calls = run(["none"])
    (scenario,) = result.scenarios
    failed = msgspec.structs.replace(scenario.calls[0], failure="The server closed the line.")
    result = msgspec.structs.replace(result, scenarios=[msgspec.structs.replace(scenario, calls=[failed])])
    assert verdict_words(result)[0] == "not_measurable"
    text = Tags(rendered(page_of(result, calls))).text
    assert "This run says nothing about the server" in text
    assert "The call could not be held: The server closed the line." in text


def test_figures_stand_at_their_places(three: tuple[RunResult, Calls], page: Tags) -> None:
    good, stale, false_stop = (page.data["calls"][one] for one in _order(page))
    marks = {mark["text"]: (mark["from"], mark["to"], mark["bad"]) for mark in good["steps"][2]["marks"]}
    assert marks["yields after 340 ms"] == (8.0, 8.34, False)
    assert marks["answers after 760 ms"] == (9.4, 10.16, False)
    assert good["steps"][1]["marks"][0]["text"] == "paused for 240 ms"
    assert (good["steps"][1]["marks"][0]["from"], good["steps"][1]["marks"][0]["to"]) == (5.14, 5.38)
    assert good["held"] == [[5.14, 5.38]]
    assert good["lowered"] == [[8.12, 8.34]]
    assert (good["stale"], stale["stale"]) == ([], [[9.62, 10.12]])
    assert [mark["text"] for mark in stale["steps"][2]["marks"] if mark["bad"]] == ["stale 470 ms"]
    assert [mark["text"] for mark in false_stop["steps"][1]["marks"]] == ["silent after 140 ms", "false stop"]
    assert false_stop["steps"][2]["voiced"] == []


def _order(page: Tags) -> list[int]:
    """Return where the data of the calls are, in the order of the calls."""
    return [int(str(one["data-call"])) for one in page.all("details") if "data-call" in one]


def test_sound_belongs_to_its_response(page: Tags) -> None:
    stale = page.data["calls"][_order(page)[1]]
    assert stale["responses"] == [f"response {STORY}", f"response {ANSWER}"]
    assert [span["owner"] for span in stale["owners"]] == [0, 0, 0, 1]
    assert [name for name in page.text.split("\n") if "stale sound" in name]


def test_the_outline_of_a_track_follows_its_loudness(page: Tags) -> None:
    good = page.data["calls"][_order(page)[0]]
    heights = np.frombuffer(base64.b64decode(good["person"]), np.uint8)
    assert len(heights) == 16 * page.data["peaks_per_s"]
    assert not heights[:50].any()
    assert heights[50:200].max() > 200
    assert not heights[250:500].any()


def test_the_sound_inside_is_the_call(three: tuple[RunResult, Calls], page: Tags) -> None:
    good = page.data["calls"][_order(page)[0]]
    both = decode_mulaw(zlib.decompress(base64.b64decode(good["sound"]))).reshape(2, -1)
    true = stereo(three[1]["mhm, then stop", 0]) / 32768
    assert np.abs(both.T - true).max() < 0.04
    assert np.corrcoef(both[1], true[:, 1])[0, 1] > 0.99


def test_each_dot_leads_to_its_call(page: Tags) -> None:
    ids = {one["id"] for one in page.all("details") if one.get("id")}
    dots = [one["href"] for one in page.all("a") if str(one.get("class", "")).startswith("dot")]
    assert ids == {"call-0-0", "call-0-1", "call-0-2"}
    assert len(dots) > 10
    assert {str(dot).removeprefix("#") for dot in dots} <= ids


# ---- one file, and safe


def test_it_asks_nobody_for_anything(three: tuple[RunResult, Calls]) -> None:
    text = rendered(page_of(*three))
    tags = Tags(text)
    addresses = [value for _, attributes in tags.tags for key, value in attributes.items() if key in ("src", "href")]
    outside = [one for one in addresses if one and not one.startswith(("#", "data:", "calls/"))]
    assert outside == []
    sheets = "".join(re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL))
    assert "url(" not in sheets
    assert "@import" not in sheets
    (policy,) = [one["content"] for one in tags.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(tags.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in str(policy)
    assert str(policy).startswith("default-src 'none'")


def test_texts_from_outside_stay_texts(tmp_path: Path) -> None:
    result, calls = run(["none"], name=NASTY)
    (recording,) = calls.values()
    recording.texts = {NASTY: NASTY}
    recording.history = [(NASTY, NASTY)]
    recording.occurrences.append(Occurrence(15.0, "got", NASTY, NASTY))
    (scenario,) = result.scenarios
    steps = [
        msgspec.convert(msgspec.to_builtins(step) | {"name": NASTY}, type(step)) for step in scenario.calls[0].steps
    ]
    failed = msgspec.structs.replace(scenario.calls[0], steps=steps, failure=NASTY)
    gates = [msgspec.structs.replace(gate, reason=NASTY) for gate in scenario.gates]
    scenario = msgspec.structs.replace(scenario, calls=[failed], description=NASTY, gates=gates)
    result = msgspec.structs.replace(result, scenarios=[scenario], url=f"ws://{NASTY}", dialect=NASTY)
    path = tmp_path / "report.html"
    write_report(result, calls, path)
    tags = Tags(path.read_text(encoding="utf-8"))
    assert len(tags.scripts) == 2, "a text became a script"
    assert not tags.all("img"), "a text became an image"
    assert not [key for _, attributes in tags.tags for key in attributes if key.startswith("on")]
    assert tags.text.count("onerror=alert(2)") >= 8
    assert tags.data["calls"][0]["events"][-1]["name"].startswith("</script>")


def test_a_server_that_talks_too_much_does_not_fill_the_page() -> None:
    flood = [Occurrence(n * 1.0, "got", f"event {n}", "x" * 5000) for n in range(2 * MOST_EVENTS)]
    shown = events(flood)
    assert len(shown) == MOST_EVENTS
    assert max(len(one["detail"]) for one in shown) <= 160
    assert events([Occurrence(0.1 * n, "got", "audio") for n in range(5)])[0]["count"] == 5
    assert len(events([Occurrence(5.0 * n, "got", "audio") for n in range(5)])) == 5


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "wss://user:secret@api.example.com/v1/realtime?model=x&key=secret#secret",
            "wss://api.example.com/v1/realtime",
        ),
        ("ws://[::1]:8000/v1", "ws://[::1]:8000/v1"),
        ("planted:stale", "planted:stale"),
        ("ws://[broken", "an address that cannot be shown"),
    ],
)
def test_an_address_has_no_secrets(url: str, shown: str) -> None:
    assert shown_address(url) == shown


# ---- size


def test_twenty_calls_stay_small() -> None:
    faults: list[Fault] = ["none"] * 20
    page = page_of(*run(faults))
    text = rendered(page)
    assert len(text) < 15_000_000
    assert page.sound_line == "The sound of all calls is inside this file."


def test_sound_beyond_the_limit_is_beside_the_page(
    three: tuple[RunResult, Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = page_of(*three)
    inside = len(drawing.sound(three[1]["mhm, then stop", 1]))
    monkeypatch.setattr(drawing, "MOST_SOUND", inside + 10)
    data = drawing.draw(page)
    with_sound = [one["file"] for one in data if "sound" in one]
    assert with_sound == ["calls/mhm-then-stop-002/call.wav"], "the worst call comes first"
    assert page.sound_line.startswith("The sound of 1 of 3 calls is inside this file")
    assert {one["file"] for one in data} == {f"calls/mhm-then-stop-00{n}/call.wav" for n in (1, 2, 3)}


def test_calls_beyond_the_limit_have_their_figures(
    three: tuple[RunResult, Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "MOST_DRAWN", 1)
    tags = Tags(rendered(page_of(*three)))
    assert len(tags.data["calls"]) == 1
    assert len([one for one in tags.all("details") if one.get("class") == "call"]) == 3
    assert tags.text.count("paused for 240 ms") == 2


def test_a_call_without_a_recording_has_its_figures(three: tuple[RunResult, Calls]) -> None:
    tags = Tags(rendered(page_of(three[0], {})))
    assert tags.data["calls"] == []
    assert "yields after 340 ms" in tags.text


# ---- parts


def test_a_strip_puts_values_between_zero_and_its_end() -> None:
    points = [Point(f"call-0-{n}", n + 1, "3 stop", value) for n, value in enumerate((100.0, 480.0, 520.0))]
    found = strip("yield_ms", points, {"p95": 500.0})
    assert [(dot.x, dot.over) for dot in found.dots] == [(16.67, False), (80.0, False), (86.67, True)]
    assert found.limits[0].text == "limit 500 ms"
    assert [name for name, _ in found.numbers] == ["p50", "p95", "max", "n"]
    assert strip("yield_ms", points[:1], {}).ticks == []


def test_dots_at_one_place_lie_above_each_other() -> None:
    found = strip("yield_ms", [Point("c", n, "", 300.0) for n in range(4)], {})
    assert len({dot.up for dot in found.dots}) == 4


def test_a_flag_has_a_square_for_each_case() -> None:
    found = strip("false_stop", [Point("c", n, "mhm", float(n == 2)) for n in (1, 2, 3)], {"share": 0.1})
    assert [dot.over for dot in found.dots] == [False, True, False]
    assert found.numbers[0] == ("", "1 of 3")


def test_a_figure_is_above_its_limit_only_where_there_is_one() -> None:
    assert is_over("yield_ms", 501.0, {"yield_ms": 500.0})
    assert not is_over("yield_ms", 500.0, {"yield_ms": 500.0})
    assert not is_over("yield_ms", 9999.0, {})
    assert is_over("false_stop", True, {"false_stop": 0.5})
    assert not is_over("false_stop", False, {"false_stop": 0.0})


def test_every_metric_and_state_has_words() -> None:
    from voxlane_lab.definitions import METRICS

    assert METRICS.keys() - WORDS.keys() == {"late_ms"}
    assert WORDS.keys() <= METRICS.keys()
    assert set(MEANINGS) == {"turn", "stop", "nothing"}
    assert set(RESULTS) == {"done", "nothing_to_interrupt", "not_in_dialect", "late", "not_reached"}


def test_amounts_have_units() -> None:
    assert amount("yield_ms", 1234.4) == "1,234 ms"
    assert amount("split_turns", 2.0) == "2"
    assert statistic_amount("false_stop", "share", 0.05) == "5 %"
    assert interval_words("false_stop", "share", 0.011, 0.236) == "1–24 %"
    assert interval_words("yield_ms", "p95", None, None) == "–"


def test_an_empty_call_is_drawn() -> None:
    silent = np.zeros(0, np.int16)
    empty = Recording("s", "pcm", 0, 1, 8_000, silent, silent, silent)
    found = timeline(empty, {}, {}, owned(empty))
    assert (found["length"], found["owners"], found["events"]) == (0.02, [], [])


# ---- a folder again


@pytest.fixture(scope="module")
def folder(three: tuple[RunResult, Calls], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run."""
    at = tmp_path_factory.mktemp("run")
    (at / "result.json").write_bytes(results.encode(three[0]))
    for (scenario, repeat), recording in three[1].items():
        save(recording, at / "calls" / call_folder(scenario, repeat))
    return at


def test_a_report_is_written_again(folder: Path, three: tuple[RunResult, Calls]) -> None:
    path = report_again(folder)
    assert path == folder / "report.html"
    assert path.read_text(encoding="utf-8") == rendered(page_of(results.decode(results.encode(three[0])), three[1]))
    assert (folder / "junit.xml").read_text().count("<testcase") == 5


def test_saved_calls_are_judged_again(folder: Path, three: tuple[RunResult, Calls]) -> None:
    assert results.encode(replay(folder)) == results.encode(three[0])


def test_a_replay_judges_the_saved_sound_and_not_the_old_result(three: tuple[RunResult, Calls], tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(results.encode(three[0]))
    for repeat in range(3):
        recording = call("none", repeat)
        save(recording, tmp_path / "calls" / call_folder(recording.scenario, repeat))
    verdicts = {gate.metric: gate.verdict for _, gate in replay(tmp_path).gates}
    assert verdicts["stale_ms"] == "met"
    assert replay(tmp_path).scenarios[0].summary.flags["false_stop"].hits == 0


def test_folders_that_are_none_give_one_line(tmp_path: Path, three: tuple[RunResult, Calls]) -> None:
    with pytest.raises(LabError, match=r"has no result\.json: it is not the folder of a run"):
        report_again(tmp_path)
    (tmp_path / "result.json").write_bytes(results.encode(three[0]))
    with pytest.raises(LabError, match=r"call 1 of a scenario is in result\.json and not in calls/"):
        replay(tmp_path)
    assert report_again(tmp_path).is_file()


def test_the_example_is_what_it_says() -> None:
    assert THREE == ("none", "stale", "false_stop")
    figures = [one.steps for one in run()[0].scenarios[0].calls]
    assert figures[0][2].values["stale_ms"] == 0
    assert figures[1][2].values["stale_ms"] == 470
    assert figures[2][1].values["false_stop"] is True


def test_several_scenarios_have_a_table_of_their_own() -> None:
    one, first = run(["none"] * 2, name="a good one")
    other, second = run(["stale", "none"], name="a bad one")
    result = msgspec.structs.replace(one, scenarios=[*one.scenarios, *other.scenarios])
    tags = Tags(rendered(page_of(result, first | second)))
    text = " ".join(tags.text.split())
    assert "2 scenarios" in text
    assert "a bad one: Stale sound at the ear, in the worst case: 470 ms; limit 0 ms." in text
    rows = [row["data-verdict"] for row in tags.all("tr") if "data-verdict" in row]
    assert rows[:2] == ["met", "missed"]
    links = {str(one["href"]) for one in tags.all("a")}
    assert {"#scenario-0", "#scenario-1"} <= links
    assert {"scenario-0", "scenario-1"} <= {one["id"] for one in tags.all("h2")}
    opened = [one["id"] for one in tags.all("details") if one.get("class") == "call" and "open" in one]
    assert opened == ["call-1-0"], "the worst call is open at first"
