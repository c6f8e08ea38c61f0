"""`voxlane doctor`: what the engine finds out about this machine, as lines for a person or as JSON.

A child process examines the machine: a fault of a driver or a missing package ends the child, and that is a finding
too.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from voxlane.engine.api import Configure, EngineConfig, encode

DOCTOR_COMMAND = (sys.executable, "-m", "voxlane.engine.build.doctor")

MARKS = {"good": "ok", "note": "note", "bad": "BAD"}

Finding = dict[str, Any]  # section, name, state (good, note, bad), detail, advice


def run_doctor(config: EngineConfig, *, as_json: bool = False, command: Sequence[str] = DOCTOR_COMMAND) -> int:
    """Print the findings; return 0, or 1 if something would keep the engine from working."""
    found: list[Finding] = []
    for finding in _examine(config, command):
        if not as_json:
            for line in _lines(finding, new_section=not found or found[-1]["section"] != finding["section"]):
                print(line, flush=True)
        found.append(finding)
    bad = [finding for finding in found if finding["state"] == "bad"]
    if as_json:
        print(json.dumps({"ok": not bad, "findings": found}, indent=1))
    elif bad:
        print(f"\n{len(bad)} problem{'s' if len(bad) > 1 else ''}: {', '.join(finding['name'] for finding in bad)}")
    else:
        print("\nThe engine can run here: `voxlane serve` starts it.")
    return 1 if bad else 0


def _examine(config: EngineConfig, command: Sequence[str]) -> Iterator[Finding]:
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as said, subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it may be gone already: its status says so below
            child.stdin.write(encode(Configure(config)))
            child.stdin.close()
        for line in child.stdout:
            yield json.loads(line)
        child.wait()
        said.seek(0)
        errors = said.read().decode("utf-8", "replace").splitlines()
    if child.returncode:
        last = next((line.strip() for line in reversed(errors) if line.strip()), "it said nothing")
        yield {
            "section": "engine",
            "name": "process",
            "state": "bad",
            "detail": f"the check ended with status {child.returncode}: {last[:300]}",
            "advice": 'if a device is at fault, engine.device = "cpu" works without it',
        }


def _lines(finding: Finding, *, new_section: bool) -> Iterator[str]:
    if new_section:
        yield finding["section"]
    yield f"  {MARKS[finding['state']]:5}{finding['name']:22}{finding['detail']}"
    if finding["advice"]:
        yield f"  {'':27}→ {finding['advice']}"
