"""After a reload of the page or a lost connection the conversation is as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from voice_server import VoiceServer, words

from voxlane.codecs.resample import resample

pytestmark = pytest.mark.weights

STEADY = {"temperature": 0, "seed": 7, "max_tokens": 30, "speed": 1.3}
NAME = "My name is Robert."
STORY = "Tell me a long story about a dragon."
SKY = "What color is the sky on a clear day?"
TRACE = 1e-5


def begin(visitor: Any, url: str) -> list[str]:
    """Have a turn to its end, and be in the middle of another; return what was said so far."""
    visitor.open(url, **STEADY)
    visitor.start()
    visitor.type(NAME)
    visitor.await_lines("assistant", "done")
    visitor.type(STORY)
    visitor.await_partly_heard()
    return [line.text for line in visitor.lines[:3]]


def go_on(visitor: Any, before: list[str], answers: int) -> None:
    """Hear the reply out, ask something else, and see that all of it is one conversation."""
    visitor.await_lines("assistant", "done", answers)
    visitor.type(SKY)
    told = visitor.await_lines("assistant", "done", answers + 1)
    lines = [line.text for line in visitor.lines]
    assert lines[:3] == before
    assert [line.role for line in visitor.lines] == ["user", "assistant"] * 3
    assert "blue" in words(told[-1].text)


def test_a_reload_within_a_reply(server: VoiceServer, visit: Any) -> None:
    visitor = visit()
    before = begin(visitor, server.url)
    visitor.page.reload()
    visitor.await_lines("assistant", "done", 2)
    ready = visitor.told("ready")[0].detail
    assert (ready["how"], ready["ready"]["resumed"]) == ("resumed", True)
    assert [entry["content"] for entry in ready["ready"]["history"][:3]] == before
    assert visitor.sound("output").loud().size, "the rest of the reply was not played"
    go_on(visitor, before, 2)
    visitor.check()


def test_a_line_that_is_lost_for_two_seconds(server: VoiceServer, visit: Any) -> None:
    visitor = visit()
    before = begin(visitor, server.url)
    visitor.line.lose()
    visitor.await_banner("reconnecting")
    visitor.page.wait_for_timeout(2000)
    visitor.line.mend()
    visitor.await_banner("resumed")
    (_, ready) = (one.detail for one in visitor.told("ready"))
    assert (ready["how"], ready["ready"]["resumed"]) == ("resumed", True)
    assert [entry["content"] for entry in ready["ready"]["history"][:3]] == before
    visitor.await_lines("assistant", "done", 2)
    visitor.await_state("listening")
    heard = visitor.sound("output")
    reply = visitor.messages("reply")[1]
    sent = np.asarray(resample(visitor.reply(reply.detail["epoch"]), 24_000, heard.rate))
    # Only silence is nothing at all, even a pause is not: so much was played as was sent, but for softened edges.
    played = len(heard.loud(after=reply.frame, above=TRACE))
    assert played == pytest.approx(np.count_nonzero(np.abs(sent) > TRACE), abs=0.05 * heard.rate)
    go_on(visitor, before, 2)


def test_an_interruption_while_the_line_is_lost(server: VoiceServer, visit: Any) -> None:
    visitor = visit()
    begin(visitor, server.url)
    visitor.line.lose()
    visitor.await_banner("reconnecting")
    visitor.page.keyboard.press("Escape")
    visitor.page.wait_for_timeout(500)  # what was heard before it lies well behind
    visitor.line.mend()
    visitor.await_lines("assistant", "interrupted")
    (_, ready) = visitor.told("ready")
    assert ready.detail["ready"]["resumed"]
    assert not visitor.sound("output").loud(after=ready.frame).size, "what was silenced was heard again"
    visitor.type(SKY)
    assert "blue" in words(visitor.await_lines("assistant", "done", 2)[-1].text)
