"""A real server that is left to choose its chat model: `--model auto`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from small_model import NAME as SMALL

from voxlane.engine.build.model_choice import LEAST_TOKENS_S
from voxlane.engine.weights import store

pytestmark = pytest.mark.weights

AUTO = ("--model", "auto", "--asr-model", "", "--tts-model", "")


def test_auto_serves_and_says_why(start_server: Callable[..., Any]) -> None:
    server = start_server(*AUTO)
    banner = [server.process.stdout.readline() for _ in range(3)]
    assert "chosen because" in banner[1]
    assert "voxlane serve --model" in banner[2]
    served = httpx.get(f"{server.url}/healthz", timeout=60).json()["model"]
    assert served in LEAST_TOKENS_S
    asked: Any = [{"role": "user", "content": "What is the capital city of France? Answer in English."}]
    answer = server.client.chat.completions.create(model=served, messages=asked, temperature=0, max_tokens=20)
    assert "Paris" in answer.choices[0].message.content, "it makes sense"


@pytest.mark.soak
def test_without_a_network_the_model_that_is_here_answers(
    start_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = store.path(SMALL)
    cache = tmp_path / "cache"
    (cache / "models" / SMALL).mkdir(parents=True)
    (cache / "models" / SMALL / here.name).symlink_to(here)
    kernels = store.cache_root() / "native"  # shared, else the server compiles them: half a minute
    kernels.mkdir(parents=True, exist_ok=True)
    (cache / "native").symlink_to(kernels)
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
    server = start_server(*AUTO)
    banner = [server.process.stdout.readline() for _ in range(4)]
    served = httpx.get(f"{server.url}/healthz", timeout=60).json()["model"]
    assert served == SMALL
    if "could not be fetched" not in "".join(banner):  # a machine so slow that it wants the small one anyway
        assert "chosen because this machine writes" in "".join(banner)
