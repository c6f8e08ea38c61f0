"""A real browser with a scripted microphone, and a visitor who clicks, reads and hears.

It finds elements by the page's ids, and records sound with taps that run inside the page (tests/browser/tap.js).
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
from lossy_line import LossyLine
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright
from voice_server import RATE, Samples

from voxlane.codecs.wav import encode_wav

TAPS = Path(__file__).parents[2] / "browser"
NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--use-fake-device-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
ALLOWED = "--use-fake-ui-for-media-stream"
REFUSED = "--deny-permission-prompts"
WAIT_S = 120.0
GAP_S = 0.3
"""Digital silence from this length on is a gap: the pauses of a voice are never completely silent."""
CLOCK_S = 0.5
"""Within this time the audio clock is read correctly at least once (tests/browser/tap-worklet.js)."""

Side = Literal["input", "output"]


def executable() -> str:
    """Return the path of the browser."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, "these tests need a Chromium: apt-get install chromium"
    return found


def script(path: Path, *said: tuple[float, Samples], length_s: float = 0.0) -> Path:
    """Write a microphone's input: each sound at its second, silence in between; return the file."""
    end = max([int(length_s * RATE), *(int(at_s * RATE) + len(sound) for at_s, sound in said)])
    samples = np.zeros(end + RATE, np.float32)
    for at_s, sound in said:
        start = int(at_s * RATE)
        samples[start : start + len(sound)] = sound
    path.write_bytes(encode_wav(samples, RATE))
    return path


def launch(
    playwright: Playwright, microphone: Path | None = None, *, allowed: bool = True, further: tuple[str, ...] = ()
) -> Browser:
    """Start a browser, with further arguments; its microphone plays a file from the moment it is opened, or silence.

    The file is read whenever a page opens the microphone.
    """
    arguments = [*ARGUMENTS, *further, ALLOWED if allowed else REFUSED]
    # A missing file is silence; without the option the browser beeps.
    arguments.append(f"--use-file-for-fake-audio-capture={microphone or '/nonexistent.wav'}%noloop")
    return playwright.chromium.launch(executable_path=executable(), args=arguments)


