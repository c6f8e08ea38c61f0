"""Check the order of OpenAI Realtime's server events as clients rely on it, and the shape of each by `openai`'s types.

    session    created once and first; an error may come before it if no session follows
    turn       speech_started, speech_stopped, committed, item added and done, transcript delta*, completed or failed
    response   created, then items, then done; nothing of it afterwards
    item       output_item.added, conversation.item.added, parts or arguments, conversation.item.done, output_item.done
    part       added, delta*, the done of each kind of delta with all of it, part done

Nothing here is special to our server: the events of any server that follows the specification should pass.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

from openai.types.realtime import RealtimeServerEvent
from pydantic import BaseModel

Event = dict[str, Any]

TRANSCRIPTION = "conversation.item.input_audio_transcription"


@cache
def _shapes() -> dict[str, type[BaseModel]]:
    """Return the package's model for each type of event; its union of all models tries them one by one and is slow."""
    models = get_args(get_args(RealtimeServerEvent)[0])
    return {get_args(model.model_fields["type"].annotation)[0]: model for model in models}


def validate(event: Event) -> None:
    """Raise if the event does not have the shape that the `openai` package defines for its type."""
    _shapes()[event["type"]].model_validate(event)


@dataclass
class _Item:
    """An item of a response."""

    id: str
    index: int
    kind: str
    text: str = ""
    part: str = ""  # kind of its open part; "": none is open
    closed: set[str] = field(default_factory=set)  # kinds of delta that are done
    parts: int = 0
    in_conversation: bool = False
    left_conversation: bool = False


@dataclass
class _Response:
    """A running response."""

    id: str
    aside: bool
    open: dict[str, _Item] = field(default_factory=dict)
    output: list[str] = field(default_factory=list)
    sound: int = 0  # bytes of sound so far


