"""A Chrome/Perfetto trace of steps and requests: open it at ui.perfetto.dev. No content, only ids and figures.

Process 1 shows the engine's steps with their phases, and beside them the device's part. Process 2 shows a lane for each
request, with the steps it was in.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from types import TracebackType

log = logging.getLogger(__name__)

STEPS, REQUESTS = 1, 2
HOST, DEVICE = 1, 2


class Trace:
    """An open trace file. The format allows a missing end, so a killed engine still leaves a readable file.

    A disk that fills up ends the trace, not the engine.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and path.is_file():  # most likely the trace of an engine that crashed
            path.replace(path.with_name(path.name + ".old"))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it tells whose requests ran when
        self._file = os.fdopen(descriptor, "w", encoding="utf-8", buffering=1 << 16)
        self._opened = 0
        self._broken = False
        self._write("[\n")
        self._lanes: dict[str, int] = {}
        self._name(STEPS, 0, "process_name", "engine steps")
        self._name(STEPS, HOST, "thread_name", "host")
        self._name(STEPS, DEVICE, "thread_name", "device")
        self._name(REQUESTS, 0, "process_name", "requests")

    def step(self, start_s: float, stop_s: float, phases: Mapping[str, tuple[float, float]], **counts: object) -> None:
        """Write one step and its phases; a step that was planned ahead began in the step before."""
        self._span(STEPS, HOST, "step", start_s, stop_s, counts)
        for name, (begin, end) in phases.items():
            self._span(STEPS, DEVICE if name.endswith("device") else HOST, name, begin, end, {})

    def row(self, request_id: str, lane: str, what: str, start_s: float, stop_s: float, **counts: object) -> None:
        """Write that a request was in a step (or queued, or paused) from start to stop."""
        number = self._lanes.get(request_id)
        if number is None:
            self._opened += 1
            number = self._lanes[request_id] = self._opened
            self._name(REQUESTS, number, "thread_name", f"{lane} {number}")
        self._span(REQUESTS, number, what, start_s, stop_s, counts)

    def keep(self, request_ids: Container[str]) -> None:
        """Close the lanes of all other requests."""
        self._lanes = {name: number for name, number in self._lanes.items() if name in request_ids}

    def close(self) -> None:
        """Finish the file."""
        end = {"name": "end", "ph": "i", "ts": 0, "pid": STEPS, "tid": 0, "s": "g"}
        self._write(json.dumps(end) + "\n]\n")
        with contextlib.suppress(OSError):  # logged before; the descriptor is closed all the same
            self._file.close()

    def flush(self) -> None:
        """Write out what is buffered, so that the file can be read while the engine idles."""
        self._attempt(self._file.flush)

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _span(self, pid: int, tid: int, name: str, start_s: float, stop_s: float, args: Mapping[str, object]) -> None:
        event = {"name": name, "ph": "X", "ts": round(start_s * 1e6, 1), "dur": round((stop_s - start_s) * 1e6, 1)}
        self._write(json.dumps({**event, "pid": pid, "tid": tid, "args": dict(args)}) + ",\n")

    def _name(self, pid: int, tid: int, kind: str, name: str) -> None:
        self._write(json.dumps({"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}) + ",\n")

    def _write(self, text: str) -> None:
        self._attempt(lambda: self._file.write(text))

    def _attempt(self, action: Callable[[], object]) -> None:
        if self._broken:
            return
        try:
            action()
        except OSError as error:
            self._broken = True
            log.warning("trace=off reason=%s", error)
