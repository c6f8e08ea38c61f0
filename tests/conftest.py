"""What all tests share: coroutine tests, and a check that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop
from ctrl_c import HEAR_CTRL_C
from examples import SOAK as IN_SOAK
from examples import seed_of_today
from hypothesis import is_hypothesis_test, settings

# Never judge by time: machines are noisy. Where CI is set the examples are fixed, so that a red run is the change's.
settings.register_profile("voxlane", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("voxlane")

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported: its kernels then run on the CPU

DEADLINE_SECONDS = float(os.environ.get("VOXLANE_TEST_DEADLINE_S", "300"))
"""A coroutine test that takes this long hangs, unless it was asked to take longer."""

PRESS_AGAIN_SECONDS = 10.0
"""When a key that led to nothing is pressed again: not while a busy machine is still at the first."""

ALONE = (
    "browser", "clients", "faults",
    "e2e/test_conversation.py", "e2e/test_lab_foreign_servers.py", "e2e/test_lab_peers.py", "e2e/test_partner.py",
    "e2e/test_realtime_clients.py", "e2e/test_shown_calls.py", "e2e/test_talker.py",
    "e2e/test_true_call.py", "e2e/test_voice.py",
)  # fmt: skip
"""Tests that depend on the clock, most of them because a person speaks: one at a time, after all others."""

SOAK = (
    # foreign clients, talks in real time, whole commands
    "browser/test_coming_back.py", "browser/test_opus.py", "browser/test_page.py::test_axe",
    "browser/test_sdk_in_browser.py", "browser/test_trouble.py",
    "clients", "faults", "fuzz",
    "e2e/test_audio.py", "e2e/test_cloned_voices.py", "e2e/test_commands.py", "e2e/test_lab_foreign_servers.py",
    "e2e/test_lab_memory.py", "e2e/test_lab_peers.py", "e2e/test_realtime_clients.py", "e2e/test_shown_calls.py",
    "e2e/test_talker.py", "e2e/test_translations.py", "e2e/test_true_call.py", "e2e/test_voice.py",
    "server/commands/test_speech_commands.py",
    "server/commands/test_doctor.py::test_a_machine_without_a_gpu",
    "server/lab/test_runner.py::test_no_gate_of_another_fault", "server/lab/test_sounds.py::test_kokoro_says_it",
    # whole sweeps against another implementation
    "engine/kernels/test_triton_attention", "engine/kernels/test_triton_sampling.py", "engine/models/test_kokoro.py",
    "engine/models/test_lfm2_audio_peer.py",
    "engine/models/test_moonshine_library.py", "engine/models/test_moonshine_noise.py",
    "engine/models/test_phonemes.py::test_all_replies",
    "engine/models/test_qwen2_coder.py", "engine/models/test_qwen3_tts", "engine/models/test_smollm2.py",
    "engine/models/test_streaming.py", "engine/runners/cuda/test_clause_tts.py",
    "engine/runners/cuda/test_codec_tts.py", "engine/runners/cuda/test_recogniser.py",
    "engine/runners/test_codec_tts.py", "engine/jobs/test_score.py", "engine/loop/test_qwen3_asr_streams.py",
    "engine/loop/test_round_trip.py", "engine/models/test_whisper.py::test_states_and_tokens",
    "engine/text/test_tokenizer.py::test_the_default_model_tokenises_like_transformers",
    "engine/weights/test_gguf.py::test_the_default_model_is_read",
    "engine/test_template.py::test_a_long_lived",
    # downloads that are cut off or made by the real pip, the benchmarks' own rehearsals, wheels built and installed
    "engine/weights/test_hub.py::test_an_interrupted_pull", "engine/weights/test_mirrors.py",
    "engine/weights/test_hub_http.py::test_a_hub_that_fails", "engine/weights/test_hub_http.py::test_a_newer_storage",
    "engine/weights/test_hub_http.py::test_a_disk_that_fills", "engine/weights/test_hub_http.py::test_a_refusal_of",
    "test_every_command.py::test_a_command", "test_kernel_benchmarks.py", "test_kernels_compiled.py",
    "test_partner_benchmark.py::test_a_model_that_cannot_run",
    "test_tts_benchmarks.py", "test_voice_benchmarks.py", "test_packaging.py::test_every",
    "test_packaging.py::test_the_command", "test_packaging.py::test_the_installed", "test_packaging.py::test_the_wheel",
)  # fmt: skip
"""Tests that are long by nature: `make soak` runs them, and the property tests with all their examples."""


def pytest_configure(config: pytest.Config) -> None:
    """Give each of several workers cores of its own: an engine uses all it may, and two would fight for them."""
    worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{name}") for name in ("", "_COUNT"))
    if worker and count and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[int(worker.removeprefix("gw")) :: int(count)] or cores)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the files whose tests the mark expression leaves out: it begins with `alone` or `not alone`."""
    marks = config.option.markexpr
    alone, soak = _is_listed(collection_path, ALONE), _is_listed(collection_path, SOAK)
    if marks.startswith("not alone") and alone:
        return True
    if marks.startswith("alone") and collection_path.is_file() and not alone:
        return True
    return (marks.endswith("and not soak") and soak) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that want the machine for themselves, those that are long, and those that draw examples."""
    for item in items:
        if _is_listed(item.path, ALONE):
            item.add_marker("alone")
        if item.nodeid.removeprefix("tests/").startswith(SOAK):
            item.add_marker("soak")
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("property")


def pytest_collection_finish() -> None:
    """Keep what was imported out of every later search for garbage, such as that of `no_leaks`."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let it go at the end: libraries that count their objects would complain."""
    gc.unfreeze()


def _is_listed(path: Path, beginnings: tuple[str, ...]) -> bool:
    here = Path(__file__).parent
    return path.is_relative_to(here) and path.relative_to(here).as_posix().startswith(beginnings)


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
    """Say with which seed the fuzzers ran."""
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
