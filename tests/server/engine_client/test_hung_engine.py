"""Engines that hang, are stopped, cannot start again, or are forked from a template: real processes, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

import pytest
from cell_process import runs
from peer import eventually

from voxlane.engine.api import ChatMessage, EngineConfig, Submit, Text
from voxlane.server import limits
from voxlane.server.engine_client.engine_client import LossCause, Observer, State
from voxlane.server.engine_client.engine_process import EngineProcess, RestartBudget, StartFailures
from voxlane.server.engine_client.stream import RequestStream
from voxlane.server.errors import EngineLost, EngineNotReady

QUICK_S = 0.5
"""A short hang_s, so that a test takes less time."""


class Losses(Observer):
    """Keeps why engines were lost, and can wait for a state."""

    def __init__(self) -> None:
        self.causes: list[LossCause] = []
        self.seconds: list[float] = []
        self.states: list[State] = []
        self._news = asyncio.Event()

    def lost(self, cause: LossCause) -> None:
        self.causes.append(cause)

    def back(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def state_changed(self, state: State) -> None:
        self.states.append(state)
        self._news.set()

    async def ready_again(self, times: int = 2) -> None:
        while self.states.count("ready") < times:
            self._news.clear()
            await self._news.wait()


def ask(said: str, request_id: str = "r") -> Submit:
    return Submit(request_id, "chat", (ChatMessage("user", said),))


async def text_of(stream: RequestStream) -> str:
    return "".join([output.text async for output in stream if isinstance(output, Text)])


async def answers(link: EngineProcess, said: str = "back again") -> None:
    async with link.submit(ask(said, "again")) as stream:
        assert await text_of(stream) == said


@pytest.mark.parametrize("how", ["hang", "spin"])
async def test_a_step_that_never_ends_is_noticed_and_its_engine_replaced(
    engine_command: Sequence[str], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    losses = Losses()
    config = EngineConfig("counting", hang_s=QUICK_S)
    async with (
        asyncio.timeout(60),
        EngineProcess(config, command=engine_command, observers=(losses,)) as link,
    ):
        await link.wait_ready()
        hung = link.pid
        assert hung is not None
        async with link.submit(ask(how)) as stream:
            with pytest.raises(EngineLost):
                await text_of(stream)
        await losses.ready_again()
        assert link.pid != hung
        assert not runs(hung), "a hung engine must not keep the cores and the memory"
        assert "no progress for" in caplog.text
        await answers(link)
    assert losses.causes == ["hung"]
    assert len(losses.seconds) == 1


@pytest.mark.parametrize("model", ["counting", "an engine that does not count", "forking"])
async def test_a_stopped_engine_is_noticed_though_nothing_is_asked_of_it(
    engine_command: Sequence[str], model: str, caplog: pytest.LogCaptureFixture
) -> None:
    losses = Losses()
    config = EngineConfig(model, hang_s=QUICK_S)
    async with (
        asyncio.timeout(60),
        EngineProcess(config, command=engine_command, observers=(losses,)) as link,
    ):
        await link.wait_ready()
        stopped = link.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        await losses.ready_again()
        assert not runs(stopped)
        assert losses.causes == ["hung"]
        assert "it was stopped" in caplog.text
        await answers(link)


async def test_an_engine_that_is_stopped_while_it_loads_is_replaced(engine_command: Sequence[str]) -> None:
    losses = Losses()
    async with (
        asyncio.timeout(60),
        EngineProcess(EngineConfig("m", hang_s=QUICK_S), command=engine_command, observers=(losses,)) as link,
    ):
        await link.wait_ready()
        config, link._config = link._config, EngineConfig("stop-at-start", hang_s=QUICK_S)
        assert link.pid is not None
        os.kill(link.pid, signal.SIGKILL)
        await eventually(lambda: "hung" in losses.causes)
        link._config = config
        await losses.ready_again()
        await answers(link)
    assert losses.causes[:2] == ["died", "hung"]


@pytest.mark.parametrize("how", ["long", "silent"])
async def test_a_long_step_that_goes_on_is_let_be(engine_command: Sequence[str], how: str) -> None:
    losses = Losses()
    config = EngineConfig("counting", hang_s=QUICK_S)
    async with (
        asyncio.timeout(60),
        EngineProcess(config, command=engine_command, observers=(losses,)) as link,
    ):
        await link.wait_ready()
        async with link.submit(ask(f"{how} {4 * QUICK_S}")) as stream:
            assert await text_of(stream) == "done"
        assert losses.causes == []


async def test_an_idle_engine_is_let_be(engine_command: Sequence[str]) -> None:
    losses = Losses()
    config = EngineConfig("counting", hang_s=QUICK_S)
    async with EngineProcess(config, command=engine_command, observers=(losses,)) as link:
        await link.wait_ready()
        await asyncio.sleep(4 * QUICK_S)  # nothing happens, which is what is looked for
        assert losses.causes == []


async def test_a_killed_fork_is_replaced_by_its_template(engine_command: Sequence[str]) -> None:
    losses = Losses()
    async with (
        asyncio.timeout(60),
        EngineProcess(EngineConfig("forking"), command=engine_command, observers=(losses,)) as link,
    ):
        await link.wait_ready()
        assert link._child is not None
        template = link._child._process.pid
        for number in range(1, 4):
            killed = link.pid
            assert killed not in (None, template)
            os.kill(killed or 0, signal.SIGKILL)
            await losses.ready_again(number + 1)
            assert link._child._process.pid == template
            assert link.pid not in (killed, template)
            await answers(link)
    assert losses.causes == ["died"] * 3


async def test_a_fork_goes_on_when_its_template_is_killed_and_is_replaced_by_a_fresh_process(
    engine_command: Sequence[str],
) -> None:
    losses = Losses()
    async with (
        asyncio.timeout(60),
        EngineProcess(EngineConfig("forking"), command=engine_command, observers=(losses,)) as link,
    ):
        await link.wait_ready()
        assert link._child is not None
        os.kill(link._child._process.pid, signal.SIGKILL)
        await link._child._process.wait()
        await answers(link)
        first = link.pid
        assert first is not None
        assert losses.causes == []
        os.kill(first, signal.SIGKILL)
        await losses.ready_again()
        await answers(link)
        assert link._child.can_fork


async def test_a_template_that_does_not_fork_in_time_is_given_up(
    engine_command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FORK_SECONDS", 0.2)
    losses = Losses()
    async with (
        asyncio.timeout(60),
        EngineProcess(EngineConfig("forking"), command=engine_command, observers=(losses,)) as link,
    ):
        await link.wait_ready()
        assert link._child is not None
        template, engine = link._child._process.pid, link.pid
        assert engine is not None
        os.kill(template, signal.SIGSTOP)
        os.kill(engine, signal.SIGKILL)
        await losses.ready_again()
        assert not runs(template)
        await answers(link)


async def test_an_engine_that_cannot_load_again_is_given_up(engine_command: Sequence[str]) -> None:
    losses = Losses()
    config = EngineConfig("m", start_failures=3)
    async with (
        asyncio.timeout(60),
        EngineProcess(config, command=engine_command, observers=(losses,), restarts=RestartBudget(100)) as link,
    ):
        await link.wait_ready()
        link._config = EngineConfig("start-failed")  # as if its file were gone
        assert link.pid is not None
        os.kill(link.pid, signal.SIGKILL)
        await link.given_up.wait()
        assert losses.causes == ["died", "failed_start", "failed_start", "failed_start"]
        assert link.state == "failed"
        assert "there is no such model, and never was" in link.failure


def test_failed_starts_count_in_a_row_and_within_a_time() -> None:
    failures = StartFailures(3, 60.0)
    assert not any(failures.too_many(now, "failed_start") for now in (0.0, 50.0))
    assert not failures.too_many(70.0, "failed_start"), "the first one is too long ago"
    assert not failures.too_many(71.0, "died"), "an engine came up in between"
    assert [failures.too_many(now, "failed_start") for now in (72.0, 73.0, 74.0)] == [False, False, True]


def test_processes_that_cannot_be_started_are_tried_for_ever() -> None:
    failures = StartFailures(3, 60.0)
    assert not any(failures.too_many(float(now), "no_process") for now in range(1000))
    never = StartFailures(0, 60.0)
    assert not any(never.too_many(0.0, "failed_start") for _ in range(1000))


async def test_a_refusal_says_what_happens_and_when_to_come_again(
    engine_command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOAD_SECONDS", 40.0)
    link = EngineProcess(EngineConfig("never-ready"), command=engine_command)
    link.start()
    with pytest.raises(EngineNotReady) as caught:
        link.submit(ask("hello"))
    assert caught.value.message == "The engine is not ready. It is starting; try again in 40 s."
    assert caught.value.retry_after_s == 40
    link._expected_s = 0.0
    assert link.not_ready().retry_after_s == limits.OVERDUE_SECONDS
    await link.stop()
