"""`voxlane models recommend` shows what its child found, and says what to do when it cannot."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from voxlane.server.cli import main
from voxlane.server.commands.recommend import run_recommend
from voxlane.server.errors import ConfigError, EngineStartFailed

ROW = {
    "name": "hf:me/mine#file one.gguf", "job": "chat", "size": 2_500_000_000, "memory_bytes": 3_100_000_000,
    "speed": 18.6, "unit": "tokens/s", "licence": "MIT", "note": "A note.", "quick": True, "fits": True, "gated": False,
    "pinned": False, "packaged": False, "recommended": True, "here": False,
}  # fmt: skip
GPU = {"device": "cuda", "name": "NVIDIA H200", "cores": 16, "free_bytes": 149_000_000_000, "copy_s": 4.0e12}


def child(told: dict[str, Any]) -> tuple[str, ...]:
    """Return the command of a child that writes a report."""
    return (sys.executable, "-c", f"print({json.dumps(told)!r})")


def test_this_machine_as_json_and_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The real child: what is printed can be read, and its commands name what it recommends."""
    assert main(["models", "recommend", "--device", "cpu", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    chosen = {model["job"]: model["name"] for model in told["models"] if model["recommended"]}
    assert chosen.keys() >= {"chat", "listening", "voice"}
    assert f"--asr-model {chosen['listening']}" in told["serve"]
    assert told["machine"]["device"] == "cpu"
    assert run_recommend("cpu", command=child(told)) == 0
    table = capsys.readouterr().out
    assert "without a GPU" in table.split("\n", 1)[0]
    for job in ("chat", "listening", "voice"):
        assert f"\n*  {job} " in table
    assert "billion packed 4-bit weights a second" in table
    assert "\n  voxlane serve --model " in table


def test_a_gpu_and_a_job_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    others = [
        ROW | {"recommended": False, "name": "hf:a/gated", "gated": True, "fits": False, "quick": False},
        ROW | {"job": "listening", "name": "here", "here": True, "speed": 0.0109, "pinned": True},
        ROW | {"job": "voice", "name": "packaged", "packaged": True, "speed": 1.73, "quick": False},
    ]
    assert run_recommend("auto", command=child({"machine": GPU, "models": [ROW, *others]})) == 0
    told = capsys.readouterr().out
    assert told.startswith("This machine: NVIDIA H200 with 149.0 GB free, 16 cores.\n")
    assert "*  chat       hf:me/mine  2.5 GB    3.1 GB  19 tokens/s  MIT      no    A note." in told
    assert "no    Too large. Too slow to talk to. Gated. A note." in told
    assert "11 ms        MIT      yes   sha256. A note." in told
    assert "none      3.1 GB  1.7 s        MIT      no    Too slow to talk to. A note." in told
    assert "   speech-to-speech  none for this machine." in told
    assert "4,000 GB/s that this GPU was measured to copy" in told
    assert (
        "\n  voxlane models pull 'hf:me/mine#file one.gguf'\n"
        "  voxlane serve --model 'hf:me/mine#file one.gguf' --asr-model here --tts-model packaged\n"
    ) in told
    assert told.endswith("in full:\n  hf:me/mine#file one.gguf\n")


def test_a_device_that_is_not_there_says_what_to_do() -> None:
    with pytest.raises(ConfigError) as refused:
        run_recommend("cuda", command=child({"error": "engine.device: torch sees no CUDA device"}))
    assert refused.value.hint == ("engine.device: torch sees no CUDA device; leave --device out, or say --device cpu")


def test_a_child_that_dies_says_what_to_do() -> None:
    script = "import sys\nprint('{half')\nsys.exit('no driver')"
    with pytest.raises(EngineStartFailed) as failed:
        run_recommend("auto", command=(sys.executable, "-c", script))
    assert failed.value.hint == (
        "this machine could not be measured (status 1: no driver); `voxlane doctor` shows what is wrong with it"
    )
