"""The small parts of a conversation's body: outbound messages, buckets, tokens, the channel, admission."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from voxlane.engine.api import Append, Cancel, ChatMessage, EndInput, Finished, Priority, Refused, RequestStats, Submit
from voxlane.server.conversation.effects import RequestsLost
from voxlane.server.conversation.server_events import BargeIn
from voxlane.server.engine_client import channel as channels
from voxlane.server.engine_client.channel import GATHERED_BYTES, Channel
from voxlane.server.errors import Overloaded
from voxlane.server.http.auth import is_loopback, offered_key, origin_allowed
from voxlane.server.http.buckets import Bucket
from voxlane.server.protocols.dialect import Packet
from voxlane.server.sessions.outbound import (
    KEPT_PACKETS,
    KEPT_SOUND_S,
    LATE_AUDIO_S,
    WAITING_PACKETS,
    Outbound,
    TooSlow,
)
from voxlane.server.sessions.resume import Tokens
from voxlane.server.tenants.accounts import Tenants
from voxlane.server.watching.metrics import Metrics

STATS = RequestStats(0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)


def sound(epoch: int, end: int, seconds: float = 0.04) -> Packet:
    return Packet(("audio", epoch, end), epoch, end, seconds)


def word(text: str) -> Packet:
    return Packet((text,))


def written(box: Outbound) -> list[tuple[Any, int]]:
    out = []
    while (item := box.next()) is not None:
        out.append((item[0].fields[0] if not item[0].epoch else item[0].end, item[1]))
    return out


# ---- outbound messages


def test_messages_leave_in_order_and_numbered() -> None:
    box = Outbound(1.5)
    for packet in (word("a"), sound(1, 960), word("b")):
        box.put(packet)
    assert len(box) == 3
    assert written(box) == [("a", 1), (960, 2), ("b", 3)]
    assert box.next() is None


def test_a_hold_overtakes_the_sound_of_its_reply_and_nothing_else() -> None:
    box = Outbound(1.5)
    for packet in (word("reply"), sound(1, 960), sound(1, 1920)):
        box.put(packet)
    box.put_before_sound(word("hold"), 1)
    assert [what for what, _ in written(box)] == ["reply", "hold", 960, 1920]


def test_an_interruption_drops_its_sound_waiting_or_kept() -> None:
    box = Outbound(1.5)
    box.put(sound(1, 960))
    written(box)
    box.put(sound(1, 1920))
    box.drop_sound(1)
    box.put(word("interrupted"))
    assert written(box) == [("interrupted", 2)]
    box.rewind(0)
    assert written(box) == [("interrupted", 2)]


def test_what_was_heard_is_not_told_again() -> None:
    box = Outbound(1.5)
    for packet in (word("reply"), sound(1, 960), sound(1, 1920), word("text"), sound(1, 2880)):
        box.put(packet)
    written(box)
    box.played(1, 1900)
    box.put(word("late"))
    box.rewind(1)
    assert written(box) == [(1920, 3), ("text", 4), (2880, 5), ("late", 6)]
    box.rewind(None)
    assert written(box) == [(1920, 3), (2880, 5)]
    box.played(2, 0)
    box.played(1, 0)
    box.rewind(6)
    assert written(box) == []


def test_too_much_that_waits() -> None:
    box = Outbound(1.5)
    for _ in range(int((1.5 + LATE_AUDIO_S) / 0.04)):
        box.put(sound(1, 0))
    with pytest.raises(TooSlow):
        box.put(sound(1, 0))
    written(box)
    for _ in range(WAITING_PACKETS):
        box.put(word("x"))
    with pytest.raises(TooSlow):
        box.put(word("x"))


def test_memory_is_bounded() -> None:
    box = Outbound(1.5)
    for _ in range(2 * KEPT_PACKETS):
        box.put(word("x"))
        box.next()
    box.rewind(0)
    assert len(box) == KEPT_PACKETS


def test_a_line_that_breaks_twice_is_told_everything_once() -> None:
    box = Outbound(1.5)
    for packet in (word("reply"), sound(1, 960, 1.0), word("text")):
        box.put(packet)
    written(box)
    for _ in range(4):
        box.put_first(word("ready"))
        box.put(word("late"))
        box.rewind(0)
    assert written(box) == [("reply", 1), (960, 2), ("text", 3), *(("late", number) for number in range(4, 8))]
    box.rewind(7)
    box.rewind(7)
    box.put(sound(1, 1920, 2.0))  # 3 s wait, and not 4


def test_text_does_not_push_sound_out_nor_sound_text() -> None:
    box = Outbound(1.5)
    for number in range(1, KEPT_PACKETS):
        box.put(sound(1, 480 * number, 0.02))
        box.put(word("text"))
        written(box)
    box.played(1, 480)
    box.rewind(0)
    told = written(box)
    assert [what for what, _ in told].count("text") == KEPT_PACKETS - 1
    assert [what for what, _ in told if what != "text"] == [480 * number for number in range(2, KEPT_PACKETS)]
    assert [number for _, number in told] == sorted(number for _, number in told)


def test_sound_that_nobody_acknowledges_is_bounded() -> None:
    box = Outbound(1.5)
    for number in range(3 * int(KEPT_SOUND_S)):
        box.put(sound(1, number + 1, 1.0))
        box.next()
    box.rewind(None)
    assert len(box) == KEPT_SOUND_S


# ---- buckets


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 20)), max_size=50))
def test_no_more_than_the_rate_and_the_burst_passes(visits: list[tuple[float, int]]) -> None:
    bucket, now, passed = Bucket(10.0, 30.0, 0.0), 0.0, 0
    for wait, count in visits:
        now += wait
        passed += count if bucket.spend(count, now) else 0
        assert passed <= 30 + 10 * now + 1e-6


def test_a_bucket_fills_again() -> None:
    bucket = Bucket(10.0, 10.0, 0.0)
    assert bucket.spend(10, 0.0)
    assert not bucket.spend(1, 0.05)
    assert bucket.spend(1, 0.2)


# ---- tokens


def test_a_token_works_once_and_the_next_replaces_it() -> None:
    tokens = Tokens()
    first = tokens.issue("a")
    assert first.startswith("a.")
    assert len(first) == 2 + 43
    assert tokens.redeem(first) == "a"
    second = tokens.issue("a")
    tokens.arrived("a")
    assert tokens.redeem(first) is None
    third = tokens.issue("a")
    assert tokens.redeem(second) is None
    tokens.issue("b")
    assert tokens.redeem(third) == "a"
    for name in ("a", "b", "b"):
        tokens.revoke(name)
    assert not tokens._names
    assert not tokens._issued
    assert not tokens._redeemed
    assert first not in repr(vars(tokens))


def test_a_token_stays_good_until_the_next_has_arrived() -> None:
    tokens = Tokens()
    first = tokens.issue("a")
    assert tokens.redeem(first) == "a"
    second = tokens.issue("a")
    assert tokens.redeem(first) == "a", "the line broke before the second came"
    third = tokens.issue("a")
    assert tokens.redeem(second) is None, "a client that had received it would not have used the first"
    assert tokens.redeem(third) == "a", "it came, and the line broke before its client said anything"
    assert tokens.redeem(first) is None
    fourth = tokens.issue("a")
    tokens.arrived("a")
    assert (tokens.redeem(third), tokens.redeem(fourth)) == (None, "a")


# ---- the channel


class Line:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.soon: list[Any] = []  # of those, the ones that may wait for others
        self.connected = True
        self.starting = True
        self.full = False

    def send(self, message: Any) -> None:
        if self.full and isinstance(message, Submit):
            raise Overloaded
        self.sent.append(message)

    def send_soon(self, message: Any) -> None:
        self.send(message)
        self.soon.append(message)


class Ends:
    """A channel with both its ends in hand."""

    def __init__(self) -> None:
        self.line = Line()
        self.got: list[Any] = []
        self.left = 0
        self.channel = Channel("s", self.line, self.got.append, self.leave)

    def leave(self) -> None:
        self.left += 1


def test_a_channel_cancels_what_still_runs_when_it_closes() -> None:
    ends = Ends()
    for name in ("s/a", "s/b", "s/c"):
        assert ends.channel.tell(Submit(name, "asr")) is None
    ends.channel.deliver(Finished("s/a", 0, "eos", STATS))
    ends.channel.tell(Cancel("s/b"))
    ends.channel.close()
    ends.channel.close()
    assert ends.line.sent[-2:] == [Cancel("s/b"), Cancel("s/c")]
    assert ends.left == 1
    assert len(ends.got) == 1


def test_what_is_said_without_an_engine_waits_for_the_next() -> None:
    ends = Ends()
    ends.channel.tell(Submit("s/a", "asr"))
    ends.line.connected = False
    ends.channel.lost()
    assert ends.got == [RequestsLost()]
    for message in (Submit("s/b", "asr"), Append("s/b", b"12"), EndInput("s/b")):
        assert ends.channel.tell(message) is None
    assert len(ends.line.sent) == 1
    ends.line.connected = True
    ends.channel.back()
    assert ends.line.sent[1:] == [Submit("s/b", "asr"), Append("s/b", b"12"), EndInput("s/b")]
    ends.channel.back()
    assert len(ends.line.sent) == 4


def test_what_is_cancelled_before_it_was_said_is_never_said() -> None:
    ends = Ends()
    ends.line.connected = False
    for number in range(5000):
        ends.channel.tell(Submit(f"s/{number}", "chat", (ChatMessage("user", "x" * 10_000),)))
        ends.channel.tell(Append(f"s/{number}", bytes(10)))
        ends.channel.tell(Cancel(f"s/{number}"))
    ends.line.connected = True
    ends.channel.back()
    assert ends.line.sent == []


@given(sizes=st.lists(st.integers(1, GATHERED_BYTES), min_size=1, max_size=20))
def test_sound_is_gathered_and_all_of_it_is_there_before_anything_else_is_said(sizes: list[int]) -> None:
    ends = Ends()
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    ends.channel.tell(Submit("s/a", "asr", priority=Priority.HIGH))
    for piece in pieces:
        assert ends.channel.tell(Append("s/a", audio=piece)) is None
    sent = [message.audio for message in ends.line.sent[1:]]
    assert sent[0] == pieces[0]
    assert all(len(audio) >= GATHERED_BYTES for audio in sent[1:])
    assert sum(map(len, pieces)) - sum(map(len, sent)) < GATHERED_BYTES
    ends.channel.tell(EndInput("s/a"))
    assert b"".join(message.audio for message in ends.line.sent[1:-1]) == b"".join(pieces)
    assert ends.line.sent[-1] == EndInput("s/a")


def test_sound_that_interrupts_is_not_gathered() -> None:
    ends = Ends()
    ends.channel.tell(Submit("s/a", "asr", priority=Priority.HIGH))
    ends.channel.tell(Append("s/a", b"12"))
    ends.channel.tell(Append("s/a", b"34"))
    ends.channel.tell(Submit("s/b", "asr", priority=Priority.CRITICAL))
    for _ in range(3):
        ends.channel.tell(Append("s/b", b"56"))
    assert ends.line.sent[2] == Append("s/a", b"34")
    assert ends.line.sent[4:] == [Append("s/b", b"56")] * 3


def test_gathered_sound_is_lost_with_the_engine() -> None:
    ends = Ends()
    ends.channel.tell(Submit("s/a", "asr", priority=Priority.HIGH))
    ends.channel.tell(Append("s/a", b"12"))
    ends.channel.tell(Append("s/a", b"34"))
    ends.channel.lost()
    ends.channel.tell(Submit("s/b", "asr", priority=Priority.HIGH))
    assert ends.line.sent == [
        Submit("s/a", "asr", priority=Priority.HIGH),
        Append("s/a", b"12"),
        Submit("s/b", "asr", priority=Priority.HIGH),
    ]


def test_too_much_that_waits_for_an_engine_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "WAITING_BYTES", 700)
    ends = Ends()
    ends.line.connected = False
    ends.channel.tell(Submit("s/a", "asr"))
    ends.channel.tell(Submit("s/b", "asr"))
    assert ends.channel.tell(Append("s/a", bytes(8))) is None
    refused = ends.channel.tell(Append("s/a", bytes(80)))
    assert isinstance(refused, Refused)
    assert refused.code == "overloaded"
    assert ends.channel.tell(Append("s/a", bytes(8))) is None
    ends.line.connected = True
    ends.channel.back()
    assert ends.line.sent == [Submit("s/b", "asr")]


def test_an_engine_that_takes_no_more_and_one_that_never_comes() -> None:
    ends = Ends()
    ends.line.full = True
    assert isinstance(ends.channel.tell(Submit("s/a", "chat")), Refused)
    ends.line.connected = ends.line.starting = False
    assert isinstance(ends.channel.tell(Submit("s/b", "chat")), Refused)
    ends.channel.give_up()
    assert ends.got == []
    ends.line.starting = True
    ends.channel.tell(Submit("s/c", "chat"))
    ends.channel.give_up()
    assert ends.got == [RequestsLost()]
    ends.channel.tell(Submit("s/d", "chat"))
    ends.line.connected = True
    ends.channel.back()
    assert isinstance(ends.got[-1], Refused)
    ends.channel.close()


# ---- admission


@pytest.mark.parametrize(
    ("origin", "host", "with_key", "allowed"),
    [
        (None, "anything", False, True),
        ("https://ok.example", "voice.example", False, True),
        ("https://evil.example", "127.0.0.1:8000", False, False),
        ("http://localhost:3000", "127.0.0.1:8000", False, True),
        ("http://[::1]:3000", "localhost:8000", False, True),
        ("http://rebound.example:8000", "rebound.example:8000", False, False),
        ("http://192.168.0.7:8000", "192.168.0.7:8000", False, True),
        ("http://[fd00::7]:8000", "[fd00::7]:8000", False, True),
        ("http://192.168.0.9:8000", "192.168.0.7:8000", False, False),
        ("http://192.168.0.7:9000", "192.168.0.7:8000", False, False),
        ("https://voice.example", "voice.example", True, True),
        ("https://other.example", "voice.example", True, False),
        ("http://localhost:3000", "voice.example", True, False),
        ("null", "127.0.0.1:8000", False, False),
        ("file://localhost", "127.0.0.1:8000", False, False),
        ("", "127.0.0.1:8000", False, False),
    ],
)
def test_origins(origin: str | None, host: str, with_key: bool, allowed: bool) -> None:
    assert origin_allowed(origin, host, ("https://ok.example",), with_key=with_key) is allowed


def test_keys() -> None:
    assert offered_key("Bearer k", ["voxlane.key.other"]) == "k"
    assert offered_key("", ["voxlane.v1", "voxlane.key.k"]) == "k"
    assert offered_key("", ["voxlane.v1"]) is None
    assert Tenants("k").find("k") is not None
    assert Tenants("k").find("ö\ud800") is None
    assert [is_loopback(host) for host in ("localhost", "127.0.0.9", "[::1]", "0.0.0.0", "example.org")] == [
        True, True, True, False, False,
    ]  # fmt: skip


# ---- metrics


def test_a_backchannels_cost_is_counted_and_an_interruptions_is_not() -> None:
    metrics = Metrics()
    metrics.count(BargeIn(1, 40.0, 700.0, False, 380.0, 20.0))
    metrics.count(BargeIn(2, 40.0, 700.0, True, 350.0, 300.0))
    read = metrics.registry.get_sample_value
    for how, seconds in (("ducked", 0.38), ("muted", 0.02)):
        assert read("voxlane_backchannel_seconds_sum", {"reply": how}) == pytest.approx(seconds)
        assert read("voxlane_backchannel_seconds_count", {"reply": how}) == 1
    assert read("voxlane_barge_ins_total", {"verdict": "commit"}) == 1


# ---- the dashboard


def test_the_dashboard_shows_metrics_that_exist() -> None:
    dashboard = json.loads((Path(__file__).parents[3] / "docs" / "grafana.json").read_text())
    queries = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    asked = set(re.findall(r"voxlane_\w+", queries))
    known = {family.name for family in Metrics().registry.collect()}
    for name in asked:
        assert name.removesuffix("_total").removesuffix("_bucket") in known
    assert len(asked) > 15