class Grammar:
    """Checks one connection's events in order; raises AssertionError with the reason if one is not allowed."""

    def __init__(self, *, webrtc: bool = False) -> None:
        """Check a WebSocket's events, or those of a call over WebRTC: no sound in them, and an output buffer."""
        self._webrtc = webrtc
        self._playing = ""  # id of the response in the output buffer
        self.events: list[Event] = []
        self.items: list[str] = []  # ids of the conversation, in order
        self.responses: dict[str, _Response] = {}  # running
        self._ids: set[str] = set()
        self._over: set[str] = set()  # ids of responses that are done
        self._speaking: str | None = None  # the item of the current speech
        self._stopped: set[str] = set()
        self._waiting: set[str] = set()  # committed, not yet added
        self._added: set[str] = set()
        self._done: set[str] = set()
        self._deleted: set[str] = set()
        self._transcripts: dict[str, str] = {}
        self._completed: set[str] = set()

    def check(self, event: Event) -> None:
        """Check the next event."""
        try:
            self._check(event)
        except Exception as error:
            before = " · ".join(one["type"] for one in self.events[-12:])
            raise AssertionError(
                f"{event.get('type')}: {error}\nafter: {before}\nevent: {str(event)[:2000]}"
            ) from error
        self.events.append(event)

    def end(self) -> None:
        """Check that nothing is left open but speech that still goes on."""
        assert not self.responses, f"responses without an end: {list(self.responses)}"
        assert not self._waiting, f"committed and never added: {self._waiting}"
        assert self._added <= self._done, f"added and never done: {self._added - self._done}"

    def _check(self, event: Event) -> None:
        validate(event)
        kind, name = event["type"], event["event_id"]
        assert name not in self._ids, "an event_id twice"
        self._ids.add(name)
        first = not any(one["type"] != "error" for one in self.events)
        assert first == (kind == "session.created") or kind == "error", "session.created is the first event, and once"
        if kind.startswith("input_audio_buffer."):
            self._buffer(kind, event)
        elif kind.startswith(TRANSCRIPTION):
            self._transcript(kind.removeprefix(f"{TRANSCRIPTION}."), event)
        elif kind.startswith("conversation.item."):
            self._item(kind.removeprefix("conversation.item."), event)
        elif kind.startswith("output_audio_buffer."):
            self._output_buffer(kind.removeprefix("output_audio_buffer."), event["response_id"])
        elif kind == "response.created":
            self._begin(event["response"])
        elif kind == "response.done":
            self._finish(event["response"])
        elif kind.startswith("response."):
            assert not (self._webrtc and kind == "response.output_audio.delta"), "the sound is on the track"
            self._of_response(kind.removeprefix("response."), event)
        else:
            known = ("session.created", "session.updated", "rate_limits.updated", "error")
            assert kind in known, "not an event of a conversation over a WebSocket"

    def _output_buffer(self, kind: str, response: str) -> None:
        assert self._webrtc, "not an event of a WebSocket"
        if kind == "started":
            assert not self._playing, "another response is in the buffer"
            assert response in self.responses or response in self._over, "of an unknown response"
            self._playing = response
            return
        assert self._playing == response, "of a response that has not started"
        assert kind == "cleared" or response in self._over, "stopped before the response is done"
        self._playing = ""

    # ---- the person

    def _buffer(self, kind: str, event: Event) -> None:
        item = event.get("item_id")
        match kind.removeprefix("input_audio_buffer."):
            case "speech_started":
                assert self._speaking is None, "speech has started already"
                assert item not in self.items, "of an item that is there"
                self._speaking = item
            case "speech_stopped":
                assert self._speaking == item, "speech has not started"
                self._speaking = None
            case "committed":
                assert self._speaking != item, "committed while it is spoken"
                assert item not in self._waiting, "committed twice"
                assert item not in self.items, "committed twice"
                self._check_previous(event["previous_item_id"])
                self._waiting.add(item)
            case "cleared":
                pass
            case "timeout_triggered":
                assert event["audio_start_ms"] <= event["audio_end_ms"], "ends before it begins"
            case _:
                raise AssertionError("not an event of a WebSocket")

    def _transcript(self, kind: str, event: Event) -> None:
        item = event["item_id"]
        assert item in self._added, "of an item that was not added"
        assert item not in self._completed, "of a transcript that is complete"
        match kind:
            case "delta":
                assert event["delta"], "empty"
                self._transcripts[item] = self._transcripts.get(item, "") + event["delta"]
            case "completed":
                self._completed.add(item)
                told = self._transcripts.get(item, "")
                assert event["transcript"].startswith(told) or not told, "not what the deltas said"
            case "failed":
                self._completed.add(item)

    # ---- items

    def _check_previous(self, name: str | None) -> None:
        assert name is None or name in self.items, f"behind {name}, an unknown item"

    def _item(self, kind: str, event: Event) -> None:
        match kind:
            case "added":
                self._add(event)
            case "done":
                item = event["item"]["id"]
                assert item in self._added, "done before it was added"
                assert item not in self._done, "done twice"
                assert event["item"]["status"] != "in_progress", "done and in progress"
                self._check_previous(event["previous_item_id"])
                self._done.add(item)
                for response in self.responses.values():
                    if item in response.open:
                        response.open[item].left_conversation = True
            case "deleted":
                assert event["item_id"] in self.items, "an unknown item"
                self.items.remove(event["item_id"])
                self._deleted.add(event["item_id"])
            case "retrieved":
                self._check_content(event["item"])
            case "truncated":
                assert event["item_id"] in self._added, "an unknown item"
            case _:
                raise AssertionError("not a GA event")

    def _add(self, event: Event) -> None:
        item = event["item"]
        name, previous = item["id"], event["previous_item_id"]
        assert name not in self._added or name in self._deleted, "added twice"
        self._deleted.discard(name)
        self._done.discard(name)
        self._check_previous(previous)
        self._check_content(item)
        self.items.insert(0 if previous is None else self.items.index(previous) + 1, name)
        self._added.add(name)
        self._waiting.discard(name)
        for response in self.responses.values():
            if name in response.open:
                assert not response.aside, "part of the conversation"
                response.open[name].in_conversation = True

    @staticmethod
    def _check_content(item: Event) -> None:
        for part in item.get("content", ()):
            if part["type"] == "input_audio":
                assert "transcript" in part, "a user's audio without a transcript key"

    # ---- responses

    def _begin(self, shown: Event) -> None:
        assert shown["status"] == "in_progress"
        assert shown["id"] not in self._over, "begins twice"
        assert shown["id"] not in self.responses, "begins twice"
        assert shown["output"] == []
        aside = shown["conversation_id"] is None
        others = [one for one in self.responses.values() if not one.aside]
        assert aside or not others, "two responses of one conversation"
        self.responses[shown["id"]] = _Response(shown["id"], aside)

    def _finish(self, shown: Event) -> None:
        response = self.responses.pop(shown["id"])
        self._over.add(shown["id"])
        assert not response.open, f"items are not done: {list(response.open)}"
        assert [item["id"] for item in shown["output"]] == response.output, "not the items it had"
        status, details = shown["status"], shown["status_details"]
        assert status in ("completed", "cancelled", "incomplete", "failed")
        assert status == "completed" or details["type"] == status
        assert shown["usage"] is not None, "one client reads it unasked"

    def _of_response(self, kind: str, event: Event) -> None:
        name = event["response_id"]
        assert name not in self._over, "of a response that is done"
        response = self.responses[name]
        if kind == "output_item.added":
            item = event["item"]
            assert event["output_index"] == len(response.output) + len(response.open), "wrong output_index"
            assert item["id"] not in self._added, "added to the conversation before"
            response.open[item["id"]] = _Item(item["id"], event["output_index"], item["type"])
            return
        if kind == "output_item.done":
            self._close(response, event)
            return
        item_of = response.open[event["item_id"]]
        assert event["output_index"] == item_of.index, "wrong output_index"
        assert item_of.in_conversation != response.aside, "before conversation.item.added"
        if kind.startswith("function_call_arguments."):
            self._arguments(item_of, kind, event)
        else:
            assert event["content_index"] == 0
            self._part(response, item_of, kind, event)

    @staticmethod
    def _arguments(item: _Item, kind: str, event: Event) -> None:
        assert item.kind == "function_call"
        assert "arguments" not in item.closed, "after its end"
        if kind.endswith(".delta"):
            item.text += event["delta"]
        else:
            assert event["arguments"] == item.text, "not what the deltas said"
            item.closed.add("arguments")

    @staticmethod
    def _part(response: _Response, item: _Item, kind: str, event: Event) -> None:
        assert item.kind == "message"
        if kind == "content_part.added":
            assert not item.part, "two parts at once"
            item.part = event["part"]["type"]
            assert None not in event["part"].values(), "null where one client wants nothing"
            return
        needed = {"audio": {"output_audio", "output_audio_transcript"}, "text": {"output_text"}}[item.part]
        if kind == "content_part.done":
            assert item.closed == needed, f"before the done of {needed - item.closed}"
            assert event["part"]["type"] == item.part
            assert event["part"].get("transcript", event["part"].get("text")) == item.text, "not what the deltas said"
            item.part, item.parts = "", item.parts + 1
            return
        stream, _, what = kind.rpartition(".")
        assert stream in needed, f"in a part of kind {item.part}"
        assert stream not in item.closed, "after its end"
        if what == "done":
            item.closed.add(stream)
            assert event.get("transcript", event.get("text", item.text)) == item.text, "not what the deltas said"
        elif stream == "output_audio":
            assert len(event["delta"]) < 1 << 20, "over a client's limit of 1 MiB"
            data = base64.b64decode(event["delta"], validate=True)
            assert data, "empty"
            response.sound += len(data)
        else:
            assert event["delta"], "empty"
            item.text += event["delta"]

    @staticmethod
    def _close(response: _Response, event: Event) -> None:
        item = response.open.pop(event["item"]["id"])
        assert event["output_index"] == item.index, "wrong output_index"
        assert item.left_conversation != response.aside, "before conversation.item.done"
        assert not item.part, "its part is open"
        assert event["item"]["status"] in ("completed", "incomplete")
        if item.kind == "message":
            assert item.parts == 1, "without a part"
            content = event["item"]["content"][0]
            assert content.get("transcript", content.get("text")) == item.text, "not what the deltas said"
        else:
            assert "arguments" in item.closed, "before the done of its arguments"
            assert event["item"]["arguments"] == item.text, "not what the deltas said"
        response.output.append(item.id)
