"""The default partner makes sense: a real server with the model that two cores get answers spoken questions right."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from voice_server import VoiceServer

from .caller import calling, say

pytestmark = pytest.mark.weights

DEFAULT = "qwen2.5-coder-0.5b-instruct"
CONFIG = {"seed": 3, "temperature": 0.0, "max_tokens": 60}


@pytest.fixture(scope="module")
def partner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoiceServer]:
    """A server with the default model."""
    server = VoiceServer(tmp_path_factory.mktemp("partner") / "log", "--model", DEFAULT)
    yield server
    assert server.stop() == 0


async def answers(server: VoiceServer, questions: list[np.ndarray]) -> list[str]:
    """Ask one question after the other in a conversation; return the replies' words, in small letters."""
    replies = []
    async with calling(server.url, **CONFIG) as caller:
        for question in questions:
            since = len(caller.events)
            caller.speak(question)
            done = await caller.until("reply_done", since)
            assert done["epoch"]
            words = [event["text"] for event in caller.events[since:] if event.name == "reply_text"]
            replies.append("".join(words).lower())
    return replies


async def test_it_knows_a_capital_counts_and_remembers_a_name(partner: VoiceServer) -> None:
    facts = [say(partner, text) for text in ("What is the capital of France?", "What is twelve times eight?")]
    talk = [say(partner, text) for text in ("Hello, my name is Peter.", "How are you today?", "What is my name?")]
    # At the same time: a reply does not depend on another conversation.
    (capital, product), (*_, name) = await asyncio.gather(answers(partner, facts), answers(partner, talk))
    assert "paris" in capital
    assert "96" in product or "ninety-six" in product
    assert "peter" in name
