"""People talk with the page: what they say and hear is what its captions show, and they may cut in."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from playback_account import Account
from voice_server import VoiceServer, words

from voxlane.codecs.resample import resample

pytestmark = pytest.mark.weights

STEADY = {"temperature": 0, "seed": 7}
QUESTION = "What color is the sky on a clear day?"
"""Its answer is made of plain English words, which are spelt as they are heard."""

STORY = "Tell me a long story about a dragon."
CUT_IN = "Wait, what color is the grass?"
PARTS = {"turn_end", "words", "first_token", "first_sample", "played"}


def test_a_spoken_question_is_answered(server: VoiceServer, visit: Any) -> None:
    visitor = visit((1.0, QUESTION))
    visitor.open(server.url, **STEADY)
    visitor.start()
    (answer,) = visitor.await_lines("assistant", "done")
    visitor.await_state("listening")
    (asked,) = visitor.await_lines("user", "done")
    assert words(asked.text) == words(QUESTION)
    assert "blue" in words(answer.text)

    heard = visitor.sound("output")
    assert words(server.transcribe(heard.samples, heard.rate)) == words(answer.text)
    (began,) = visitor.messages("reply")
    reply = np.asarray(resample(visitor.reply(began.detail["epoch"]), 24_000, heard.rate))
    Account(reply, heard.rate).explain(heard.samples)

    (turn,) = visitor.page.query_selector_all("#latency li[data-turn]")
    boxes = {part.get_attribute("data-part"): part.bounding_box() for part in turn.query_selector_all(".seg")}
    assert set(boxes) == PARTS
    assert all(box is not None and box["width"] > 0 for box in boxes.values())
    steps = [int(re.sub(r"\D", "", figure.text_content() or "")) for figure in turn.query_selector_all(".figure")]
    assert len(steps) == len(PARTS)
    assert turn.query_selector("strong").text_content() == f"{sum(steps)} ms"
    visitor.check()


def test_who_cuts_in_is_heard(server: VoiceServer, visit: Any) -> None:
    visitor = visit((1.0, CUT_IN))
    visitor.open(server.url, **STEADY, max_tokens=70)
    visitor.type(STORY)
    visitor.await_partly_heard()
    visitor.page.click("#mute")  # the microphone is opened, and soon hears it
    (cut,) = visitor.await_lines("assistant", "interrupted")
    assert cut.heard.strip()
    assert cut.unheard.strip()
    grey, black = (
        visitor.page.eval_on_selector(
            f'#captions li[data-status="interrupted"] .{part}', "(part) => getComputedStyle(part).color"
        )
        for part in ("unheard", "heard")
    )
    assert grey != black
    (answer,) = visitor.await_lines("assistant", "done")
    assert answer.text.strip()
    assert words(visitor.await_lines("user", "done", 2)[1].text) == words(CUT_IN)

    said, heard = visitor.sound("input"), visitor.sound("output")
    onset = int(said.loud(above=0.01)[0])
    (interrupted,) = visitor.messages("interrupted")
    epoch = interrupted.detail["epoch"]
    following = next(one.frame for one in visitor.messages("audio") if one.detail["epoch"] > epoch)
    stopped = int(heard.loud(before=following, above=1e-5)[-1])  # a pause of the reply is not quite silent
    assert interrupted.detail["samples"] < len(visitor.reply(epoch)), "it was over already"
    (barge_in,) = [one.detail for one in visitor.messages("barge_in") if one.detail["committed"]]
    print(
        f"\nfrom the first sample of the word that cuts in to silence at the page's output: "
        f"{1000 * (stopped - onset) / heard.rate:.0f} ms{' (it had run dry: a busy machine)' * (stopped < onset)}; "
        f"the server heard it after {barge_in['hold_ms']:.0f} ms of sound, "
        f"and the browser's own output adds {1000 * heard.latency_s:.0f} ms"
    )
    visitor.check()


def test_a_murmur_holds_and_nothing_is_lost(server: VoiceServer, visit: Any) -> None:
    visitor = visit((1.0, "Mhm."))
    visitor.page.add_init_script("tap.ducking = false")  # its levels would not be the reply's
    visitor.open(server.url, **STEADY, max_tokens=40, barge_in={"hold": "pause"})
    visitor.type(STORY)
    visitor.await_partly_heard()
    visitor.page.click("#mute")
    visitor.await_message("release")
    (answer,) = visitor.await_lines("assistant", "done")
    visitor.await_state("listening")
    assert visitor.states[visitor.states.index("held") + 1] == "speaking"
    (hold,), (stopped,), (released,) = visitor.messages("hold"), visitor.told("stopped"), visitor.told("released")
    assert not visitor.messages("interrupted")
    heard = visitor.sound("output")
    reply = np.asarray(resample(visitor.reply(hold.detail["epoch"]), 24_000, heard.rate))
    softened = heard.rate // 50
    held = slice(stopped.frame - heard.frame + softened, released.frame - heard.frame)
    assert not heard.samples[held].any(), "it was held, and yet played"
    silence = Account(reply, heard.rate).explain(heard.samples)
    assert silence >= held.stop - held.start > 0
    with pytest.raises(AssertionError, match="does not follow"):  # one sample less would be noticed
        Account(np.delete(reply, np.abs(reply).argmax()), heard.rate).explain(heard.samples)
    print(f"\nheld for {1000 * silence / heard.rate:.0f} ms, and every sample of {len(reply)} was played once")
    assert answer.text.strip()
    visitor.check()


@pytest.mark.soak
def test_a_murmur_lowers_the_reply_and_the_reply_goes_on(server: VoiceServer, visit: Any) -> None:
    visitor = visit((1.0, "Mhm."))
    visitor.page.add_init_script("tap.ducking = false")  # only the server lowers it
    visitor.open(server.url, **STEADY, max_tokens=40)
    visitor.type(STORY)
    visitor.await_partly_heard()
    visitor.page.click("#mute")
    visitor.await_message("release")
    (answer,) = visitor.await_lines("assistant", "done")
    visitor.await_state("listening")
    assert answer.text.strip()
    assert not visitor.messages("interrupted")
    duck, release = visitor.messages("duck")[0], visitor.messages("release")[0]
    heard = visitor.sound("output")
    ramp = heard.rate // 20
    lowered = heard.samples[duck.frame - heard.frame + ramp : release.frame - heard.frame]
    others = heard.samples[np.abs(heard.samples) > 1e-3]
    assert lowered.any(), "it was to go on"
    assert np.sqrt(np.mean(lowered**2)) < 0.5 * np.sqrt(np.mean(others**2))
    print(f"\nlowered for {1000 * (release.frame - duck.frame) / heard.rate:.0f} ms")
    visitor.check()
