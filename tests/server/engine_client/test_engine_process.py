"""The link against a real child process that speaks the real protocol, and dies when asked to."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_thread import IN_THREAD, EngineThread

from voxlane.engine.api import ChatMessage, EngineConfig, Finished, Loading, Started, StepStats, Submit, Text
from voxlane.server import config, limits
from voxlane.server.engine_client import engine_process
from voxlane.server.engine_client.engine_client import Observer, State
from voxlane.server.engine_client.engine_process import EngineProcess, RestartBudget
from voxlane.server.engine_client.packets import PacketPipe
from voxlane.server.engine_client.stream import RequestStream
from voxlane.server.errors import (
    ContextTooLong,
    EngineLost,
    EngineNotReady,
    EngineStartFailed,
    InternalError,
    InvalidRequest,
    Overloaded,
)
from voxlane.server.phone.phone_keys import PHONE_KEY_VARIABLE
from voxlane.server.protocols.phone.systems import SYSTEMS


class Recorder(Observer):
    """Keeps what it is told, and can wait for it."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.steps: list[StepStats] = []
        self.ends: list[Finished] = []
        self.loads: list[Loading] = []
        self._news = asyncio.Event()

    def loading(self, message: Loading) -> None:
        self.loads.append(message)
        self._news.set()

    def state_changed(self, state: State) -> None:
        self.states.append(state)
        self._news.set()

    def stepped(self, message: StepStats) -> None:
        self.steps.append(message)
        self._news.set()

    def finished(self, message: Finished) -> None:
        self.ends.append(message)
        self._news.set()

    async def until(self, condition: object) -> None:
        assert callable(condition)
        while not condition():
            self._news.clear()
            await self._news.wait()


def ask(said: str, request_id: str = "r") -> Submit:
    return Submit(request_id, "chat", (ChatMessage("user", said),))


async def text_of(stream: RequestStream) -> str:
    return "".join([output.text async for output in stream if isinstance(output, Text)])


def in_thread(recorder: Recorder | None = None) -> EngineProcess:
    """Return a link to an engine in a thread: for what its messages do, not its process."""
    observers = (recorder,) if recorder is not None else ()
    return EngineProcess(EngineConfig("m"), command=IN_THREAD, observers=observers, start_child=EngineThread.start)


async def test_a_request_is_answered_in_order(engine_command: Sequence[str]) -> None:
    recorder = Recorder()
    async with EngineProcess(EngineConfig("m"), command=engine_command, observers=(recorder,)) as link:
        ready = await link.wait_ready()
        assert ready.model == "m"
        assert [load.done for load in recorder.loads] == [0.5]
        async with link.submit(ask("the quick brown fox")) as stream:
            outputs = [output async for output in stream]
        assert [type(output) for output in outputs] == [Started, Text, Text, Text, Text, Finished]
        assert link.open_streams == 0
        assert await anext(stream, None) is None
    assert recorder.states == ["ready", "stopped"]


