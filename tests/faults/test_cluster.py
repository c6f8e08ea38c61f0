"""`voxlane cluster` with a real Ray on this machine: what dies, drains or is upgraded, and what clients notice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cell_process import children
from cells import Balancer, free_port, haproxy_binary
from lasting_talk import MessageCount, Talker
from peer import MANUAL, Peer, eventually
from ray_cluster import RayCluster, child_named, kill_all, seconds_until_gone
from redis_server import RedisServer, redis_binary

pytest.importorskip("ray", reason="this machine has no ray: pip install 'voxlane[cluster]'")

pytestmark = [pytest.mark.soak, pytest.mark.alone]

TALKERS = 6


class ClusterHouse:
    """A store, a balancer, and two cells that Ray runs."""

    def __init__(self, folder: Path) -> None:
        self.store = RedisServer(redis_binary(), folder)
        self.cluster = RayCluster(self.store.url)
        self.balancer = Balancer(folder, self.cluster.ports)
        self.haproxy = ("--haproxy-socket", str(folder / "haproxy.sock"))
        self.joined()

    def joined(self) -> None:
        """Start the cells that are missing, and have HAProxy know all."""
        self.cluster.up(*self.haproxy)

    def end(self) -> None:
        """End everything."""
        self.cluster.end()
        self.balancer.end()
        self.store.stop()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHouse]:
    """Cells that all tests share: each leaves two that are ready."""
    try:
        haproxy_binary(), redis_binary()
    except RuntimeError as error:
        pytest.skip(str(error))
    made = ClusterHouse(tmp_path_factory.mktemp("cluster"))
    yield made
    made.end()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    """A Ray of several nodes for one test."""
    try:
        store = RedisServer(redis_binary(), tmp_path)
    except RuntimeError as error:
        pytest.skip(str(error))
    made = RayCluster(store.url)
    yield made
    made.end()
    store.stop()


async def talking(url: str, faults: Callable[[], Any], messages: int = 20) -> list[Talker]:
    """Let some talk through a balancer while a thread does `faults`; check everybody's history."""
    count, enough = MessageCount(), asyncio.Event()
    talkers = [Talker(f"talker {one}", url, random.Random(one), count) for one in range(TALKERS)]

    async def talk(talker: Talker) -> None:
        while not enough.is_set():
            await talker.talk(2)
        await talker.talk(1)
        await talker.finish()

    async with asyncio.TaskGroup() as group:
        for talker in talkers:
            group.create_task(talk(talker))
        await eventually(lambda: all(talker.at for talker in talkers))
        await count.wait_more(messages * TALKERS)
        await asyncio.to_thread(faults)
        await count.wait_more(messages * TALKERS)
        enough.set()
    await eventually(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    assert [fault for talker in talkers for fault in talker.faults] == []
    return talkers


def weight(balancer: Balancer, name: str) -> int:
    """Return the weight of a cell that is up, 0 if it is not, or takes nothing new."""
    state, _, number = balancer.states()[name].partition(" ")
    return int(number) if state == "UP" else 0


def figures(talkers: list[Talker]) -> str:
    """Return what the talkers have noticed."""
    gaps = sorted(gap for talker in talkers for gap in talker.gaps_s)
    if not gaps:
        return "no call resumed"
    return f"{len(gaps)} resumes, gap median {gaps[len(gaps) // 2] * 1e3:.0f} ms, longest {gaps[-1] * 1e3:.0f} ms"


async def test_a_cell_whose_process_is_killed_is_back_and_its_calls_go_on(house: ClusterHouse) -> None:
    figure: list[str] = []

    def kill() -> None:
        victim = house.cluster.cells()["cell1"]
        pids = [victim["pid"], *children(victim["pid"])]
        os.kill(victim["pid"], signal.SIGKILL)
        start = time.monotonic()
        gone_s = seconds_until_gone(pids)
        house.cluster.until_answers("cell1")
        figure.append(f"all of it gone after {gone_s:.2f} s, back after {time.monotonic() - start:.1f} s")
        back = house.cluster.ready_cells()["cell1"]
        assert (back["actor_pid"], back["restarts"]) == (victim["actor_pid"], victim["restarts"] + 1)

    talkers = await talking(house.balancer.url, kill)
    print(f"kill -9 of a cell's serve: {figure[0]}; {figures(talkers)}")


async def test_a_killed_ray_worker_leaves_no_orphan_and_its_cell_is_back(house: ClusterHouse) -> None:
    figure: list[str] = []

    def kill() -> None:
        victim = house.cluster.cells()["cell2"]
        pids = [victim["pid"], *children(victim["pid"])]
        os.kill(victim["actor_pid"], signal.SIGKILL)
        start = time.monotonic()
        gone_s = seconds_until_gone(pids)
        house.cluster.until_answers("cell2")
        figure.append(f"its cell gone after {gone_s:.2f} s, back after {time.monotonic() - start:.1f} s")
        back = house.cluster.ready_cells()["cell2"]
        assert back["actor_pid"] != victim["actor_pid"]
        assert back["address"] == victim["address"]  # HAProxy need not be told

    talkers = await talking(house.balancer.url, kill)
    print(f"kill -9 of a Ray worker: {figure[0]}; {figures(talkers)}")


async def test_a_drained_cell_hands_its_calls_over_and_up_starts_it_again(house: ClusterHouse) -> None:
    took: list[float] = []

    def drain() -> None:
        start = time.monotonic()
        house.cluster.done("drain", "cell1", *house.haproxy)
        took.append(time.monotonic() - start)
        assert list(house.cluster.cells()) == ["cell2"]
        assert house.balancer.states()["cell1"].startswith("MAINT")

    talkers = await talking(house.balancer.url, drain)
    assert {talker.at for talker in talkers} == {"cell2"}
    print(f"drain under {TALKERS} calls: {took[0]:.1f} s, none dropped; {figures(talkers)}")
    await asyncio.to_thread(house.joined)
    await eventually(lambda: weight(house.balancer, "cell1") > 0)
    peers = [await Peer.open(house.balancer.url, MANUAL) for _ in range(4)]
    assert "cell1" in {peer.ready["at"] for peer in peers}  # the cell with fewer clients gets the next one
    for peer in peers:
        await peer.bye()
    await asyncio.sleep(0)


async def test_an_upgrade_moves_every_call_and_drops_none(house: ClusterHouse) -> None:
    took: list[float] = []

    def upgrade() -> None:
        before = house.cluster.cells()
        start = time.monotonic()
        house.cluster.done("upgrade", "--timeout", "120", *house.haproxy)
        took.append(time.monotonic() - start)
        after = house.cluster.ready_cells()
        assert list(after) == ["cell1", "cell2"]
        for name, cell in after.items():
            assert (cell["pid"], cell["actor_pid"]) != (before[name]["pid"], before[name]["actor_pid"])
            assert cell["address"] == before[name]["address"]

    talkers = await talking(house.balancer.url, upgrade)
    assert all(talker.resumed for talker in talkers)
    print(f"upgrade of two cells under {TALKERS} calls: {took[0]:.1f} s, none dropped; {figures(talkers)}")


async def test_a_killed_head_ends_the_cells_of_its_machine_and_up_brings_calls_back(house: ClusterHouse) -> None:
    figure: list[str] = []

    def kill() -> None:
        pids = [cell["pid"] for cell in house.cluster.cells().values()]
        os.kill(child_named(house.cluster.local_pid(), "gcs_server"), signal.SIGKILL)
        gone_s = seconds_until_gone(pids)
        refused = house.cluster.command("status")
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "no Ray cluster was found" in refused.stderr
        start = time.monotonic()
        house.joined()
        figure.append(f"its cells gone after {gone_s:.1f} s; `up` has them back in {time.monotonic() - start:.1f} s")

    talkers = await talking(house.balancer.url, kill)
    assert all(talker.resumed for talker in talkers)
    print(f"kill -9 of the head, Ray on one machine: {figure[0]}; {figures(talkers)}")


def test_cells_without_room_are_refused_at_once() -> None:
    """On two nodes of two cores: seven cores are not there, and three are not on one machine."""
    cluster = RayCluster("redis://127.0.0.1:1", cells=7)  # no cell gets so far that it needs the store
    try:
        port = free_port()
        cluster.head("--port", str(port), "--num-cpus", "0")
        address = f"127.0.0.1:{port}"
        for _ in range(2):
            cluster.node(address, cpus=2)
        up = ("up", "--file", str(cluster.file), "--address", address)
        refused = cluster.command(*up)
        assert refused.returncode == 2
        assert "no room for 3 of 7 cells that need 1 cores each (free: " in refused.stderr
        assert refused.stderr.count(": 2 cores, 0 GPUs") == 2
        assert cluster.cells() == {}
        refused = cluster.command(*up, "--cells", "1", "--cpus-per-cell", "3")
        assert "no room for 1 of 1 cells that need 3 cores each" in refused.stderr
        waited = cluster.command(*up, "--cells", "1", "--cpus-per-cell", "3", "--wait-for-machines", "--timeout", "1")
        assert "waiting for more machines" in waited.stderr
        assert "cell1 has no machine after 1 s" in waited.stderr
        refused = cluster.command(*up, "--cells", "1", "--cpus-per-cell", "3")  # it waits in Ray already
        assert "no room for 1 of 1 cells" in refused.stderr
    finally:
        cluster.end()


def test_a_lost_node_gives_its_cells_to_another(cluster: RayCluster) -> None:
    port = free_port()
    cluster.head("--port", str(port), "--num-cpus", "0")
    address = f"127.0.0.1:{port}"
    first = cluster.node(address, cpus=2)
    cluster.up("--address", address)
    before = cluster.cells()
    cluster.node(address, cpus=2)
    pids = kill_all(child_named(first.pid, "raylet"))  # and all that it runs, as when a machine is gone
    start = time.monotonic()
    seconds_until_gone(pids)
    for name in ("cell1", "cell2"):
        cluster.until_answers(name)
    seconds = time.monotonic() - start
    after = cluster.ready_cells()
    assert {name: cell["address"] for name, cell in after.items()} == {
        name: cell["address"] for name, cell in before.items()
    }
    print(f"kill -9 of a node: both cells ready on the other after {seconds:.1f} s")


def test_cells_outlive_a_head_that_comes_back_with_its_state(cluster: RayCluster, tmp_path: Path) -> None:
    state = RedisServer(redis_binary(), tmp_path, port=free_port())
    try:
        port = free_port()
        head = cluster.head("--port", str(port), "--num-cpus", "0", RAY_REDIS_ADDRESS=state.address)
        address = f"127.0.0.1:{port}"
        cluster.node(address, cpus=2)
        cluster.up("--address", address)
        before = cluster.ready_cells()
        restart = cluster.kill_head(head)
        start = time.monotonic()
        for name in before:
            cluster.until_answers(name)  # they serve without a head
        restart()
        after = cluster.ready_cells()
        seconds = time.monotonic() - start
        assert {name: cell["pid"] for name, cell in after.items()} == {
            name: cell["pid"] for name, cell in before.items()
        }
        print(f"kill -9 of a head with its state in Redis: `status` knows all after {seconds:.1f} s, no cell ended")
    finally:
        cluster.end()
        state.stop()
