"""Entry point of the engine's process: take commands from the socket, step, send what comes out.

With a device, a step is under way while commands are taken and messages are sent; see core.py.

Started by the server as `python -m voxlane.engine.process LINK [PAGE [CONTROL]]`, with the numbers of descriptors: the
socket, the page on which progress is shown, and the socket on which the server asks for forks (template.py). End of
file on a socket means that the server is gone.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

from voxlane.engine import progress
from voxlane.engine.api import (
    Configure,
    Loading,
    ProgressPage,
    StartFailed,
)
from voxlane.engine.links import Gone, Links

if TYPE_CHECKING:
    from voxlane.engine.build.assemble import Assembly

log = logging.getLogger(__name__)

LOST = 3
"""Exit status of an engine whose device answers no more."""

GC_THRESHOLDS = (1_000, 1 << 30, 1 << 30)
TIDY_IDLE_S, TIDY_BUSY_S = 10.0, 600.0
"""When garbage that refers to itself is looked for, see gc.set_threshold: among the newest objects as usual, among all
of them when the engine has nothing to do, and hardly ever where it always has. With 256 answers under way that takes 8
ms, which an interruption would wait for, and in the runs we watched none was found."""

SWITCH_S = 2e-4
"""How long a thread that reads prompts or makes voices ready may keep Python to itself while the loop waits for it."""


class _Progress:
    """Sends start-up progress, but no more often than a person can see it move."""

    def __init__(self, link: Links) -> None:
        self._link = link
        self._last = ("", 0.0)

    def __call__(self, what: str, done: float) -> None:
        if what != self._last[0] or done - self._last[1] >= 0.02 or done == 1.0:
            self._last = (what, done)
            self._link.send([Loading(what, done)])


class Garbage:
    """Objects to which only they themselves refer."""

    def __init__(self) -> None:
        """Look for all there is, for the last time unasked: what is loaded stays."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._tidied_s = time.monotonic()

    def tidy(self, every_s: float) -> None:
        """Look for all of it if that was long ago."""
        if time.monotonic() - self._tidied_s > every_s:
            with progress.allow(progress.COLLECTING_S):
                gc.collect()
            self._tidied_s = time.monotonic()


def serve(link: Links, control: socket.socket | None = None) -> int:
    """Load what the first message asks for, then step while there is work; return the exit status.

    With `control`, this process may become a template: then its forks step, and it returns when the server has gone.
    """
    # Imported here, so that a server that asks for nothing pays for nothing, and start-up progress begins at once.
    from voxlane.engine.build.assemble import assemble
    from voxlane.engine.errors import ModelError
    from voxlane.engine.template import can_fork, fork_engines

    configure = link.receive(wait=True)[0]
    if not isinstance(configure, Configure):
        raise TypeError("the first message must be Configure")
    logging.getLogger().setLevel(configure.log_level)
    try:
        assembly = assemble(configure.config, _Progress(link))
    except (ModelError, OSError, MemoryError) as error:
        link.send([StartFailed(str(error) or type(error).__name__)])
        return 1
    garbage = Garbage()
    sys.setswitchinterval(SWITCH_S)
    if control is not None:
        if can_fork(configure.config, assembly):
            own = fork_engines(control, link.give(), assembly.forget)
            if own is None:
                return 0
            _be_fork(own, assembly, garbage)
        else:
            control.close()  # tells the server that this process is the engine
    return _run(link, assembly, garbage)


def _be_fork(own: socket.socket, assembly: Assembly, garbage: Garbage) -> NoReturn:
    """Be an engine, and end without the libraries' ends: those wait for threads that only the template has."""
    status = 1
    try:
        assembly.wake()
        status = _run(Links(own), assembly, garbage)
    except Gone:
        status = 0
    except BaseException:
        log.exception("the engine failed")
    finally:
        logging.shutdown()
        os._exit(status)


def _run(link: Links, assembly: Assembly, garbage: Garbage) -> int:
    """Step while there is work; return the exit status."""
    from voxlane.engine.kernels import native
    from voxlane.engine.runners.cuda.device import DeviceLost

    counts = native.show_progress(progress.address())
    progress.set_usual(0.0 if counts and not assembly.on_device else progress.COMPILING_S)
    link.send([assembly.ready])
    core = assembly.core
    try:
        while True:
            if not core.busy:
                link.send(core.idle(link.waiting))
                garbage.tidy(TIDY_IDLE_S)
                link.wait()
            garbage.tidy(TIDY_BUSY_S)
            link.send(core.step(lambda: link.receive(wait=False), link.send))
            link.send(core.stats_due())
    except DeviceLost as error:
        log.critical("device=lost error=%s", error)  # a new process gets a sound one: the server starts it,
        link.close()  # and ends this one, should the device hold up its end
        return LOST
    finally:
        assembly.close()


class _JsonLines(logging.Formatter):
    """Write every record as one JSON object, as the server does where its log is JSON."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found = {"time": moment.replace("+00:00", "Z"), "level": record.levelname, "logger": record.name}
        found["message"] = record.getMessage()
        if record.exc_info:
            found["trace"] = self.formatException(record.exc_info)
        return json.dumps(found)


def _set_up_log() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s engine %(message)s")
    if os.environ.get("VOXLANE_LOG_FORMAT") == "json":
        logging.captureWarnings(True)
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_JsonLines())
        sys.excepthook = lambda kind, error, trace: log.critical("uncaught", exc_info=(kind, error, trace))


def main() -> int:
    """Run the engine on the inherited descriptors that the arguments name."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then tells us
    _set_up_log()
    link, page, control = (*map(int, sys.argv[1:]), None, None)[:3]
    assert link is not None
    if control is not None:
        # Before torch is imported: a fork has none of OpenMP's threads, and would wait for them for ever.
        # torch's own setting does not reach the ARM Compute Library.
        os.environ["OMP_NUM_THREADS"] = "1"
    if page is not None:
        progress.show_on(ProgressPage(page))
        os.close(page)
    with contextlib.ExitStack() as sockets:
        connection = sockets.enter_context(socket.socket(fileno=link))
        asking = sockets.enter_context(socket.socket(fileno=control)) if control is not None else None
        try:
            return serve(Links(connection), asking)
        except Gone:
            return 0


if __name__ == "__main__":
    sys.exit(main())