async def test_the_engine_gets_none_of_the_servers_secrets(
    engine_command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = [name for name in vars(config) if name.endswith("_VARIABLE") and name != "KEEPER_FAILURES_VARIABLE"]
    phone = [PHONE_KEY_VARIABLE, *(one.key.variable for one in SYSTEMS.values() if one.key is not None)]
    for variable in (*(getattr(config, name) for name in secrets), *phone):
        monkeypatch.setenv(variable, f"secret of {variable}")
    monkeypatch.setenv("VOXLANE_CACHE", "/a/folder")
    async with EngineProcess(EngineConfig("m"), command=engine_command, environment={"GPU": "1"}) as link:
        await link.wait_ready()
        proc = Path(f"/proc/{link.pid}")
        told = (proc / "environ").read_text()
    assert re.findall("secret of [A-Z_]*", told) == []
    assert {"VOXLANE_CACHE=/a/folder", "GPU=1"} <= set(told.split("\0"))


async def test_many_requests_at_once_keep_apart() -> None:
    async with in_thread() as link:
        await link.wait_ready()
        streams = [link.submit(ask(f"count {index}", f"r{index}")) for index in range(50)]
        texts = await asyncio.gather(*map(text_of, streams))
        assert [len(text.split()) for text in texts] == list(range(50))
        for stream in streams:
            stream.close()


async def test_a_large_prompt_waits_for_the_socket_and_arrives_whole() -> None:
    async with in_thread() as link:
        await link.wait_ready()
        # 6 MB are about a hundred packets: far more than the kernel holds.
        messages = (ChatMessage("user", "y" * 6_000_000), ChatMessage("user", "size"))
        async with link.submit(Submit("r", "chat", messages)) as stream, link.submit(ask("behind it", "s")) as second:
            assert await text_of(stream) == "6000004"
            assert await text_of(second) == "behind it"


async def test_a_large_answer_arrives_whole() -> None:
    async with in_thread() as link:
        await link.wait_ready()
        async with link.submit(ask("big 3000000")) as stream:
            assert len(await text_of(stream)) == 3_000_000


async def test_too_much_waiting_is_refused_and_cancels_still_pass(
    engine_command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OUTBOX_BYTES", 4_000_000)
    async with EngineProcess(EngineConfig("m"), command=engine_command) as link:
        await link.wait_ready()
        assert link.pid is not None
        os.kill(link.pid, signal.SIGSTOP)  # else it may have read the first before the second comes
        try:
            async with link.submit(ask("y" * 3_900_000)):
                with pytest.raises(Overloaded):
                    link.submit(ask("y" * 3_900_000, "second"))
        finally:
            os.kill(link.pid, signal.SIGCONT)
        assert link.open_streams == 0


async def test_a_prompt_over_the_message_limit_is_refused() -> None:
    async with in_thread() as link:
        await link.wait_ready()
        with pytest.raises(ContextTooLong):
            link.submit(ask("y" * 17_000_000))
        assert link.open_streams == 0


async def test_a_refusal_becomes_its_error() -> None:
    async with in_thread() as link:
        await link.wait_ready()
        for code, kind in (
            ("too_long", ContextTooLong),
            ("overloaded", Overloaded),
            ("bad_request", InvalidRequest),
            ("duplicate_id", InternalError),
        ):
            async with link.submit(ask(f"refuse {code}")) as stream:
                with pytest.raises(kind) as caught:
                    await anext(stream)
            assert caught.value.hint == "the prompt has 9 tokens"


async def test_an_id_in_use_is_our_bug() -> None:
    async with in_thread() as link:
        await link.wait_ready()
        async with link.submit(ask("wait")):
            with pytest.raises(InternalError):
                link.submit(ask("wait"))


async def test_leaving_a_stream_cancels_in_the_engine() -> None:
    recorder = Recorder()
    async with in_thread(recorder) as link:
        await link.wait_ready()
        async with link.submit(ask("wait")) as stream:
            assert isinstance(await anext(stream), Started)
        await recorder.until(lambda: recorder.ends)
        assert recorder.ends[0].reason == "cancelled"
        assert link.open_streams == 0
        async with link.submit(ask("still here", "s")) as stream:
            assert await text_of(stream) == "still here"


async def test_a_cancelled_task_cancels_in_the_engine() -> None:
    recorder = Recorder()
    async with in_thread(recorder) as link:
        await link.wait_ready()
        started = asyncio.Event()

        async def listen() -> None:
            async with link.submit(ask("wait")) as stream:
                async for _ in stream:
                    started.set()

        task = asyncio.create_task(listen())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await recorder.until(lambda: recorder.ends)
        assert recorder.ends[0].reason == "cancelled"


async def test_a_dropped_stream_cancels_in_the_engine() -> None:
    recorder = Recorder()
    async with in_thread(recorder) as link:
        await link.wait_ready()
        await anext(link.submit(ask("wait")))
        await recorder.until(lambda: recorder.ends)
        assert recorder.ends[0].reason == "cancelled"


async def test_a_finished_stream_sends_no_cancel() -> None:
    recorder = Recorder()
    async with in_thread(recorder) as link:
        await link.wait_ready()
        async with link.submit(ask("hello")) as stream:
            await text_of(stream)
        async with link.submit(ask("hello")) as stream:  # the id is free again
            await text_of(stream)
        assert [end.reason for end in recorder.ends] == ["eos", "eos"]


async def test_a_lost_engine_fails_its_streams_and_comes_back(engine_command: Sequence[str]) -> None:
    recorder = Recorder()
    async with EngineProcess(EngineConfig("m"), command=engine_command, observers=(recorder,)) as link:
        await link.wait_ready()
        for said in ("crash", "crash later", "garbage"):
            lost = link.pid
            bystander = link.submit(ask("wait", "b"))
            victim = link.submit(ask(said, "v"))
            for stream in (bystander, victim):
                with pytest.raises(EngineLost) as caught:
                    await text_of(stream)
                assert caught.value.retryable
                stream.close()
            assert link.state == "restarting"
            with pytest.raises(EngineNotReady):
                link.submit(ask("too early"))
            await link.wait_ready()
            assert link.pid != lost
            async with link.submit(ask("back again", "n")) as stream:
                assert await text_of(stream) == "back again"
    assert recorder.states == ["ready", *["restarting", "ready"] * 3, "stopped"]


async def test_kill_from_outside_is_noticed(engine_command: Sequence[str]) -> None:
    async with EngineProcess(EngineConfig("m"), command=engine_command) as link:
        await link.wait_ready()
        async with link.submit(ask("wait")) as stream:
            await anext(stream)
            assert link.pid is not None
            os.kill(link.pid, signal.SIGKILL)
            with pytest.raises(EngineLost):
                await text_of(stream)
        await link.wait_ready()


async def test_an_engine_that_takes_nothing_is_replaced(
    engine_command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(limits, "ENGINE_STOP_SECONDS", 0.1)
    async with EngineProcess(EngineConfig("m"), command=engine_command) as link:
        await link.wait_ready()
        stopped = link.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        async with link.submit(ask("y" * 6_000_000)) as stream:
            with pytest.raises(EngineLost):
                await text_of(stream)
        await link.wait_ready()
        assert link.pid != stopped


async def test_an_engine_that_stands_still_is_replaced_though_nothing_waits_for_it(
    engine_command: Sequence[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with EngineProcess(EngineConfig("m"), command=engine_command) as link:
        with monkeypatch.context() as hasty:
            for name, value in (("LOOK_SECONDS", 0.05), ("SILENT_LOOKS", 5), ("ENGINE_STOP_SECONDS", 0.1)):
                hasty.setattr(limits, name, value)
            await link.wait_ready()
            stopped = link.pid
            assert stopped is not None
            os.kill(stopped, signal.SIGSTOP)
            async with asyncio.timeout(60), link.submit(ask("hello")) as stream:
                with pytest.raises(EngineLost):
                    await text_of(stream)
        await link.wait_ready()  # the next one is given its usual time
        assert link.pid != stopped
        assert "it says nothing any more" in caplog.text
        async with link.submit(ask("back again", "n")) as stream:
            assert await text_of(stream) == "back again"


async def test_an_engine_that_keeps_dying_is_reported(engine_command: Sequence[str]) -> None:
    recorder, budget = Recorder(), RestartBudget(2)
    config = EngineConfig("crash-every-time")
    async with EngineProcess(config, command=engine_command, observers=(recorder,), restarts=budget) as link:
        await recorder.until(lambda: "failed" in recorder.states)
        assert recorder.states.count("ready") == 3
        assert "keeps dying" in link.failure
        with pytest.raises(EngineStartFailed, match="keeps dying"):
            await link.wait_ready()
        with pytest.raises(EngineNotReady):
            link.submit(ask("hello"))


@pytest.mark.parametrize(
    ("model", "reason"),
    [("start-failed", "there is no such model, and never was"), ("die-at-start", "died while starting")],
)
async def test_a_start_that_fails_says_why(engine_command: Sequence[str], model: str, reason: str) -> None:
    async with EngineProcess(EngineConfig(model), command=engine_command) as link:
        with pytest.raises(EngineStartFailed, match=reason):
            await link.wait_ready()
        assert link.state == "failed"


async def test_a_command_that_does_not_exist_says_so() -> None:
    async with EngineProcess(EngineConfig("m"), command=("/nonexistent/engine",)) as link:
        with pytest.raises(EngineStartFailed, match="cannot run /nonexistent/engine"):
            await link.wait_ready()


async def test_stop_while_starting_does_not_wait_for_the_engine(engine_command: Sequence[str]) -> None:
    recorder = Recorder()
    link = EngineProcess(EngineConfig("never-ready"), command=engine_command, observers=(recorder,))
    link.start()
    await recorder.until(lambda: recorder.loads)
    await link.stop()
    assert link.pid is None
    with pytest.raises(EngineStartFailed):
        await link.wait_ready()


async def test_stop_fails_what_is_running() -> None:
    link = in_thread()
    link.start()
    await link.wait_ready()
    stream = link.submit(ask("wait"))
    await link.stop()
    with pytest.raises(EngineLost):
        await text_of(stream)
    stream.close()


def test_restart_budget_doubles_and_forgets() -> None:
    budget = RestartBudget(most=3, window_s=60)
    assert [budget.next_delay(now) for now in (0.0, 1.0, 2.0, 3.0)] == [0.05, 0.1, 0.2, None]
    assert budget.next_delay(60.5) == 0.2  # the first is forgotten
    assert budget.next_delay(500.0) == 0.05
    many = RestartBudget(most=100)
    delays = [many.next_delay(0.0) for _ in range(20)]
    assert max(delay for delay in delays if delay is not None) == limits.RESTART_DELAY_MOST_SECONDS


class NoProcesses:
    """Takes the place of asyncio.create_subprocess_exec: fails a number of times, then starts processes again."""

    def __init__(self, error: Exception, times: int) -> None:
        self._error = error
        self.left = times
        self._start = asyncio.create_subprocess_exec

    async def __call__(self, *command: str, **options: Any) -> asyncio.subprocess.Process:
        if self.left:
            self.left -= 1
            raise self._error
        return await self._start(*command, **options)


async def test_a_restart_that_is_impossible_is_tried_again(
    engine_command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESTART_DELAY_MOST_SECONDS", 0.01)
    recorder, starts = Recorder(), 1
    config, budget = EngineConfig("m"), RestartBudget(7)  # a loss and its failed restart count
    async with EngineProcess(config, command=engine_command, observers=(recorder,), restarts=budget) as link:
        await link.wait_ready()
        for error, times in (
            (OSError(errno.EMFILE, "Too many open files"), 1),
            (OSError(errno.EAGAIN, "Resource temporarily unavailable"), 1),
            (RuntimeError("can't start new thread"), 1),
            (OSError(errno.ENOMEM, "Cannot allocate memory"), 9),  # longer than the budget lasts
        ):
            broken, starts = NoProcesses(error, times), starts + 1
            with monkeypatch.context() as without:
                without.setattr(asyncio, "create_subprocess_exec", broken)
                assert link.pid is not None
                os.kill(link.pid, signal.SIGKILL)
                await recorder.until(lambda starts=starts: recorder.states.count("ready") == starts)
            assert broken.left == 0
            assert ("failed" in recorder.states) is (times > 7)
            assert link.failure == ""
            await link.wait_ready()
            async with link.submit(ask("back again")) as stream:
                assert await text_of(stream) == "back again"


async def test_a_socket_that_cannot_be_watched_leaves_no_child(
    engine_command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    async with EngineProcess(EngineConfig("m"), command=engine_command, observers=(recorder,)) as link:
        await link.wait_ready()
        assert link.pid is not None
        seen: list[asyncio.subprocess.Process] = []

        def unwatchable(*_: object) -> PacketPipe:
            monkeypatch.undo()
            assert link._child is not None
            seen.append(link._child._process)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(engine_process, "PacketPipe", unwatchable)
        os.kill(link.pid, signal.SIGKILL)
        await recorder.until(lambda: recorder.states.count("ready") == 2)
        assert seen[0].returncode is not None
        assert link.pid != seen[0].pid


@pytest.mark.parametrize("model", ["start-failed", "die-at-start"])
async def test_failed_is_left_as_soon_as_a_start_works(
    engine_command: Sequence[str], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(limits, "RESTART_DELAY_MOST_SECONDS", 0.01)
    recorder = Recorder()
    async with EngineProcess(
        EngineConfig("m", start_failures=0), command=engine_command, observers=(recorder,), restarts=RestartBudget(1)
    ) as link:
        await link.wait_ready()
        config, link._config = link._config, EngineConfig(model)  # as if its file were gone for a while
        assert link.pid is not None
        os.kill(link.pid, signal.SIGKILL)
        await recorder.until(lambda: "failed" in recorder.states)
        assert "keeps dying" in link.failure
        with pytest.raises(EngineNotReady):
            link.submit(ask("hello"))
        link._config = config
        await recorder.until(lambda: recorder.states[-1] == "ready")
        async with link.submit(ask("back again")) as stream:
            assert await text_of(stream) == "back again"
