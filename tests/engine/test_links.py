"""Several links at one engine: each gets the messages of its own requests, and no others."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine import links as links_module
from voxlane.engine.api import (
    ATTACHED,
    Append,
    Assembler,
    Attach,
    Cancel,
    Finished,
    Message,
    Pause,
    Ping,
    Pong,
    Refused,
    RequestStats,
    Shutdown,
    StepStats,
    Submit,
    Text,
    ToEngine,
    encode,
    fragments,
)
from voxlane.engine.links import Gone, Links

STATS = RequestStats(0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)
STEPS = StepStats(*[0] * 4, *[0.0] * 6, *[0] * 9, 0.0)


@dataclass(slots=True)
class Server:
    """One server process's end of a link."""

    sock: socket.socket
    assembler: Assembler = field(default_factory=Assembler)

    def send(self, message: ToEngine) -> None:
        for packet in fragments(encode(message)):
            self.sock.send(packet)

    def told(self) -> list[Message]:
        """Return the messages that have come."""
        found: list[Message] = []
        with contextlib.suppress(BlockingIOError):
            while packet := self.sock.recv(1 << 20, socket.MSG_DONTWAIT):
                found += self.assembler.messages(packet)
        return found

    def attach(self) -> Server:
        """Attach another process."""
        ours, theirs = pair()
        self.send(Attach())
        socket.send_fds(self.sock, [ATTACHED], [theirs.fileno()])
        theirs.close()
        return Server(ours)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@contextlib.contextmanager
def cell(count: int) -> Iterator[tuple[Links, Server, list[Server]]]:
    """Give an engine's links, the first server's end, and those of `count` further ones."""
    ours, theirs = pair()
    first, links = Server(ours), Links(theirs)
    others = [first.attach() for _ in range(count)]
    try:
        assert links.receive(wait=False) == []
        yield links, first, others
    finally:
        links.close()
        for server in (first, *others):
            server.sock.close()


def chat(request_id: str) -> Submit:
    return Submit(request_id, "chat")


def test_a_message_goes_to_the_link_that_its_request_came_from():
    with cell(2) as (links, first, (one, two)):
        one.send(chat("a"))
        two.send(chat("b"))
        first.send(chat("c"))
        assert {command.request_id for command in links.receive(wait=True)} == {"a", "b", "c"}  # type: ignore[union-attr]
        links.send([Text("a", 0, "for a"), Text("b", 0, "for b"), Text("c", 0, "for c"), STEPS])
        assert one.told() == [Text("a", 0, "for a"), STEPS]
        assert two.told() == [Text("b", 0, "for b"), STEPS]
        assert first.told() == [Text("c", 0, "for c"), STEPS]


def test_commands_about_another_links_requests_are_dropped():
    with cell(2) as (links, _, (one, two)):
        one.send(chat("a"))
        assert links.receive(wait=True) == [chat("a")]
        for command in (Cancel("a"), Append("a", text="x"), Pause(("a",)), chat("a")):
            two.send(command)
        assert links.receive(wait=True) == [Pause(())]
        assert [type(message) for message in two.told()] == [Refused]
        links.send([Text("a", 0, "still one's")])
        assert one.told() == [Text("a", 0, "still one's")]
        assert two.told() == []


def test_the_end_of_a_link_cancels_its_requests_and_no_others():
    with cell(2) as (links, first, (one, two)):
        for server, request_id in ((one, "a"), (one, "b"), (two, "c")):
            server.send(chat(request_id))
        assert len(links.receive(wait=True)) == 3
        one.sock.close()
        assert links.receive(wait=True) == [Cancel("a"), Cancel("b")]
        links.send([Text("a", 0, "too late"), Finished("a", 0, "cancelled", STATS), Text("c", 0, "in time")])
        assert two.told() == [Text("c", 0, "in time")]
        assert first.told() == []
        again = first.attach()
        assert links.receive(wait=False) == []
        again.send(chat("a"))
        assert links.receive(wait=True) == [chat("a")]
        again.sock.close()


