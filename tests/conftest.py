"""What all tests share: coroutine tests, and a check that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import pty
import random
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop
from ctrl_c import HEAR_CTRL_C
from examples import SOAK as IN_SOAK
from examples import examples, seed_of_today
from hypothesis import is_hypothesis_test, settings
from lanes import ALONE, lane_of, read_lanes
from xdist.scheduler import LoadScopeScheduling

# Never judge by time: machines are noisy. Where CI is set the examples are fixed, so that a red run is the change's.
settings.register_profile(
    "voxlane", max_examples=examples(100), deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("voxlane")

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported: its kernels then run on the CPU

DEADLINE_SECONDS = float(os.environ.get("VOXLANE_TEST_DEADLINE_S", "300"))
"""A coroutine test that takes this long hangs, unless it was asked to take longer."""

PRESS_AGAIN_SECONDS = 10.0
"""When a key that led to nothing is pressed again: not while a busy machine is still at the first."""

LANES = read_lanes()
LONG = tuple(beginning for lane in LANES.values() for beginning in lane.long)
TOGETHER = (("browser",), ("e2e/test_conversation.py", "e2e/test_openai_client.py"))
"""Files that share a server with real models: one worker runs them all, so that it starts once."""

SPLIT = ("lab/test_runner.py",)
"""Long files whose tests need little of each other: each worker takes the next test."""

SLOWEST = 10
"""How many files the end of a run names."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lane", choices=LANES, help="run only this lane of tests/lanes.toml")


def pytest_configure(config: pytest.Config) -> None:
    """Give each of several workers a core: an engine uses all it may, and two would fight for them."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the files whose tests the lane or the mark expression leaves out."""
    name = _in_tests(collection_path)
    if collection_path.suffix != ".py" or not name:
        return None
    marks, lane = config.option.markexpr, config.option.lane
    if lane and lane_of(name, LANES.values()) != lane:
        return True
    alone, long = name.startswith(ALONE), name.startswith(LONG)
    if (marks.startswith("not alone") and alone) or (marks.startswith("alone") and not alone):
        return True
    return (marks.endswith("not soak") and long) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that want the machine for themselves, those that are long, and those that draw examples."""
    for item in items:
        if not lane_of(_in_tests(item.path), LANES.values()):
            raise pytest.UsageError(f"{item.path} belongs to no lane: add it to tests/lanes.toml")
        if _in_tests(item.path).startswith(ALONE):
            item.add_marker("alone")
        if item.nodeid.removeprefix("tests/").startswith(LONG):
            item.add_marker("soak")
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("property")
    if seed := os.environ.get("VOXLANE_TEST_SHUFFLE"):
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))


def pytest_collection_finish() -> None:
    """Keep what was imported out of every later search for garbage, such as that of `no_leaks`."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let it go at the end: libraries that count their objects would complain."""
    gc.unfreeze()


