"""Cells, balancers and the store on machines of their own, which are network namespaces here: links that fail."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cell_talks import Waits, crowd, figures, last_of, leave, resume, said, talking, told, weight
from cells import Balancer, Cell, haproxy_binary
from lasting_talk import Talker
from machines import Machine, Network, missing_networks
from peer import MANUAL, Peer, eventually
from redis_server import RedisServer, redis_binary
from waiting import until
from websockets.exceptions import InvalidStatus

pytestmark = pytest.mark.soak

PORTS = (8000, 9100)
"""Those of the documented file: nothing else listens on these machines."""


ROUNDS = 5


class Site:
    """Two cells, two balancers, a store and the clients, each on a machine of its own."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.network = network
        names = ("cell1", "cell2", "one", "two", "store", "clients")
        self.machines: dict[str, Machine] = {name: network.machine(name) for name in names}
        self._folder = folder
        self._running: list[Cell | Balancer] = []
        self.store = RedisServer(redis_binary(), folder, self.machines["store"])
        self.cells: dict[str, Cell] = {}
        self.balancers: list[Balancer] = []

    def start(self) -> None:
        """Start the cells and the balancers."""
        hosts = self.machines["cell1"].host, self.machines["cell2"].host
        proxies = self.machines["one"].host, self.machines["two"].host
        for number in (1, 2):
            name = f"cell{number}"
            machine = self.machines[name]
            options = {"machine": machine, "proxies": proxies}
            self.cells[name] = Cell(number, self._folder, PORTS, self.store.address, **options)
            self._running.append(self.cells[name])
        for name in ("one", "two"):
            self.balancers.append(Balancer(self._folder, PORTS, name, self.machines[name], hosts))
            self._running.append(self.balancers[-1])
        until(self._known, "HAProxy knows the cells")

    def _known(self) -> bool:
        return all(weight(balancer, cell) > 0 for balancer in self.balancers for cell in self.cells)

    def end(self) -> None:
        """End everything."""
        for process in self._running:
            process.end()
        self.store.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Machines with everything on them; the test is on that of the clients."""
    reason = missing_networks()
    try:
        haproxy_binary(), redis_binary()
    except RuntimeError as error:
        reason = str(error)
    if reason:
        pytest.skip(reason)
    network = Network()
    try:
        made = Site(tmp_path, network)
        try:
            with network.joined(made.machines["clients"]):
                made.start()
                yield made
        finally:
            made.end()
    finally:
        network.end()


async def test_a_machine_that_loses_its_link_is_left_and_comes_back(site: Site) -> None:
    balancer, network, machine = site.balancers[0], site.network, site.machines["cell1"]
    talkers, count = crowd(6, balancer.url)
    for talker in talkers:
        talker.options["ping_interval"] = None  # its own line is whole: the balancer has to tell it
    places: list[str] = []
    gaps_s: list[float] = []

    async def lose() -> None:
        places.extend(talker.at for talker in talkers)
        began_s = time.perf_counter()
        network.pull(machine)

        async def moved(number: int) -> None:
            await eventually(lambda: talkers[number].at == "cell2")
            gaps_s.append(time.perf_counter() - began_s)

        await asyncio.gather(*(moved(number) for number, place in enumerate(places) if place == "cell1"))
        await count.wait_more(100)
        network.plug(machine)
        began_s = time.perf_counter()
        await eventually(lambda: weight(balancer, "cell1") > 0)
        print(f"a link down: its clients resumed after {figures(gaps_s)}; ", end="")
        print(f"new clients {(time.perf_counter() - began_s) * 1e3:.0f} ms after it was back")
        newcomer = await Peer.open(balancer.url, MANUAL)
        assert newcomer.ready["at"] == "cell1"  # it has the fewest
        await newcomer.say("hello")
        await leave(newcomer)

    resumed = await talking(talkers, count, lose)
    assert "cell1" in places
    assert [number > 0 for number in resumed] == [place == "cell1" for place in places]
    for cell in site.cells.values():  # no copy stays behind
        await eventually(lambda cell=cell: "\nvoxlane_sessions 0.0" in cell.get("/metrics"))  # type: ignore[misc]


async def test_a_balancer_that_loses_its_link_is_left_for_the_other(site: Site) -> None:
    first, second = site.balancers
    talkers, count = crowd(4, first.url, second.url)
    for talker in talkers:  # only a client can notice that its own line is dead
        talker.options |= {"ping_interval": 0.5, "ping_timeout": 1.0, "open_timeout": 1.0, "close_timeout": 0.5}
    gaps_s: list[float] = []

    async def lose() -> None:
        site.network.pull(site.machines["one"])
        began_s = time.perf_counter()

        async def moved(talker: Talker) -> None:
            before = talker.resumed
            await eventually(lambda: talker.resumed > before)
            gaps_s.append(time.perf_counter() - began_s)

        await asyncio.gather(*map(moved, talkers))
        print(f"the link of a balancer down: its clients resumed through the other after {figures(gaps_s)}")
        await count.wait_more(100)
        site.network.plug(site.machines["one"])

    resumed = await talking(talkers, count, lose)
    assert all(resumed)


async def test_a_store_that_loses_its_link_ends_no_conversation(site: Site) -> None:
    talkers, count = crowd(4, site.balancers[0].url)
    waits = Waits(talkers)

    async def lose() -> None:
        waits.mark("before")
        site.network.pull(site.machines["store"])
        await eventually(lambda: not any(talker.resumable for talker in talkers))
        await waits.each_says(5)
        waits.mark("while it was down")
        site.network.plug(site.machines["store"])
        began_s = time.perf_counter()
        await eventually(lambda: all(talker.resumable for talker in talkers))
        print(
            f"the link of the store down: all was written again {time.perf_counter() - began_s:.2f} s after it was back"
        )
        assert [talker.resumed for talker in talkers] == [0] * len(talkers)
        # Its conversations are whole in the store. Not a kill: on a busy machine the store may fail again before it.
        site.cells["cell1"].signal(signal.SIGTERM)
        await eventually(lambda: all(talker.at == "cell2" for talker in talkers))
        waits.mark("")

    await talking(talkers, count, lose)
    waits.tell()


async def say(peer: Peer, text: str) -> None:
    """Type a turn and wait for its end; one that was open when the conversation moved may end before."""
    await peer.send("text", text)
    _, _, turn, _ = await peer.until("user_turn", lambda message: message[3] == text)
    await peer.until("turn_done", lambda message: message[2] == turn)


async def let_in(url: str, hello: dict[str, Any]) -> Peer:
    """Resume at cell2, which the balancer of a busy machine may miss for a moment."""
    while True:
        try:
            return await Peer.open(url, hello, at="cell2")
        except InvalidStatus as error:
            if error.response.status_code != 503:
                raise
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("way", ["both", "answers"])
async def test_one_owner_when_a_cell_is_parted_from_the_store_and_its_client_moves(site: Site, way: str) -> None:
    """With `answers`, what the cell writes arrives, and what the store answers does not: that turn has no end there."""
    url, network = site.balancers[0].url, site.network
    cell, store = site.machines["cell1"], site.machines["store"]
    closed_s: list[float] = []
    for number in range(ROUNDS):
        stale = await Peer.open(url, MANUAL)
        if stale.ready["at"] != "cell1":  # it has the fewer ones when another conversation is at cell2
            other, stale = stale, await Peer.open(url, MANUAL)
            await leave(other)
        assert stale.ready["at"] == "cell1"
        await stale.say("before")
        network.block(store, cell)
        if way == "both":
            network.block(cell, store)
        await stale.say("unsaved")
        await told(stale, "resumable")
        hello = {"resume": stale.ready["token"], "last_seq": last_of(stale)}
        moved = await let_in(url, hello)
        kept = ["before"]  # the turn was not over as far as the store knows: its person is asked to repeat it
        assert (moved.ready["at"], said(moved)) == ("cell2", kept)
        await stale.say("a fork")  # the stale owner cannot know
        await say(moved, "after")
        network.unblock(store, cell)
        if way == "both":
            network.unblock(cell, store)
        began_s = time.perf_counter()
        assert await stale.closed() == 4409
        closed_s.append(time.perf_counter() - began_s)
        await say(moved, "at last")
        moved.drop()
        again = await resume(url, moved, "cell1")
        assert again.ready["at"] == "cell1"
        assert " ".join(said(again)) == " ".join([*kept, "after", "at last"])
        await leave(again)
        refused = re.search(
            r'voxlane_store_writes_total{outcome="other_owner"} (\d+)', site.cells["cell1"].get("/metrics")
        )
        assert refused is not None
        assert int(refused[1]) > number
    print(f"a cell parted from the store ({way}): its stale socket closed {figures(closed_s)} after the line was back")