def test_an_id_may_be_used_again_before_its_first_end_was_told():
    with cell(1) as (links, first, (one,)):
        for command in (chat("a"), Cancel("a"), chat("a")):
            one.send(command)
        assert links.receive(wait=True) == [chat("a"), Cancel("a"), chat("a")]
        links.send([Finished("a", 0, "cancelled", STATS)])
        links.send([Text("a", 0, "the second")])
        assert one.told() == [Finished("a", 0, "cancelled", STATS), Text("a", 0, "the second")]
        assert first.told() == []


def test_a_process_that_reads_nothing_is_left_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(links_module, "OUTBOX_PACKETS", 20)
    with cell(2) as (links, _, (slow, quick)):
        slow.send(chat("a"))
        quick.send(chat("b"))
        assert len(links.receive(wait=True)) == 2
        cancelled: list[ToEngine] = []
        while not cancelled:  # until the socket is full and twenty packets wait
            links.send([Text("a", 0, "x" * 60_000), Text("b", 0, "y" * 60_000)])
            assert [type(message) for message in quick.told()] == [Text]
            cancelled = links.receive(wait=False)
        assert cancelled == [Cancel("a")]


@pytest.mark.parametrize("bad", [b"\x07 no packet", encode(Shutdown())])
def test_a_bad_packet_ends_its_own_link_alone(bad: bytes):
    with cell(2) as (links, _, (one, two)):
        one.send(chat("a"))
        two.send(chat("b"))
        links.receive(wait=True)
        one.sock.send(bad if bad.startswith(b"\x07") else fragments(bad)[0])
        assert links.receive(wait=True) == [Cancel("a")]
        two.send(Ping())
        assert links.receive(wait=False) == []
        assert two.told() == [Pong()]


def test_the_end_of_the_first_link_ends_the_engine():
    with cell(1) as (links, first, _):
        first.sock.close()
        with pytest.raises(Gone):
            links.receive(wait=True)


SERVERS = 3
IDS = st.sampled_from(["a", "b", "c", "d"])
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["submit", "cancel", "pause", "end"]), st.integers(0, SERVERS - 1), IDS),
        st.tuples(st.just("tell"), st.just(0), IDS),
    ),
    max_size=40,
)


@given(actions=ACTIONS)
@settings(max_examples=examples(200), deadline=None)
def test_messages_never_reach_another_link(actions: list[tuple[str, int, str]]):
    """Whatever links do with the same ids, each is told of its own requests alone, and every request has its end."""
    with cell(SERVERS) as (links, first, servers):
        opened: set[int] = set(range(SERVERS))
        alive: dict[str, int] = {}  # the requests that the engine has, and their links
        for what, which, name in actions:
            server = servers[which]
            if what == "tell":
                if name in alive:
                    links.send([Text(name, 0, str(alive[name]))])
            elif which not in opened:
                continue
            elif what == "submit":
                server.send(chat(name))
            elif what == "cancel":
                server.send(Cancel(name))
            elif what == "pause":
                server.send(Pause((name,)))
            else:
                server.sock.close()
                opened.discard(which)
            for command in links.receive(wait=False):
                match command:
                    case Submit(request_id=request_id):
                        if request_id in alive:
                            assert alive[request_id] == which
                            links.send([Refused(request_id, 0, "duplicate_id", "")])
                        else:
                            alive[request_id] = which
                    case Cancel(request_id) if request_id in alive:
                        assert alive.pop(request_id) == which
                        links.send([Finished(request_id, 0, "cancelled", STATS)])
                    case Pause(request_ids):
                        assert all(alive[one] == which for one in request_ids if one in alive)
            for number in opened:
                for message in servers[number].told():
                    if isinstance(message, Text):
                        assert message.text == str(number)
        assert set(alive.values()) <= opened
        assert first.told() == []