@contextlib.contextmanager
def browser(
    playwright: Playwright,
    microphone: Path | None = None,
    *,
    allowed: bool = True,
    further: tuple[str, ...] = (),
    **options: Any,
) -> Iterator[BrowserContext]:
    """Run a browser of its own (`launch`) with one context."""
    found = launch(playwright, microphone, allowed=allowed, further=further)
    try:
        yield found.new_context(**options)
    finally:
        found.close()


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the captions."""

    role: str
    status: str
    heard: str
    unheard: str

    @property
    def text(self) -> str:
        """Return all of it."""
        return self.heard + self.unheard


@dataclass(frozen=True, slots=True)
class Told:
    """An event that the client sent to the page, with its time on the audio clock."""

    event: str
    frame: int
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sound:
    """The sound of one side, on the clock that both sides share."""

    rate: int
    frame: int  # frame number of the first sample
    samples: Samples
    latency_s: float  # output latency as the browser reports it

    def loud(self, after: int = 0, before: int | None = None, above: float = 1e-3) -> np.ndarray[Any, Any]:
        """Return the numbers of the frames that are not silent."""
        found = np.flatnonzero(np.abs(self.samples) > above) + self.frame
        return found[(found >= after) & (found < (before if before is not None else found.max(initial=0) + 1))]

    def without_gaps(self) -> Samples:
        """Return the sound with its gaps removed: a word that a gap cuts in two is whole again."""
        edges = np.flatnonzero(np.diff(np.concatenate(([False], self.samples == 0, [False]))))
        silences = [slice(*pair) for pair in edges.reshape(-1, 2) if np.diff(pair) > GAP_S * self.rate]
        return np.pad(np.delete(self.samples, np.r_[tuple(silences)] if silences else []), self.rate // 2)


@dataclass(slots=True)
class Visitor:
    """A person in front of the page."""

    page: Page
    stack: contextlib.ExitStack  # closes everything that was opened
    complaints: list[str] = field(default_factory=list)  # errors and warnings in the console, and failed requests
    requests: list[str] = field(default_factory=list)
    line: LossyLine = field(init=False)  # between the page and the server

    def __post_init__(self) -> None:
        self.page.set_default_timeout(WAIT_S * 1000)
        self.page.add_init_script(path=TAPS / "tap.js")
        self.page.on("console", lambda line: self._read_console(line))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("requestfailed", lambda request: self.complaints.append(f"{request.url} {request.failure}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    # ---- actions

    def open(self, url: str, *, query: str = "", **config: object) -> None:
        """Open a server's page with an initial configuration."""
        worklet = "tap-worklet.js"
        self.line = self.stack.enter_context(LossyLine(url, {f"/{worklet}": (TAPS / worklet).read_text()}))
        self.page.goto(f"{self.line.url}/?processing=off{query}")
        self.configure(**config)

    def configure(self, **config: object) -> None:
        """Change the conversation's configuration, as from the console."""
        if config:
            self.page.evaluate("(config) => window.voxlane.client.configure(config)", config)

    def start(self) -> None:
        """Click, and wait until the assistant listens."""
        self.page.click("#start")
        self.await_state("listening")

    def type(self, text: str) -> None:
        """Type a turn."""
        self.page.fill("#text", text)
        self.page.click("#send")

    # ---- what the page shows

    @property
    def state(self) -> str:
        """Return the state of the floor that the page shows."""
        return self.page.get_attribute("main", "data-state") or ""

    def await_state(self, *states: str) -> None:
        """Wait until the page shows one of these states."""
        self._await("(states) => states.includes(document.querySelector('main').dataset.state)", list(states))

    @property
    def states(self) -> list[str]:
        """Return all states of the floor so far, in order, however brief."""
        found: list[str] = self.page.evaluate("tap.states()")
        return found

    @property
    def banner(self) -> str:
        """Return the code of the page's banner, "" if there is none."""
        element = self.page.locator("#banner")
        return element.get_attribute("data-code") or "" if element.is_visible() else ""

    def await_banner(self, *codes: str) -> str:
        """Wait for a banner with one of these codes; return its text."""
        show = "(codes) => { const b = document.querySelector('#banner');"
        self._await(f"{show} return b.checkVisibility() && codes.includes(b.dataset.code); }}", list(codes))
        return self.page.inner_text("#banner")

    @property
    def lines(self) -> list[Line]:
        """Return the captions."""
        part = "(name) => [...li.querySelectorAll(name)].map((part) => part.textContent).join('')"
        read = f"({{ role: li.dataset.role, status: li.dataset.status, part: {part} }})"
        every = "[...document.querySelectorAll('#captions li[data-role]')]"
        pick = "({ role, status, heard: part('.heard'), unheard: part('.unheard') })"
        found = self.page.evaluate(f"{every}.map((li) => {read}).map(({{ role, status, part }}) => {pick})")
        return [Line(**line) for line in found]

    def await_lines(self, role: str, status: str, count: int = 1) -> list[Line]:
        """Wait for `count` finished lines of a role; return all lines."""
        rule = f'#captions li[data-role="{role}"][data-status="{status}"]'
        self._await("([rule, count]) => document.querySelectorAll(rule).length >= count", [rule, count])
        return [line for line in self.lines if (line.role, line.status) == (role, status)]

    def await_partly_heard(self) -> Line:
        """Wait until a reply is being heard, and return it."""
        live = "#captions li[data-role=assistant][data-status=live]"
        part = "(rule) => document.querySelector(rule)?.textContent.trim()"
        self._await(f"(live) => ['.heard', '.unheard'].every((name) => ({part})(`${{live}} ${{name}}`))", live)
        return self.lines[-1]

    # ---- what the taps recorded

    def sound(self, side: Side) -> Sound:
        """Return all sound of one side since the page was loaded."""
        found = self.page.evaluate("(side) => tap.sound(side)", side)
        assert found, "there is no sound in the page"
        rate, pieces = int(found["rate"]), found["pieces"]
        samples = np.concatenate([np.frombuffer(base64.b64decode(piece["samples"]), np.float32) for piece in pieces])
        began = {piece["began"] for piece in pieces if piece["offset"] > CLOCK_S * rate}
        assert len(began) == 1, f"the recording has a hole, or is short: it began at {sorted(began)}"
        return Sound(rate, began.pop(), samples, found["latency"])

    def told(self, event: str) -> list[Told]:
        """Return all events of one kind that the client has sent."""
        return [Told(**one) for one in self.page.evaluate("tap.told()") if one["event"] == event]

    def messages(self, *names: str) -> list[Told]:
        """Return the server's messages of these names."""
        return [one for one in self.told("message") if one.detail["name"] in names]

    def await_message(self, name: str, count: int = 1) -> Told:
        """Wait for `count` messages of a name; return the last."""
        rule = "([name, count]) => tap.count(name) >= count"
        self._await(rule, [name, count])
        return self.messages(name)[-1]

    def reply(self, epoch: int) -> Samples:
        """Return a reply's sound as the server sent it; offsets must leave no gap."""
        sent = b""
        for one in self.messages("audio"):
            if one.detail["epoch"] == epoch:
                data = base64.b64decode(one.detail["data"])
                assert one.detail["offset"] * 2 <= len(sent), "the server left a gap"
                sent = sent[: one.detail["offset"] * 2] + data
        return np.frombuffer(sent, "<i2").astype(np.float32) / np.float32(32768)

    def check(self) -> None:
        """Raise if the console has complaints, the page's policy was violated, or another server was contacted."""
        assert self.complaints == []
        assert self.page.evaluate("tap.violations()") == []
        assert {urlsplit(url).netloc for url in self.requests if not url.startswith("data:")} == {
            urlsplit(self.page.url).netloc
        }

    def _read_console(self, line: ConsoleMessage) -> None:
        if line.type in ("error", "warning"):
            self.complaints.append(line.text)

    def _await(self, expression: str, argument: object) -> None:
        # The page's policy forbids the eval that the browser driver uses for waiting.
        deadline = time.monotonic() + WAIT_S
        while not self.page.evaluate(expression, argument):
            assert time.monotonic() < deadline, f"{expression} {argument}: the page shows {self._view()}"
            self.page.wait_for_timeout(25)

    def _view(self) -> str:
        lines = "; ".join(f"{line.role} {line.status}: {line.heard}|{line.unheard}" for line in self.lines)
        return f"{self.state}, banner {self.banner!r}, {lines}, complaints {self.complaints}"
