"""`voxlane serve --processes K` with real processes and a scripted engine: two server processes, and what may die.

Most tests share one cell, which the last of them ends; those that end or configure a cell in their own way have one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cell_process import CellProcess, owner_of_client, wait_gone
from certificates import Authority, write_pair
from lasting_talk import MessageCount, Talker
from peer import MANUAL, Peer, speech
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from voxlane.server.cell.folder import PREFIX, usual_base
from voxlane.server.tenants.key_file import KeyRecord, key_hash

TALKERS, KILLS = 8, 4

GONE_S = 20.0
"""Generous: processes that end by themselves do so within a fraction of a second."""

KEY, TENANT_KEY = "secret", "vox_one"
"""The key of every cell here, and one with a limit that the shared cell knows, too."""

Start = Callable[..., CellProcess]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def end(cell: CellProcess) -> None:
    """End a cell, and check that nothing of it is left."""
    pids = cell.all()
    if cell.process.poll() is None:
        cell.process.kill()
    cell.wait()
    assert not wait_gone(pids, GONE_S)


@pytest.fixture
def start(tmp_path: Path, no_leaks: None) -> Iterator[Start]:
    """Start cells, which end with the test."""
    started: list[CellProcess] = []

    def start(processes: int = 2, **parts: Any) -> CellProcess:
        started.append(CellProcess(tmp_path / "cell.log", processes, api_key=KEY, **parts))
        return started[-1]

    yield start
    for cell in started:
        end(cell)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CellProcess]:
    """A cell of two server processes, with a key that may hold one conversation."""
    folder = tmp_path_factory.mktemp("cell")
    keys = folder / "keys.json"
    record = {"name": "one", "hash": key_hash(TENANT_KEY), "conversations": 1}
    assert KeyRecord(**record)
    keys.write_text(json.dumps({"version": 1, "keys": [record]}))
    keys.chmod(0o600)
    cell = CellProcess(folder / "cell.log", api_key=KEY, server={"drain_s": 30.0}, keys={"file": str(keys)})
    yield cell
    end(cell)


@pytest.fixture
def cell(shared: CellProcess, no_leaks: None) -> CellProcess:
    """The cell that tests share."""
    return shared


async def started(start: Start, *arguments: Any, **parts: Any) -> CellProcess:
    return await asyncio.to_thread(start, *arguments, **parts)


async def connect(cell: CellProcess, hello: dict[str, Any] | None = None, key: str = KEY, **options: Any) -> Peer:
    """Connect to any process."""
    return await Peer.open(cell.url, hello, ping_interval=None, additional_headers=bearer(key), **options)


async def open_at(cell: CellProcess, pid: int, hello: dict[str, Any] | None = None, **options: Any) -> Peer:
    """Connect until the kernel has chosen a certain process; then say hello."""
    while True:
        try:
            peer = await connect(cell, **options)
        except TimeoutError:  # a process that hangs accepts connections and answers none
            continue
        port = peer.socket.transport.get_extra_info("sockname")[1]
        if owner_of_client(port, cell.servers()) == pid:
            await peer.send("hello", MANUAL if hello is None else hello)
            await peer.until("ready")
            return peer
        await peer.socket.close()


async def resumed(cell: CellProcess, peer: Peer, pid: int | None = None) -> Peer:
    """Resume a conversation at any process, or at a certain one, as soon as that is possible."""
    hello = {"resume": peer.ready["token"], "last_seq": max(message[1] for message in peer.seen)}
    while True:
        try:
            return await (connect(cell, hello) if pid is None else open_at(cell, pid, hello))
        except (OSError, EOFError, InvalidHandshake, InvalidMessage, ConnectionClosed):
            await asyncio.sleep(0.05)


def texts(peer: Peer) -> list[str]:
    """Return what a conversation remembers."""
    return [message["content"] for message in peer.ready["history"]]


class Http:
    """Sends every request on a connection of its own: the kernel chooses a process for each."""

    def __init__(self, cell: CellProcess) -> None:
        self._url = cell.url

    async def send(self, method: str, path: str, **content: Any) -> httpx.Response:
        async with httpx.AsyncClient(timeout=60, verify=False, headers=bearer(KEY)) as client:
            return await client.request(method, self._url + path, **content)

    async def metric(self, name: str) -> float:
        """Return a metric of the cell, 0 if there is none."""
        text = (await self.send("GET", "/metrics")).text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    async def until_metric(self, name: str, value: float) -> None:
        """Wait until a metric has a value."""
        while True:
            if await self.metric(name) == value:
                return
            await asyncio.sleep(0.02)


async def until_servers(cell: CellProcess, count: int, *, without: int = 0) -> list[int]:
    """Wait until so many server processes listen, and one is gone."""
    while True:
        if len(found := cell.servers()) == count and without not in found:
            return found
        await asyncio.sleep(0.02)


async def test_two_server_processes_serve_at_once(cell: CellProcess) -> None:
    http = Http(cell)
    first, second = await until_servers(cell, 2)
    assert len(cell.engines()) == 1
    one, two = await open_at(cell, first), await open_at(cell, second)
    for peer, said in ((one, "hello from one"), (two, "hello from two")):
        assert (await peer.say(said))[-1][3] == "done"
        assert "".join(message[3] for message in peer.of("reply_text")) == said
    assert await http.metric("voxlane_sessions") == 2
    assert await http.metric("voxlane_processes") == 2
    for _ in range(20):
        answer = await http.send("POST", "/v1/chat/completions", json=chat("count 3"))
        assert answer.json()["choices"][0]["message"]["content"] == "w0 w1 w2 "
    counted = 'voxlane_http_requests_total{route="/v1/chat/completions",status="200"}'
    await http.until_metric(counted, 20)  # a request is counted just after its answer
    await asyncio.gather(one.bye(), two.bye())
    await http.until_metric("voxlane_sessions", 0)


def chat(said: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": said}]}


async def test_a_killed_server_process_takes_only_its_own_sockets(cell: CellProcess) -> None:
    http = Http(cell)
    first, second = await until_servers(cell, 2)
    lost, kept = await open_at(cell, first), await open_at(cell, second)
    await lost.say("remember me")
    await lost.send("text", "wait for ever")  # a request that the engine never ends
    await lost.until("reply_text")
    await http.until_metric('voxlane_engine_requests{state="running"}', 1)
    restarts = await http.metric("voxlane_process_restarts_total")
    counted = await http.metric('voxlane_turns_total{end="done"}')
    cell.kill(first)
    assert await lost.closed() == 1006
    again = await resumed(cell, lost)
    assert texts(again)[:2] == ["remember me", "remember me"]
    assert (await again.until("turn_done"))[3] == "failed"  # the turn that the process has left open
    assert (await again.say("and on with our history"))[-1][3] == "done"
    assert (await kept.say("nothing happened here"))[-1][3] == "done"
    await http.until_metric('voxlane_engine_requests{state="running"}', 0)  # its request was cancelled
    await until_servers(cell, 2, without=first)
    assert await http.metric('voxlane_turns_total{end="done"}') > counted  # what it had counted is not lost
    assert await http.metric("voxlane_process_restarts_total") == restarts + 1
    assert await http.metric("voxlane_sessions") == 2
    await asyncio.gather(again.bye(), kept.bye())


async def test_all_server_processes_get_the_next_engine(cell: CellProcess) -> None:
    http = Http(cell)
    first, second = await until_servers(cell, 2)
    peers = [await open_at(cell, first), await open_at(cell, second)]
    for peer in peers:
        await peer.send("text", "wait for ever")
        await peer.until("reply_text")
    (engine,) = cell.engines()
    died, begun = 'voxlane_engine_restarts_total{cause="died"}', "voxlane_engine_starts_total"
    before = await http.metric(died), await http.metric(begun)
    cell.kill(engine)
    for peer in peers:
        assert (await peer.until("turn_done"))[3] == "failed"
        assert (await peer.say("tell me our history"))[-1][3] == "done"
    assert cell.engines() != [engine]
    assert (await http.metric(died), await http.metric(begun)) == (before[0] + 1, before[1] + 1)
    assert sorted(cell.servers()) == sorted([first, second])
    for peer in peers:
        await peer.bye()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
async def test_killed_server_processes_lose_nothing_that_was_told(start: Start, seed: int) -> None:
    cell = await started(start, 3, store={"wait_s": 10.0})
    chance, count, enough = random.Random(seed), MessageCount(), asyncio.Event()
    talkers = [Talker(f"talker {number}", cell.url, random.Random(number), count) for number in range(TALKERS)]
    for one in talkers:
        one.options["additional_headers"] = bearer(KEY)

    async def converse(talker: Talker) -> None:
        while not enough.is_set():
            await talker.talk(2)
        await talker.finish()

    async with asyncio.TaskGroup() as group:
        for talker in talkers:
            group.create_task(converse(talker))
        for _ in range(KILLS):
            await count.wait_more(chance.randrange(TALKERS, 20 * TALKERS))
            killed = chance.choice(await until_servers(cell, 3))
            cell.kill(killed)
            await until_servers(cell, 3, without=killed)
        enough.set()
    assert not (faults := [fault for talker in talkers for fault in talker.faults]), "\n".join(faults)
    assert sum(talker.resumed for talker in talkers) > TALKERS  # more than each one's last time
    http = Http(cell)
    await http.until_metric("voxlane_sessions", 0)
    await http.until_metric('voxlane_engine_requests{state="running"}', 0)
    assert await asyncio.to_thread(cell.stop) == 0


async def test_a_server_process_that_hangs_is_replaced(cell: CellProcess) -> None:
    first, second = await until_servers(cell, 2)
    stopped, kept = await open_at(cell, first), await open_at(cell, second)
    await stopped.say("remember me")
    os.kill(first, signal.SIGSTOP)
    again = await open_at(cell, second, {"resume": stopped.ready["token"]}, open_timeout=1)  # it lets go of nothing
    assert texts(again) == ["remember me", "remember me"]
    await until_servers(cell, 2, without=first)
    for peer in (again, kept):
        assert (await peer.say("still here"))[-1][3] == "done"
        await peer.bye()
    assert "server process hangs" in cell.log.read_text()


async def test_a_second_sigterm_ends_at_once(start: Start) -> None:
    cell = await started(start, server={"drain_s": 600.0})
    peer = await connect(cell, MANUAL)
    cell.process.send_signal(signal.SIGTERM)
    await peer.until("go_away")
    cell.process.send_signal(signal.SIGTERM)
    assert await peer.closed() == 1012
    assert await asyncio.to_thread(cell.wait) == 0


async def test_one_server_process_can_be_replaced_alone(cell: CellProcess) -> None:
    first, second = await until_servers(cell, 2)
    moved, kept = await open_at(cell, first), await open_at(cell, second)
    await moved.say("take this along")
    os.kill(first, signal.SIGTERM)
    assert await moved.closed() == 1012
    again = await resumed(cell, moved)
    assert texts(again) == ["take this along", "take this along"]
    await until_servers(cell, 2, without=first)
    for peer in (again, kept):
        assert (await peer.say("still here"))[-1][3] == "done"
        await peer.bye()


async def test_a_parked_conversation_is_resumed_at_another_process(cell: CellProcess) -> None:
    http = Http(cell)
    first, second = await until_servers(cell, 2)
    peer = await open_at(cell, first)
    for number, pid in enumerate((second, first, second, second, first)):
        await peer.say(f"word {number}")
        peer.drop()
        peer = await resumed(cell, peer, pid)
        assert texts(peer) == [f"word {one // 2}" for one in range(2 * number + 2)]
        assert await http.metric("voxlane_sessions") == 1  # no copy stays behind
    await peer.bye()


async def test_the_limits_of_a_tenant_hold_for_all_processes(cell: CellProcess) -> None:
    first, second = await until_servers(cell, 2)
    peer = await open_at(cell, first, key=TENANT_KEY)
    while True:  # until the other process has refused it
        other = await connect(cell, key=TENANT_KEY)
        owner = owner_of_client(other.socket.transport.get_extra_info("sockname")[1], cell.servers())
        await other.send("hello", MANUAL)
        message = await other.next()
        assert message[0] == "error", "a second conversation was let in"
        assert message[2] == "too_many_conversations"
        await other.closed()
        if owner == second:
            break
    peer.drop()
    again = await open_at(cell, second, {"resume": peer.ready["token"]}, key=TENANT_KEY)  # its own place is free
    await again.bye()


async def test_a_voice_is_known_to_all_processes(cell: CellProcess) -> None:
    http = Http(cell)
    sample = wav(speech("", 5.0))
    made = await http.send(
        "POST", "/v1/audio/voices", data={"name": "Ada", "consent": "true"}, files={"audio_sample": sample}
    )
    assert made.status_code == 200, made.text
    for _ in range(12):
        spoken = await http.send(
            "POST", "/v1/audio/speech", json={"input": "Hello", "voice": "Ada", "response_format": "pcm"}
        )
        assert spoken.status_code == 200, spoken.text
        assert len((await http.send("GET", "/v1/audio/voices")).json()["data"]) == 1
    (engine,) = cell.engines()
    begun = await http.metric("voxlane_engine_starts_total")
    cell.kill(engine)
    await http.until_metric("voxlane_engine_starts_total", begun + 1)
    first, *_ = cell.servers()
    cell.kill(first)
    await until_servers(cell, 2, without=first)
    for _ in range(12):
        spoken = await http.send(
            "POST", "/v1/audio/speech", json={"input": "Hello", "voice": "Ada", "response_format": "pcm"}
        )
        assert spoken.status_code == 200, spoken.text
    assert (await http.send("DELETE", "/v1/audio/voices/Ada")).status_code == 200
    for _ in range(12):
        assert (await http.send("GET", "/v1/audio/voices")).json()["data"] == []


def wav(pcm: bytes) -> bytes:
    """Return sound at 16 kHz as a file."""
    sizes = (36 + len(pcm)).to_bytes(4, "little"), len(pcm).to_bytes(4, "little")
    rates = (16_000).to_bytes(4, "little") + (32_000).to_bytes(4, "little")
    head = b"RIFF" + sizes[0] + b"WAVEfmt \x10\0\0\0\1\0\1\0" + rates + b"\2\0\x10\0data" + sizes[1]
    return head + pcm


async def test_a_client_secret_opens_every_process(cell: CellProcess) -> None:
    http = Http(cell)
    body = {"session": {"type": "realtime", "instructions": "Be brief."}}
    made = await http.send("POST", "/v1/realtime/client_secrets", json=body)
    assert made.status_code == 200, made.text
    for pid in cell.servers():
        peer = await open_at(cell, pid, key=made.json()["value"])
        assert peer.ready["config"]["instructions"] == "Be brief."
        await peer.bye()


def folder_of(cell: CellProcess) -> Path:
    """Return the folder whose lock the supervisor holds; other cells may come and go meanwhile."""
    opened = [os.readlink(one) for one in Path(f"/proc/{cell.pid}/fd").iterdir()]
    (lock,) = (Path(one) for one in opened if one.startswith(f"{usual_base() / PREFIX}") and one.endswith("/lock"))
    return lock.parent


async def test_sigterm_lets_answers_finish_and_leaves_nothing(cell: CellProcess) -> None:
    folder = folder_of(cell)
    assert folder.stat().st_mode & 0o77 == 0
    first, second = await until_servers(cell, 2)
    peers = [await open_at(cell, first), await open_at(cell, second)]
    pids = cell.all()
    cell.process.send_signal(signal.SIGTERM)
    for peer in peers:  # no other process could go on with them: they may finish here
        assert (await peer.until("go_away"))[3] == "draining"
    assert (await Http(cell).send("GET", "/readyz")).status_code == 503
    for peer in peers:
        assert (await peer.say("one more word"))[-1][3] == "done"
        await peer.bye()
    assert await asyncio.to_thread(cell.wait) == 0
    assert not wait_gone(pids, GONE_S)
    assert not folder.exists()


async def test_an_engine_for_each_gpu_a_certificate_and_nothing_that_outlives_the_supervisor(
    start: Start, tmp_path: Path
) -> None:
    authority = Authority()
    cert, private = write_pair(tmp_path, authority.pair("cell"))
    cell = await started(start, server={"gpus": ["0", "1"], "tls_cert": cert, "tls_key": private})
    assert cell.url.startswith("https://")
    http = Http(cell)
    engines = cell.engines()
    assert len(engines) == 2
    shown = {read_environment(pid)["CUDA_VISIBLE_DEVICES"] for pid in engines}
    assert shown == {"0", "1"}
    first, second = await until_servers(cell, 2)
    peers = [await open_at(cell, pid, ssl=authority.client()) for pid in (first, second, first, second)]
    for peer in peers:  # two at each engine
        await peer.send("text", "hold on")
        await peer.until("reply_text", lambda message: message[3].startswith("pid"))
    told = [int(peer.of("reply_text")[-1][3].split()[1]) for peer in peers]
    assert sorted(map(told.count, engines)) == [2, 2]
    lost = [peer for peer, pid in zip(peers, told, strict=True) if pid == engines[0]]
    cell.kill(engines[0])
    for peer in lost:
        assert (await peer.until("turn_done"))[3] == "failed"
    os.kill(engines[1], signal.SIGUSR1)  # the other engine's answers go on
    for peer in set(peers) - set(lost):
        assert (await peer.until("turn_done"))[3] == "done"
    for peer in peers:
        assert (await peer.say("and now our history"))[-1][3] == "done"
        await peer.bye()
    assert await http.metric('voxlane_engine_state{state="ready"}') == 2
    pids = cell.all()
    assert len(pids) == 5
    last = await connect(cell, MANUAL, ssl=authority.client())
    cell.kill(cell.pid)
    assert await last.closed() in (1001, 1006)
    assert not await asyncio.to_thread(wait_gone, pids, GONE_S)


def read_environment(pid: int) -> dict[str, str]:
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


async def test_engines_that_never_come_back_end_the_cell(start: Start, tmp_path: Path) -> None:
    once = {"model": f"once:{tmp_path / 'started'}", "start_failures": 2}
    cell = await started(start, engine=once, server={"drain_s": 600.0})
    peer = await connect(cell, MANUAL)
    pids = cell.all()
    (engine,) = cell.engines()
    cell.kill(engine)
    assert await peer.closed() == 1012
    assert await asyncio.to_thread(cell.wait) == 1
    assert "the weights are gone" in cell.log.read_text()
    assert not wait_gone(pids, GONE_S)


@pytest.mark.soak
async def test_an_engine_that_cannot_start_ends_the_cell(tmp_path: Path, no_leaks: None) -> None:
    with pytest.raises(AssertionError, match="there is no such model, and never was"):
        await asyncio.to_thread(CellProcess, tmp_path / "cell.log", engine={"model": "start-failed"})


@pytest.mark.soak
async def test_a_taken_port_is_told_in_one_line(start: Start, tmp_path: Path) -> None:
    cell = await started(start)
    with pytest.raises(AssertionError, match="the port is in use"):
        await asyncio.to_thread(CellProcess, tmp_path / "other.log", server={"port": cell.port})
