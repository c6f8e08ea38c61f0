"""Processor time of a process and of all that it has started, by name. Linux."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def family(root: int) -> list[int]:
    """Return a process and its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := _stat(int(entry.name))) is not None:
            parents.setdefault(int(found[1]), []).append(int(entry.name))
    members = [root]
    for member in members:
        members += parents.get(member, [])
    return members


def processor_s(process: int) -> float:
    """Return the seconds of processor time that a process has used so far; 0 if it has ended."""
    found = _stat(process)
    return 0.0 if found is None else (int(found[11]) + int(found[12])) / TICKS_PER_S


def thread_times_s(process: int) -> dict[int, float]:
    """Return the processor time of each thread of a process."""
    times: dict[int, float] = {}
    try:
        for entry in Path(f"/proc/{process}/task").iterdir():
            found = _stat(int(entry.name))
            if found is not None:
                times[int(entry.name)] = (int(found[11]) + int(found[12])) / TICKS_PER_S
    except OSError:
        return {}
    return times


def command(process: int) -> str:
    """Return a process's command line."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _stat(process: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, which may hold blanks."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
