"""Take pictures of every state of the page, in three sizes, light and dark, with the real server and real sound.

    python tests/browser/screenshots.py [FOLDER [MODEL]]    # build/portraits and the default chat model, unless named

States that last a moment are held by keeping the server's next messages back while the pictures are taken. It takes
pictures and compares nothing: a person must look at them. docs/img holds copies of those that documents show.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support/browser"))

from chromium import Visitor, browser, script
from playwright.sync_api import Playwright, sync_playwright
from voice_server import VoiceServer

SIZES = {
    "desktop": {"width": 1280, "height": 860},
    "phone": {"width": 390, "height": 844},
    "landscape": {"width": 844, "height": 390},
}
MOST_BYTES = 150_000
STORY = "Tell me a long story about a dragon."
SOUND_S = 9.0
"""When the person makes a sound, after the microphone was opened: the story has begun, and is not over."""

SETTLING_MS = 350
"""For transitions of colours and sizes to end."""

FREEZER = """
(() => {
  const { set } = Object.getOwnPropertyDescriptor(WebSocket.prototype, "onmessage");
  const waiting = [];
  const freezer = { at: "", frozen: false };
  const now = performance.now.bind(performance);
  let stopped = 0;
  performance.now = () => (freezer.frozen ? (stopped ||= now()) : ((stopped = 0), now())); // moods fade with time
  Object.defineProperty(WebSocket.prototype, "onmessage", {
    set(listener) {
      set.call(this, listener && ((event) => {
        if (freezer.frozen) waiting.push(() => listener.call(this, event));
        else listener.call(this, event);
      }));
    },
  });
  const dispatch = EventTarget.prototype.dispatchEvent;
  EventTarget.prototype.dispatchEvent = function (event) {
    const { name, state } = event instanceof CustomEvent && event.type === "message" ? event.detail : {};
    if (freezer.at && (name === freezer.at || (name === "state" && state === freezer.at))) freezer.frozen = true;
    return dispatch.call(this, event);
  };
  freezer.thaw = (at) => {
    Object.assign(freezer, { at, frozen: false });
    while (waiting.length && !freezer.frozen) waiting.shift()();
  };
  window.freezer = freezer;
})();
"""


class Portraits:
    """Pictures of one visitor's page."""

    def __init__(self, visitor: Visitor, folder: Path) -> None:
        self._visitor = visitor
        self._folder = folder

    def take(self, state: str) -> None:
        """Take the page as it is, in all sizes and colours."""
        page = self._visitor.page
        for size, viewport in SIZES.items():
            page.set_viewport_size(viewport)
            for colours in ("light", "dark"):
                page.emulate_media(color_scheme=colours)
                page.wait_for_timeout(SETTLING_MS)
                path = self._folder / f"page-{state}-{size}-{colours}.png"
                page.screenshot(path=path, scale="css")
                size_bytes = path.stat().st_size
                print(f"{path}  {size_bytes / 1000:.0f} kB{'  TOO LARGE' if size_bytes > MOST_BYTES else ''}")
        page.set_viewport_size(SIZES["desktop"])

    def freeze_at(self, moment: str) -> None:
        """Hold the server's messages back behind the next one of this name, or that tells of this state."""
        self._visitor.page.evaluate("(moment) => freezer.thaw(moment)", moment)

    def thaw(self) -> None:
        """Let everything come."""
        self.freeze_at("")

    def take_at(self, moment: str) -> None:
        """Wait for a moment that is to be frozen, and take it."""
        self._visitor.await_state(moment)
        self.take(moment)


@contextmanager
def visit(playwright: Playwright, microphone: Path, url: str, *, allowed: bool = True) -> Iterator[Visitor]:
    """Go to the page with a microphone."""
    with ExitStack() as stack:
        context = stack.enter_context(browser(playwright, microphone, allowed=allowed, viewport=SIZES["desktop"]))
        visitor = Visitor(context.new_page(), stack)
        visitor.page.add_init_script(FREEZER)
        visitor.open(url, temperature=0, seed=7, max_tokens=120)
        yield visitor


def conversation(visitor: Visitor, folder: Path) -> None:
    """Have one with a question, a murmur and an interruption, and take all that can be seen of it."""
    portraits = Portraits(visitor, folder)
    portraits.take("idle")
    visitor.page.evaluate("freezer.frozen = true")
    visitor.page.click("#start")
    portraits.take_at("connecting")
    portraits.thaw()
    visitor.await_state("listening")
    portraits.take("listening")
    portraits.freeze_at("user_words")
    visitor.await_message("user_words")
    portraits.take("hearing")
    portraits.freeze_at("thinking")
    portraits.take_at("thinking")


def main(folder: Path, model: str) -> None:
    """Take them all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright, ExitStack() as stack:
        server = VoiceServer(Path(scratch) / "server.log", "--model", model)
        stack.callback(server.stop)
        question, murmur, cut_in = map(
            server.say, ("What color is the sky on a clear day?", "Mhm.", "Wait, what color is the grass?")
        )
        heard = Path(scratch) / "microphone.wav"
        with visit(playwright, script(heard, (4.0, question)), server.url) as visitor:
            conversation(visitor, folder)
        with visit(playwright, script(heard), server.url) as visitor:
            visitor.start()
            visitor.type(STORY)
            visitor.await_partly_heard()
            Portraits(visitor, folder).take("speaking")
        # An interruption is complete when the page knows who has the floor.
        for moment, frozen, sound in (("held", "held", murmur), ("interrupted", "hearing", cut_in)):
            with visit(playwright, script(heard, (SOUND_S, sound)), server.url) as visitor:
                portraits = Portraits(visitor, folder)
                visitor.configure(barge_in={"hold": "pause"})  # otherwise a murmur only lowers the reply
                visitor.start()
                visitor.type(STORY)
                portraits.freeze_at(frozen)
                portraits.take_at(moment)
        with visit(playwright, script(heard), server.url, allowed=False) as visitor:
            visitor.page.click("#start")
            visitor.await_banner("microphone_refused")
            Portraits(visitor, folder).take("refused")
        with visit(playwright, script(heard), server.url) as visitor:
            visitor.start()
            visitor.type("What color is the sky on a clear day?")
            visitor.await_lines("assistant", "done")
            server.stop()
            visitor.await_banner("reconnecting", "draining")
            portraits = Portraits(visitor, folder)
            portraits.take("reconnecting")
            visitor.page.click("#end")
            portraits.take_at("over")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/portraits"), sys.argv[2] if len(sys.argv) > 2 else "auto")