class _ByServer(LoadScopeScheduling):
    """Gives a worker whole files, and one worker all files that share a server."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.removeprefix("tests/") in SPLIT:
            return nodeid
        shared = [files[0] for files in TOGETHER if file.removeprefix("tests/").startswith(files)]
        return shared[0] if shared else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return _ByServer(config, log) if config.option.dist == "loadscope" else None


def _in_tests(path: Path) -> str:
    """Return a path relative to this folder, or an empty string."""
    here = Path(__file__).parent
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else ""


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name bytes by how many they are: what made them may write the time into them, and workers must agree on names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on a loop of its own, and fail it when it leaves tasks behind."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(_run(pyfuncitem.obj, arguments))
    return True


async def _run(test: Any, arguments: dict[str, Any]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        await test(**arguments)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the slowest files, and the seed of the fuzzers."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    if len(seconds) > 1:
        terminalreporter.section(f"slowest {SLOWEST} files")
        for file, taken in seconds.most_common(SLOWEST):
            terminalreporter.write_line(f"{taken:6.1f} s  {file}")
    if IN_SOAK:
        terminalreporter.write_line(f"seed of the fuzzers: {seed_of_today()}")


@pytest.fixture(scope="session")
def _libuv_started() -> None:
    """Let libuv open the signal pipe that it keeps for the life of the process: not a leak of any one test."""
    uvloop.new_event_loop().close()


@pytest.fixture
def no_leaks(_libuv_started: None) -> Iterator[None]:
    """Fail a test that leaves a file descriptor or a child process behind."""
    before, children = _descriptors(), _children()
    yield
    if _descriptors().keys() - before.keys():
        gc.collect()  # objects that refer to each other close their files only here
    opened = {number: target for number, target in _descriptors().items() if number not in before}
    assert not opened, f"file descriptors left open: {opened}"
    assert _children() <= children, f"child processes left: {_children() - children}"


def _descriptors() -> dict[int, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir() if Path("/proc/self/fd").exists() else ():
        try:
            found[int(entry.name)] = os.readlink(entry)
        except OSError:  # the one that listed the folder
            continue
    return found


def _children() -> set[int]:
    while True:
        lists = Path("/proc/self/task").glob("*/children") if Path("/proc/self/task").exists() else ()
        try:
            return {int(number) for path in lists for number in path.read_text().split()}
        except (FileNotFoundError, ProcessLookupError):  # a thread has ended meanwhile, and left its own to another
            continue


@pytest.fixture(scope="session")
def voice_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real server for all tests of a session that talk to one: it takes ten seconds to start."""
    from voice_server import VoiceServer  # only here: most tests need none of its imports

    options = ("--kv-memory-mib", "256")
    shared = VoiceServer(tmp_path_factory.mktemp("server") / "log", *options)
    yield shared
    assert shared.stop() == 0
    assert "Traceback" not in shared.log.read_text()


class Terminal:
    """A program in a terminal of its own: it can be typed at, read, and sent Ctrl-C."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        # The program takes the terminal as its controlling one, so that \x03 becomes SIGINT as it does for a person.
        take = f"{HEAR_CTRL_C}import os, runpy, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); "
        take += "sys.argv = sys.argv[1:]; "
        run = "exec(sys.argv[0]) if sys.argv[0] else runpy.run_module('voxlane.server.cli', run_name='__main__')"
        self._process = subprocess.Popen(
            [sys.executable, "-c", take + run, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", **environment},
            start_new_session=True,
        )
        os.close(theirs)
        self._unread = ""

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def until(self, text: str, *, pressing: str = "") -> str:
        """Return what the program shows, up to and including `text`; press `pressing`, and again if nothing follows.

        Python loses a Ctrl-C between drawing the prompt and waiting for keys; a person presses again.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        self.type(pressing)
        while text not in self._unread:
            patience = min(PRESS_AGAIN_SECONDS if pressing else DEADLINE_SECONDS, deadline - time.monotonic())
            ready, _, _ = select.select([self._ours], [], [], max(0.0, patience))
            if not ready and pressing and time.monotonic() < deadline:
                self.type(pressing)
                continue
            assert ready, f"{text!r} was not shown, only {self._unread!r}"
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # what Linux says when the program has closed the terminal
                data = b""
            assert data, f"the program ended without {text!r}: {self._unread!r}"
            self._unread += data.decode(errors="replace")
        end = self._unread.index(text) + len(text)
        shown, self._unread = self._unread[:end], self._unread[end:]
        return shown

    def exit_status(self) -> int:
        """Wait for the program's end."""
        return self._process.wait(DEADLINE_SECONDS)

    def close(self) -> None:
        """Hang up."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Start `voxlane ARGUMENTS` in a terminal, or with code= a piece of Python."""
    opened: list[Terminal] = []

    def start(*arguments: str, code: str = "") -> Terminal:
        opened.append(Terminal([code, *arguments], {"XDG_STATE_HOME": str(tmp_path)}))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
