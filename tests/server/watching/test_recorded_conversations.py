"""Random conversations: a recording holds exactly what the session says was heard, and every turn has a line."""

from __future__ import annotations

from collections import Counter
from typing import Any

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from session_simulation import SPEAK_RATE
from session_table import PAUSES, Table

from voxlane.server.conversation.client_events import CutItem, Played, Respond, Stop, TextTurn
from voxlane.server.conversation.effects import RequestsLost, Send
from voxlane.server.conversation.server_events import Interrupted, ItemCut, ReplyDone, ReplyStarted, Speech, TurnDone
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.watching.heard_sound import HeardCut, HeardPiece, HeardReplies
from voxlane.server.watching.turn_account import TurnAccount, TurnRecord


class WatchedTable(Table):
    """A table whose conversation is watched as sessions/conversation.py does it."""

    def __init__(self, config: SessionConfig | None = None) -> None:
        super().__init__(config)
        self.heard = HeardReplies(SPEAK_RATE)
        self.account = TurnAccount(lambda: int(self.now * 1e9))
        self.placed: Counter[int] = Counter()  # samples by epoch
        self.pieces: list[HeardPiece] = []
        self.records: list[TurnRecord] = []
        self.events: list[Any] = []

    def feed(self, event: Any) -> list[Any]:
        self._place(self.heard.observe(self.session.answers.reply, self.now, 1.0))
        before = len(self.log)
        result = super().feed(event)
        for effect in self.log[before:]:
            if isinstance(effect, Send):
                self.events.append(effect.event)
                self._place(self.heard.follow(effect.event, self.now))
                record = self.account.follow(effect.event)
                if record is not None:
                    self.records.append(record)
        return result

    def _place(self, found: Any) -> None:
        for one in found:
            if isinstance(one, HeardCut):
                assert one.samples < self.placed[one.epoch]
                self.placed[one.epoch] = one.samples
            else:
                self.placed[one.epoch] += len(one.pcm) // 2
                self.pieces.append(one)

    def wanted(self) -> dict[int, int]:
        """Return how much was heard of each reply that is over, by what the client was told."""
        sent: Counter[int] = Counter()
        items = {event.item: event.epoch for event in self.events if isinstance(event, ReplyStarted) and event.item}
        found: dict[int, int] = {}
        for event in self.events:
            match event:
                case Speech(epoch, _, pcm):
                    sent[epoch] += len(pcm) // 2
                case Interrupted(epoch, _, samples) if epoch in items.values():
                    found[epoch] = samples
                case ReplyDone(epoch) if epoch in items.values():
                    found[epoch] = sent[epoch]
                case ItemCut(item, seconds) if item in items and items[item] in found:
                    found[items[item]] = min(found[items[item]], round(seconds * SPEAK_RATE))
        return found


Move = tuple[str, int, float]
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["voice", "noise", "silence", "type", "wait", "played", "stop", "cut", "respond", "lost"]),
        st.integers(0, 40),
        st.floats(0.01, 3),
    ),
    max_size=25,
)


def make_move(table: WatchedTable, move: Move) -> None:
    name, count, seconds = move
    match name:
        case "voice" | "noise" | "silence":
            table.speak({"voice": "v", "noise": "n", "silence": "s"}[name], count)
        case "type":
            table.feed(TextTurn("hello"))
            table.work()
        case "wait":
            table.wait(seconds)
        case "played":
            reply = table.session.answers.reply
            table.feed(Played(reply.epoch if reply is not None else 1, int(seconds * SPEAK_RATE)))
        case "stop":
            table.feed(Stop())
        case "cut":
            items = [item.id for item in table.session.history.items if item.kind == "assistant"]
            table.feed(CutItem(items[count % len(items)] if items else "none", seconds, "r"))
        case "respond":
            table.feed(Respond(SessionConfig(), aside=count % 2 == 0))
            table.work(count)
        case "lost":
            table.engine.work.clear()
            table.feed(RequestsLost())


@settings(max_examples=examples(1200))
@given(MOVES, st.booleans())
def test_exactly_what_was_heard_is_placed(moves: list[Move], pauses: bool) -> None:
    table = WatchedTable(PAUSES if pauses else None)
    for move in moves:
        make_move(table, move)
    wanted = table.wanted()
    assert {epoch: table.placed[epoch] for epoch in wanted} == wanted
    # No piece begins before the one before it has ended.
    end_s = 0.0
    for piece in table.pieces:
        assert piece.at_s >= end_s - 1e-9
        end_s = piece.at_s + len(piece.pcm) / 2 / SPEAK_RATE
    done = Counter(event.turn for event in table.events if isinstance(event, TurnDone))
    assert Counter(record.number for record in table.records) == done
    assert all(record.began_ns <= record.ended_ns for record in table.records)
    assert all(record.end in ("done", "interrupted", "failed") for record in table.records)


def test_a_reply_on_hold_is_silent_in_the_recording() -> None:
    table = WatchedTable(PAUSES)
    table.feed(TextTurn("hello"))
    table.work()
    table.wait(0.7)
    table.speak("n", 4)  # it sounds like a voice at first
    held = table.placed[1]
    table.wait(2.0)
    table.speak("s", 60)
    assert table.placed[1] > held
    gaps = [piece for piece in table.pieces[1:] if not piece.joins]
    assert held > 0
    assert len(gaps) <= 2
