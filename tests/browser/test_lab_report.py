"""The lab's report in a real browser: it draws, plays, changes its colours, fits a telephone and asks for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from chromium import ARGUMENTS, executable
from lab_example import run
from playwright.sync_api import Browser, Page, Playwright, expect

from voxlane_lab.recording_file import call_folder, save
from voxlane_lab.report import drawing
from voxlane_lab.report.html import write_report

DESKTOP, TELEPHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
STALE = "#call-0-1"
SPOKEN = "scratch => [scratch.getAttribute('aria-label'), scratch.textContent.trim(), scratch.title].some(Boolean)"


@dataclass
class Reader:
    """Somebody reads the report."""

    page: Page
    requests: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def timeline(self, call: str = STALE) -> Any:
        """Return the timeline of a call."""
        return self.page.locator(f"{call} .timeline .scroll")

    def playing(self) -> tuple[float, bool]:
        """Return the place of the sound, and whether it is paused."""
        at_s, paused = self.page.evaluate("() => [player.currentTime, player.paused]")
        return float(at_s), bool(paused)

    def colour(self) -> str:
        """Return the colour behind everything."""
        return str(self.page.evaluate("() => getComputedStyle(document.body).backgroundColor"))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose last call has its sound beside the page."""
    folder = tmp_path_factory.mktemp("run")
    result, calls = run()
    for (scenario, repeat), recording in calls.items():
        save(recording, folder / "calls" / call_folder(scenario, repeat))
    most = sum(len(drawing.sound(recording)) for recording in list(calls.values())[:2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "MOST_SOUND", most + 10)
        write_report(result, calls, folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    """A browser."""
    started = playwright.chromium.launch(executable_path=executable(), args=list(ARGUMENTS))
    yield started
    started.close()


@pytest.fixture
def reader(chromium: Browser, report: Path, request: pytest.FixtureRequest) -> Iterator[Reader]:
    """Open the report; nothing may go wrong, and nothing outside may be asked for."""
    context = chromium.new_context(**{"viewport": DESKTOP, "color_scheme": "light"} | getattr(request, "param", {}))
    page = context.new_page()
    reader = Reader(page)
    page.on("request", lambda one: reader.requests.append(one.url))
    page.on("pageerror", lambda error: reader.troubles.append(str(error)))
    page.on("console", lambda said: reader.troubles.append(said.text) if said.type in ("error", "warning") else None)
    page.goto(report.as_uri())
    yield reader
    context.close()
    assert reader.troubles == []
    inside = (report.parent.as_uri(), "blob:", "data:")
    assert [url for url in reader.requests if not url.startswith(inside)] == []


def test_it_opens_without_asking_for_anything(reader: Reader, report: Path) -> None:
    assert [url for url in reader.requests if not url.startswith("data:")] == [report.as_uri()]
    expect(reader.page.locator(".verdict")).to_contain_text("1 of 5 gates is missed")
    expect(reader.timeline().locator("svg path.wave-person")).to_have_count(1)
    expect(reader.timeline().locator(".stale-band")).to_have_count(1)
    expect(reader.timeline().locator(".dim-text", has_text="stale 470 ms")).to_be_visible()
    expect(reader.timeline().locator(".event-text", has_text="interrupted")).to_be_visible()


def test_a_click_plays_from_there(reader: Reader) -> None:
    timeline = reader.timeline()
    timeline.scroll_into_view_if_needed()
    width = timeline.bounding_box()["width"]
    timeline.click(position={"x": width / 2, "y": 80})
    reader.page.wait_for_function("() => !player.paused && player.currentTime > 8.1")
    assert 8.0 < reader.playing()[0] < 16.0
    expect(reader.page.locator(f"{STALE} .play")).to_have_attribute("aria-pressed", "true")
    assert reader.page.evaluate("() => player.duration") == pytest.approx(16.0, abs=0.01)
    reader.page.locator(f"{STALE} .play").click()
    reader.page.wait_for_function("() => player.paused")
    expect(reader.page.locator(f"{STALE} .play")).to_have_attribute("aria-pressed", "false")


def test_sound_that_is_not_inside_plays_from_the_folder(reader: Reader) -> None:
    outside = reader.page.evaluate("() => JSON.parse(data.textContent).calls.findIndex((call) => !call.sound)")
    call = reader.page.locator(f'details[data-call="{outside}"]')
    call.evaluate("(root) => { root.open = true; }")
    call.locator(".play").click()
    reader.page.wait_for_function("() => !player.paused && player.currentTime > 0.05")
    assert "call.wav" in reader.page.evaluate("() => player.src")


def test_only_one_call_plays(reader: Reader) -> None:
    for call in (STALE, "#call-0-0"):
        reader.page.locator(f"{call} .play").click()
        expect(reader.page.locator(f"{call} .play")).to_have_attribute("aria-pressed", "true")
    expect(reader.page.locator(f"{STALE} .play")).to_have_attribute("aria-pressed", "false")


def test_hovering_shows_the_time(reader: Reader) -> None:
    timeline = reader.timeline()
    timeline.scroll_into_view_if_needed()
    timeline.hover(position={"x": timeline.bounding_box()["width"] / 4, "y": 120})
    expect(timeline.locator(".hover-text")).to_have_text("4.00 s")


def test_the_keyboard_moves_and_plays(reader: Reader) -> None:
    timeline = reader.timeline()
    timeline.focus()
    for _ in range(5):
        reader.page.keyboard.press("ArrowRight")
    expect(timeline).to_have_attribute("aria-valuenow", "0.50")
    reader.page.keyboard.press("End")
    expect(timeline).to_have_attribute("aria-valuenow", "16.00")
    reader.page.keyboard.press("Home")
    reader.page.keyboard.press("Space")
    reader.page.wait_for_function("() => !player.paused && player.currentTime > 0.05")
    reader.page.keyboard.press("Space")
    reader.page.wait_for_function("() => player.paused")


def test_zooming_widens_the_picture(reader: Reader) -> None:
    picture = reader.timeline().locator("svg")
    before = picture.bounding_box()["width"]
    reader.page.locator(f"{STALE} .zoom button").last.click()
    assert reader.timeline().locator("svg").bounding_box()["width"] == pytest.approx(2 * before, rel=0.01)
    reader.page.locator(f"{STALE} .zoom button").first.click()
    assert reader.timeline().locator("svg").bounding_box()["width"] == pytest.approx(before, rel=0.01)


def test_a_dot_opens_its_call(reader: Reader) -> None:
    call = reader.page.locator("#call-0-0")
    call.evaluate("(root) => { root.open = false; }")
    reader.page.locator('a.dot[href="#call-0-0"]').first.focus()
    reader.page.keyboard.press("Enter")
    expect(call).to_have_attribute("open", "")
    expect(call.locator(".timeline svg")).to_be_visible()


def test_the_button_changes_the_colours_and_they_are_kept(reader: Reader) -> None:
    button = reader.page.locator("#theme")
    light = reader.colour()
    expect(button).to_have_attribute("aria-pressed", "false")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    dark = reader.colour()
    assert dark != light
    reader.page.reload()
    assert reader.colour() == dark
    button.click()
    assert reader.colour() == light


@pytest.mark.parametrize("reader", [{"color_scheme": "dark"}], indirect=True)
def test_the_system_chooses_dark_colours(reader: Reader) -> None:
    expect(reader.page.locator("#theme")).to_have_attribute("aria-pressed", "true")
    red, green, blue = (int(part) for part in reader.colour().strip("rgb()").split(","))
    assert max(red, green, blue) < 60


@pytest.mark.parametrize("reader", [{"viewport": TELEPHONE}], indirect=True)
def test_a_telephone_shows_all_of_it(reader: Reader) -> None:
    wide, seen = reader.page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
    assert wide == seen == TELEPHONE["width"]
    small = reader.page.evaluate(
        """() => [...document.querySelectorAll("button, summary")].filter((one) => {
          const { width, height } = one.getBoundingClientRect();
          return width > 0 && (width < 32 || height < 24);
        }).map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert small == []


def test_people_who_do_not_see_it_can_read_it(reader: Reader) -> None:
    page = reader.page
    assert page.evaluate("() => document.documentElement.lang") == "en"
    levels = page.evaluate("() => [...document.querySelectorAll('h1, h2, h3, h4')].map((one) => +one.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    for kind in ("button", "a", "summary", "[tabindex]", "[role=slider]"):
        named = page.locator(kind).evaluate_all(f"(all) => all.map({SPOKEN})")
        assert all(named), f"a {kind} has no name"
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    headless = page.evaluate(
        "() => [...document.querySelectorAll('table')].filter((one) => !one.querySelector('th[scope]')).length"
    )
    assert headless == 0
    assert page.locator("main, header, footer").count() == 3


@pytest.mark.parametrize("reader", [{"color_scheme": scheme} for scheme in ("light", "dark")], indirect=True)
def test_texts_have_contrast(reader: Reader) -> None:
    weak = reader.page.evaluate(CONTRAST)
    assert weak == []


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
    .map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
    .reduce((sum, one, n) => sum + one * [0.2126, 0.7152, 0.0722][n], 0);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  const weak = [];
  for (const one of document.querySelectorAll("main *, header *, footer *, .timeline text")) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !one.getClientRects().length || one.closest(".sr, :disabled, .lane-name, title")) continue;
    const style = getComputedStyle(one);
    const [text, ground] = [light(rgba(one instanceof SVGElement ? style.fill : style.color)), light(behind(one))];
    const ratio = (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
    if (ratio < 4.5 && !one.classList.contains("hover-text")) weak.push([one.outerHTML.slice(0, 90), ratio]);
  }
  return weak;
}"""
