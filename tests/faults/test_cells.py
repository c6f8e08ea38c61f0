"""Server processes behind HAProxy with a Redis store: what dies, hangs, drains or is full, and what clients notice."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cell_talks import (
    Waits,
    close_code,
    crowd,
    figures,
    gaps,
    last_of,
    leave,
    resumable,
    resume,
    retried,
    said,
    talking,
    told,
    weight,
)
from cells import Balancer, Cell, CutLine, free_port, haproxy_binary
from peer import MANUAL, Peer, eventually
from redis_server import RedisServer, redis_binary
from waiting import until
from websockets.exceptions import InvalidStatus

from voxlane.server import limits

pytestmark = pytest.mark.soak

CALLS, CALL_REST_S = 50, 2.0
"""People who talk while everything is upgraded, and rest after each turn."""


class House:
    """The cells, the balancers and the store of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = RedisServer(redis_binary(), folder)
        self.ports = free_port("127.0.1.1"), free_port("127.0.1.2")
        self.cells: dict[str, Cell] = {}
        self.balancers: list[Balancer] = []

    def cell(self, number: int, **options: Any) -> Cell:
        """Start a cell."""
        store_url = options.pop("store_url", self.store.url)
        cell = Cell(number, self.folder, self.ports, store_url, **options)
        self.cells[cell.name] = cell
        return cell

    def balancer(self, name: str = "haproxy") -> Balancer:
        """Start a balancer that knows cell1 and cell2, and wait until it has asked them."""
        balancer = Balancer(self.folder, self.ports, name)
        self.balancers.append(balancer)
        until(lambda: all(weight(balancer, name) > 0 for name in self.cells), "HAProxy knows the cells")
        return balancer

    def end(self) -> None:
        """End everything."""
        for process in (*self.balancers, *self.cells.values()):
            process.end()
        self.store.go_on()
        self.store.stop()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A store, and what a test starts around it."""
    try:
        haproxy_binary(), redis_binary()
    except RuntimeError as error:
        pytest.skip(str(error))
    made = House(tmp_path)
    yield made
    made.end()


# ---- the balancer


async def test_new_clients_are_spread_and_each_resumes_at_its_own_cell(house: House) -> None:
    house.cell(1), house.cell(2)
    balancer = house.balancer()
    peers = [await Peer.open(balancer.url, MANUAL) for _ in range(6)]
    places = [peer.ready["at"] for peer in peers]
    assert sorted(places) == ["cell1"] * 3 + ["cell2"] * 3
    for peer in peers:
        await peer.say("hello")
    leaving = [peer for peer in peers if peer.ready["at"] == "cell1"]
    for peer in leaving:  # cell1 is the emptier one now: without `at`, those of cell2 would go there
        peer.drop()
    for peer in reversed(peers):
        peer.drop()
        again = await resume(balancer.url, peer, peer.ready["at"])
        assert (again.ready["at"], again.ready["resumed"], said(again)) == (peer.ready["at"], True, ["hello"])
        await again.say("and on")
        other = {"cell1": "cell2", "cell2": "cell1"}[again.ready["at"]]
        again.drop()
        moved = await resume(balancer.url, again, other)  # through the store
        assert (moved.ready["at"], said(moved)) == (other, ["hello", "and on"])
        moved.drop()
        lost = await resume(balancer.url, moved, "no-such-cell")
        assert said(lost) == ["hello", "and on"]
        await leave(lost)


async def test_a_killed_cell_costs_its_own_clients_a_resume_and_the_others_nothing(house: House) -> None:
    victim = house.cell(1)
    house.cell(2)
    talkers, count = crowd(6, house.balancer().url)
    places: list[str] = []

    async def kill() -> None:
        places.extend(talker.at for talker in talkers)
        victim.signal(signal.SIGKILL)
        victim.wait()

    resumed = await talking(talkers, count, kill)
    assert "cell1" in places
    assert [number > 0 for number in resumed] == [place == "cell1" for place in places]
    print(f"kill -9 of a cell: resumed after {figures(gaps(talkers))}")


async def test_a_cell_that_drains_gets_nothing_new_and_its_conversations_move(house: House) -> None:
    leaver = house.cell(1)
    house.cell(2)
    balancer = house.balancer()
    talkers, count = crowd(6, balancer.url)

    async def stop() -> None:
        leaver.signal(signal.SIGTERM)
        await eventually(lambda: weight(balancer, "cell1") == 0)
        newcomers = [await Peer.open(balancer.url, MANUAL) for _ in range(4)]
        assert {peer.ready["at"] for peer in newcomers} == {"cell2"}
        for peer in newcomers:
            await leave(peer)
        assert await asyncio.to_thread(leaver.wait) == 0

    await talking(talkers, count, stop)
    assert all(talker.at == "cell2" for talker in talkers)
    assert "voice drained" in leaver.log.read_text()


async def test_a_rolling_upgrade_under_fifty_calls_drops_none(house: House) -> None:
    for number in (1, 2):
        house.cell(number)
    balancer = house.balancer()
    talkers, count = crowd(CALLS, balancer.url)
    for talker in talkers:
        talker.rest_s = CALL_REST_S

    async def upgrade() -> None:
        for number in (1, 2):
            old = house.cells[f"cell{number}"]
            old.signal(signal.SIGTERM)
            assert await asyncio.to_thread(old.wait) == 0
            new = await asyncio.to_thread(house.cell, number)
            await eventually(lambda name=new.name: weight(balancer, name) > 0)  # type: ignore[misc]

    resumed = await talking(talkers, count, upgrade, messages=10)
    assert all(resumed)  # each was at one of the two
    gaps_s = sorted(gaps(talkers))
    late_s = gaps_s[round(0.95 * (len(gaps_s) - 1))]
    print(f"two cells upgraded under {CALLS} calls: none dropped, gap p95 {late_s * 1e3:.0f} ms, {figures(gaps_s)}")


async def test_a_drain_by_the_runtime_api_lasts_and_closes_no_socket(house: House) -> None:
    house.cell(1), house.cell(2)
    balancer = house.balancer()
    talkers, count = crowd(4, balancer.url)

    async def drain() -> None:
        balancer.order("set server cells/cell1 state drain")
        await asyncio.sleep(2.5)  # two answers of the agent must not lift it
        newcomers = [await Peer.open(balancer.url, MANUAL) for _ in range(4)]
        assert {peer.ready["at"] for peer in newcomers} == {"cell2"}
        for peer in newcomers:
            await leave(peer)

    assert await talking(talkers, count, drain) == [0] * 4


async def test_twice_the_load_is_refused_before_the_upgrade_and_the_admitted_notice_nothing(house: House) -> None:
    full = "sure=3, first_sound_ms=0.001, lag_ms=10000"  # any measured turn is too slow: three are sure of their place
    cells = [house.cell(number, room=full) for number in (1, 2)]
    balancer = house.balancer()
    talkers, count = crowd(6, balancer.url)
    refused: list[InvalidStatus] = []

    async def come() -> None:
        for cell in cells:
            await eventually(lambda cell=cell: cell.agent().startswith("up 0% maxconn:"))  # type: ignore[misc]
            room = json.loads(await asyncio.to_thread(cell.get, "/readyz"))["room"]
            assert (room["state"], room["tightest"], room["conversations"]) == ("full", "first_sound", 3)
            with pytest.raises(InvalidStatus) as straight:
                await Peer.open(cell.url, MANUAL)
            assert b"no_room" in straight.value.response.body
            metrics = await asyncio.to_thread(cell.get, "/metrics")
            assert 'voxlane_refusals_total{reason="first_sound"} ' in metrics
        await eventually(lambda: weight(balancer, "cell1") == weight(balancer, "cell2") == 0)
        for _ in range(6):
            with pytest.raises(InvalidStatus) as through:
                await Peer.open(balancer.url, MANUAL)
            refused.append(through.value)

    assert await talking(talkers, count, come) == [0] * 6
    assert {error.response.status_code for error in refused} == {503}
    assert all(int(error.response.headers["retry-after"]) > 0 for error in refused)


PINGS = 500
"""Below the burst that a client is allowed."""


async def test_every_message_passes_the_balancer_at_a_small_cost(house: House) -> None:
    house.cell(1), house.cell(2)
    balancer = house.balancer()
    peers = [await Peer.open(balancer.url, MANUAL) for _ in range(8)]
    before = balancer.processor_s()

    async def ask(peer: Peer) -> list[int]:
        for mark in range(PINGS):
            await peer.send("ping", mark)
            await peer.until("pong")
        return [message[2] for message in peer.of("pong")]

    answers = await asyncio.gather(*map(ask, peers))
    used_s = balancer.processor_s() - before
    assert answers == [list(range(PINGS))] * len(peers)  # each once and in order
    for peer in peers:
        assert [message[1] for message in peer.seen] == list(range(1, len(peer.seen) + 1))  # none is missing
        await leave(peer)
    assert used_s > 0
    print(f"HAProxy: {used_s / (len(peers) * 2 * PINGS) * 1e6:.0f} µs of a core a message")


async def test_a_killed_balancer_of_a_pair_is_left_for_the_other(house: House) -> None:
    house.cell(1), house.cell(2)
    first, second = house.balancer("one"), house.balancer("two")
    talkers, count = crowd(4, first.url, second.url)

    async def kill() -> None:
        first.kill()

    assert await talking(talkers, count, kill) == [1] * 4
    print(f"kill -9 of one HAProxy of two: resumed after {figures(gaps(talkers))}")


MEMBERSHIP_S = float(os.environ.get("VOXLANE_MEMBERSHIP_S", "60"))
"""How long the membership changes; ten minutes need VOXLANE_TEST_DEADLINE_S too."""

MEMBERSHIP_EVERY_S = float(os.environ.get("VOXLANE_MEMBERSHIP_EVERY_S", "5"))


async def test_membership_changes_while_sockets_are_open(house: House) -> None:
    """A cell is taken in, gets a client, and is let go by a drain; that client stays and talks on, as all others do."""
    house.cell(1), house.cell(2)
    balancer = house.balancer()
    talkers, count = crowd(4, balancer.url)
    for talker in talkers:
        talker.rest_s = max(0.2, MEMBERSHIP_S / 200)
    stayers: list[Peer] = []
    changes = 0

    async def change() -> None:
        nonlocal changes
        third = await asyncio.to_thread(house.cell, 3)
        end_s = time.monotonic() + MEMBERSHIP_S
        while time.monotonic() < end_s or changes < 6:
            next_s = time.monotonic() + MEMBERSHIP_EVERY_S
            balancer.add(third, house.ports[0])
            await eventually(lambda: weight(balancer, "cell3") > 0)
            peer = await Peer.open(balancer.url, MANUAL)
            assert peer.ready["at"] == "cell3"  # it has the fewest
            if not stayers:  # one: cell3 must stay the emptiest
                stayers.append(peer)
            else:
                await leave(peer)
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            next_s = time.monotonic() + MEMBERSHIP_EVERY_S
            balancer.order("set server cells/cell3 state drain")
            await eventually(lambda: weight(balancer, "cell3") == 0)
            newcomer = await Peer.open(balancer.url, MANUAL)
            assert newcomer.ready["at"] != "cell3"
            await leave(newcomer)
            for peer in stayers:
                assert (await peer.say("still here"))[-1][3] == "done"
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            changes += 2
        for peer in stayers:
            await leave(peer)

    began_s = time.monotonic()
    assert await talking(talkers, count, change) == [0] * 4
    print(
        f"membership: {changes} changes in {time.monotonic() - began_s:.0f} s, no socket of {4 + len(stayers)} closed"
    )


# ---- the store


async def test_a_hung_store_refuses_no_resume_for_good_and_stops_no_conversation(house: House) -> None:
    house.cell(1), house.cell(2)
    url = house.balancer().url
    mover, stayer = await Peer.open(url, MANUAL), await Peer.open(url, MANUAL)
    await mover.say("one"), await stayer.say("one")
    mover.drop()
    house.store.hang()
    await stayer.say("two")  # it goes on, and is told
    await told(stayer, "resumable")
    other = {"cell1": "cell2", "cell2": "cell1"}[mover.ready["at"]]
    hello = {"resume": mover.ready["token"], "last_seq": last_of(mover)}
    assert await close_code(await Peer.open(url, at=other), hello) == 1013  # it cannot be checked
    own = await resume(url, mover, mover.ready["at"])  # its own cell needs no store
    assert (own.ready["resumed"], said(own)) == (True, ["one"])
    house.store.go_on()
    await own.say("two")
    await stayer.say("three")
    await resumable(own)
    own.drop()
    moved = await retried(url, own, other)
    assert said(moved) == ["one", "two"]
    await leave(moved)
    await leave(stayer)


async def test_a_killed_store_ends_no_conversation(house: House) -> None:
    house.cell(1), house.cell(2)
    url = house.balancer().url
    peer = await Peer.open(url, MANUAL)
    await peer.say("one")
    house.store.kill()
    await peer.say("two")
    await told(peer, "resumable")
    peer.drop()
    other = {"cell1": "cell2", "cell2": "cell1"}[peer.ready["at"]]
    hello = {"resume": peer.ready["token"], "last_seq": last_of(peer)}
    assert await close_code(await Peer.open(url, at=other), hello) == 1013  # it cannot be checked
    own = await resume(url, peer, peer.ready["at"])
    assert said(own) == ["one", "two"]
    house.store.start()
    await own.say("three")
    await resumable(own)
    own.drop()
    moved = await retried(url, own, other)  # it was written again
    assert said(moved) == ["one", "two", "three"]
    await leave(moved)


async def test_an_emptied_store_takes_no_conversation_from_its_owner(house: House) -> None:
    house.cell(1), house.cell(2)
    talkers, count = crowd(4, house.balancer().url)

    async def empty() -> None:
        for _ in range(5):
            house.store.clear()
            await count.wait_more(20)

    assert await talking(talkers, count, empty) == [0] * 4


STORE_AWAY_S = float(os.environ.get("VOXLANE_STORE_AWAY_S", "30"))
"""How long the store hangs or is dead under calls."""


@pytest.mark.parametrize("fault", ["hung", "killed", "emptied"])
async def test_calls_go_on_while_the_store_fails_and_are_whole_in_it_afterwards(house: House, fault: str) -> None:
    leaver = house.cell(1, wait_s=limits.STORE_WAIT_SECONDS)
    house.cell(2, wait_s=limits.STORE_WAIT_SECONDS)
    talkers, count = crowd(6, house.balancer().url)
    waits, store = Waits(talkers), house.store

    async def fail() -> None:
        await waits.each_says(3)
        waits.mark("before")
        if fault == "emptied":
            for _ in range(10):
                store.clear()
                await waits.each_says(1)
        else:
            store.hang() if fault == "hung" else store.kill()
            await eventually(lambda: not any(talker.resumable for talker in talkers))  # each is told
            await asyncio.sleep(STORE_AWAY_S)
            assert not any(talker.resumable for talker in talkers)
        waits.mark(fault)
        store.go_on() if fault == "hung" else store.start() if fault == "killed" else None
        began_s = time.perf_counter()
        await eventually(lambda: all(talker.resumable for talker in talkers))
        print(f"store {fault}: all is in it {time.perf_counter() - began_s:.2f} s after it was back")
        assert [talker.resumed for talker in talkers] == [0] * len(talkers)
        await waits.each_says(2)  # an emptied store is noticed by the next write
        waits.mark("after")
        leaver.signal(signal.SIGTERM)  # not a kill: on a busy machine the store may fail again just before it
        await eventually(lambda: all(talker.at == "cell2" for talker in talkers))

    await talking(talkers, count, fail)  # it compares every history
    waits.tell()


async def test_one_owner_when_a_cell_is_cut_off_from_the_store_and_its_client_moves(house: House) -> None:
    async with CutLine(house.folder / "line.sock", house.folder / "redis.sock") as line:
        await asyncio.to_thread(house.cell, 1, store_url=f"unix://{line.path}")
        await asyncio.to_thread(house.cell, 2)
        cells = house.cells
        peer = await Peer.open(cells["cell1"].url, MANUAL)
        await peer.say("before")
        line.cut()
        await peer.say("unsaved")  # cell1 goes on, and tells that this would be lost
        await told(peer, "resumable")
        hello = {"resume": peer.ready["token"], "last_seq": last_of(peer)}
        moved = await Peer.open(cells["cell2"].url, hello, at="cell2")
        assert said(moved) == ["before"]  # what the store has; nothing of both is mixed
        await moved.say("after")
        line.mend()
        assert await peer.closed() == 4409  # cell1 learns that it is not the owner any more
        late = await Peer.open(cells["cell1"].url, at="cell1")
        assert await close_code(late, hello) == 4401  # the token was used
        moved.drop()
        again = await resume(cells["cell1"].url, moved, "cell1")
        assert said(again) == ["before", "after"]
        await leave(again)


async def test_a_stale_owner_that_writes_first_into_an_emptied_store_takes_nothing_from_the_last_one(
    house: House,
) -> None:
    async with CutLine(house.folder / "line.sock", house.folder / "redis.sock") as line:
        await asyncio.to_thread(house.cell, 1, store_url=f"unix://{line.path}")
        await asyncio.to_thread(house.cell, 2)
        cells = house.cells
        stale = await Peer.open(cells["cell1"].url, MANUAL)
        await stale.say("before")
        line.cut()
        await stale.say("unsaved")
        await told(stale, "resumable")
        hello = {"resume": stale.ready["token"], "last_seq": last_of(stale)}
        moved = await Peer.open(cells["cell2"].url, hello, at="cell2")
        house.store.clear()
        line.mend()
        await eventually(house.store.records)  # of the stale owner: cell2 has nothing to write
        assert (await moved.say("after"))[-1][3] == "done"
        assert await stale.closed() == 4409
        moved.drop()
        again = await resume(cells["cell1"].url, moved, "cell1")
        assert said(again) == ["before", "after"]
        await leave(again)


WORDS = 10_000
CANARY, PLANTED = re.compile(rb"canary[0-9]{5}bird"), "aplantedbird"


async def test_ten_thousand_words_are_in_no_store_no_monitor_and_no_log(house: House) -> None:
    house.cell(1), house.cell(2)
    balancer = house.balancer()
    words = [f"canary{number:05d}bird" for number in range(WORDS)]
    texts = [" ".join(words[at : at + 100]) for at in range(0, WORDS, 100)]
    assert CANARY.search(texts[0].encode())
    with house.store.monitored() as monitor:
        house.store.plant(PLANTED)
        peers = [await Peer.open(balancer.url, instructed(f"canary{number}0000bird")) for number in range(4)]
        for place, text in enumerate(texts):
            assert (await peers[place % 4].say(text))[-1][3] == "done"
        for peer in peers:
            peer.drop()
        moved = [await resume(balancer.url, peer, "cell1") for peer in peers]
        for peer in moved:
            assert len(said(peer)) > 1  # the history came along
        store = house.store
        seen = {"memory": store.memory(), "records": store.records(), "file": store.saved()}
        for peer in moved:
            await leave(peer)
        seen["memory afterwards"] = store.memory()
    seen["monitor"] = monitor()
    assert b"vx:" in seen["monitor"]  # it did see the writes
    assert [name for name, data in seen.items() if PLANTED.encode() not in data] == []  # the search finds words there
    logs = {file.name: file.read_bytes() for file in house.folder.glob("*.log")}
    assert b"voice open" in logs["cell1.log"]
    found = {name: set(CANARY.findall(data)) for name, data in (seen | logs).items()}
    assert found == {name: set() for name in found}
    sizes = ", ".join(f"{name} {len(data) / 1e6:.1f} MB" for name, data in (seen | logs).items())
    print(f"{WORDS} words typed, told and moved: none in {sizes}")


def instructed(word: str) -> dict[str, Any]:
    """Return a hello whose instructions have a word."""
    return {"config": {**MANUAL["config"], "instructions": f"Say {word} to all."}}
