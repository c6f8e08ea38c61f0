"""The default partner makes sense: a real server with the model that two cores get answers spoken questions right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from small_model import NAME as SMALL

from voxlane.engine.build.model_choice import LEAST_TOKENS_S

from .caller import Caller, calling, say
from .conftest import Server

pytestmark = pytest.mark.weights

DEFAULT = "qwen2.5-coder-0.5b-instruct"
CONFIG = {"seed": 3, "temperature": 0.0, "max_tokens": 60}


@pytest.fixture(scope="module")
def partner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the default model."""
    server = Server(tmp_path_factory.mktemp("partner") / "log", "--model", DEFAULT)
    yield server
    assert server.stop() == 0


async def answer(caller: Caller, server: Server, question: str) -> str:
    """Say something and return the reply's words, in small letters."""
    since = len(caller.events)
    caller.speak(say(server, question))
    done = await caller.until("reply_done", since)
    words = [event["text"] for event in caller.events[since:] if event.name == "reply_text"]
    assert done["epoch"]
    return "".join(words).lower()


async def test_it_knows_a_capital_counts_and_remembers_a_name(partner: Server) -> None:
    async with calling(partner.url, **CONFIG) as caller:
        assert "paris" in await answer(caller, partner, "What is the capital of France?")
        product = await answer(caller, partner, "What is twelve times eight?")
        assert "96" in product or "ninety-six" in product
    async with calling(partner.url, **CONFIG) as caller:
        await answer(caller, partner, "Hello, my name is Peter.")
        await answer(caller, partner, "How are you today?")
        assert "peter" in await answer(caller, partner, "What is my name?")


def test_auto_serves_and_says_why(start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server("--model", "auto", "--asr-model", "", "--tts-model", "")
    banner = [server.process.stdout.readline() for _ in range(3)]
    assert "chosen because" in banner[1]
    assert "voxlane serve --model" in banner[2]
    served = httpx.get(f"{server.url}/healthz", timeout=60).json()["model"]
    assert served in LEAST_TOKENS_S


def test_without_a_network_the_model_that_is_here_answers(
    start_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from voxlane.engine.weights import store

    here = store.path(SMALL)
    cache = tmp_path / "cache"
    (cache / "models" / SMALL).mkdir(parents=True)
    (cache / "models" / SMALL / here.name).symlink_to(here)
    for name, value in {
        store.CACHE_VARIABLE: str(cache),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_RETRIES": "0",
        "HF_ENDPOINT": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    server = start_server("--model", "auto", "--asr-model", "", "--tts-model", "")
    banner = [server.process.stdout.readline() for _ in range(4)]
    served = httpx.get(f"{server.url}/healthz", timeout=60).json()["model"]
    assert served == SMALL
    if "could not be fetched" not in "".join(banner):  # a machine so slow that it wants the small one anyway
        assert "chosen because this machine writes" in "".join(banner)
