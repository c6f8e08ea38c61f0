"""`voxlane doctor` shows what its child finds, and a child that dies is a finding."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from voxlane.engine.api import EngineConfig
from voxlane.server.cli import main
from voxlane.server.commands.doctor import run_doctor


def python(script: str) -> tuple[str, ...]:
    """Return the command of a child that runs a script after it has read the configuration."""
    return (sys.executable, "-c", f"import sys; sys.stdin.buffer.read()\n{script}")


def test_a_machine_without_a_gpu_is_told_so_and_is_well(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The real child: nothing is loaded, and what is missing and can be fetched is no problem."""
    config = tmp_path / "voxlane.toml"
    config.write_text('[engine]\ndevice = "cpu"\nkv_memory_mib = 64\n', encoding="utf-8")
    assert main(["doctor", "--config", str(config), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    by_name = {(finding["section"], finding["name"]): finding for finding in told["findings"]}
    assert told["ok"] is True
    assert by_name["device", "chosen"]["detail"] == "cpu: as engine.device says"
    assert {section for section, _ in by_name} == {"system", "device", "models", "kernels", "settings", "memory"}
    assert by_name["settings", "max_batch"]["detail"] == "16 (default on a CPU)"


def test_what_keeps_the_engine_from_working_is_said_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", "cpu", "--model", "./nowhere.gguf", "--asr-model", "", "--tts-model", ""]) == 1
    told = capsys.readouterr().out
    assert "BAD  chat                  ./nowhere.gguf: there is no such file or directory" in told
    assert "→ `voxlane models list` shows names for engine.model" in told
    assert "none: engine.tts_model is empty" in told
    assert told.endswith("1 problem: chat\n")


def test_a_child_that_dies_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    finding = {"section": "system", "name": "python", "state": "good", "detail": "3", "advice": ""}
    script = (
        f"print({json.dumps(json.dumps(finding))}, flush=True)\nsys.stderr.write('x' * 200_000)\nsys.exit('no driver')"
    )
    assert run_doctor(EngineConfig(), command=python(script)) == 1
    told = capsys.readouterr().out
    assert told.startswith("system\n  ok   python                3\nengine\n  BAD  process")
    assert "ended with status 1" in told
    assert "no driver" in told or "xxx" in told
