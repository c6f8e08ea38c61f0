"""One response of OpenAI Realtime, from `response.created` to `response.done`.

A reply's events in, the dialect's events out, in the order that clients rely on: an item is added before its other
events, done after them, and the response is done after all its items.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from voxlane.server.conversation.server_events import Fault, Speech, Thought, ToolCalled
from voxlane.server.protocols.dialect import Packet
from voxlane.server.protocols.openai_realtime.items import (
    KnownItems,
    Shown,
    shown_call,
    shown_message,
    spoken_part,
    written_part,
)
from voxlane.server.protocols.openai_realtime.packets import Event, packet
from voxlane.server.protocols.openai_realtime.session import FORMATS, RealtimeSession, shown_format
from voxlane.server.protocols.sound import Loudspeaker, SoundPiece

DELTA_BYTES = 256 * 1024
"""Sound in one delta: a third more as base64, and well below the 1 MiB that one client accepts in a message."""


@dataclass(frozen=True, slots=True)
class ResponseSettings:
    """The settings of a response before it begins."""

    session: RealtimeSession  # with the response's own overrides
    speaks: bool
    metadata: Mapping[str, str] | None = None
    aside: bool = False


class Response:
    """A running response."""

    def __init__(
        self, name: str, item: str, conversation: str, settings: ResponseSettings, known: KnownItems, rate: int
    ) -> None:
        self.name = name
        self.item = item
        self.aside = settings.aside
        self.cancelled = False  # the client ended it, not the person's voice
        self.fault: Fault | None = None
        self._settings = settings
        self._conversation = conversation
        self._known = known
        self._form = FORMATS[settings.session.output_format]
        self._loudspeaker = Loudspeaker(self._form, rate)
        self._text = ""
        self._told = 0  # characters of it that the client has: of a spoken reply, those whose sound was sent
        self._begun = False  # its message item was added
        self._calls: list[ToolCalled] = []
        self._thought: Thought | None = None
        self._output: list[Shown] = []

    # ---- events

    def created(self) -> list[Packet]:
        """Return `response.created`."""
        return [packet("response.created", response=self._shown("in_progress", None))]

    def say(self, text: str) -> list[Packet]:
        """Return the packets for more text; that of a spoken reply comes with its sound."""
        packets = [] if self._begun else self._begin()
        self._text += text
        return packets if self._settings.speaks else [*packets, *self._tell(len(self._text))]

    def sound(self, speech: Speech) -> list[Packet]:
        """Return the packets for more sound, and for the words that begin in it."""
        return [*self.words(speech), *(one for piece in self._loudspeaker.push(speech) for one in self._deltas(piece))]

    def words(self, speech: Speech) -> list[Packet]:
        """Return the packet for the words that begin in more sound; over WebRTC the sound itself is on a track."""
        return self._tell(max((word.end for word in speech.words), default=0))

    def _tell(self, end: int) -> list[Packet]:
        """Return the packet for the text up to a character."""
        delta = self._text[self._told : end]
        if not delta:
            return []
        self._told += len(delta)
        kind = "output_audio_transcript" if self._settings.speaks else "output_text"
        return [self._of_part(f"response.{kind}.delta", delta=delta)]

    def call(self, called: ToolCalled) -> list[Packet]:
        """Keep a tool call for the end: clients answer it at once, and may not do so before the response is done."""
        self._calls.append(called)
        return []

    def think(self, thought: Thought) -> list[Packet]:
        """Note its token counts."""
        self._thought = thought
        return []

    def finish(self, epoch: int, samples: int) -> list[Packet]:
        """Return its end after all text and sound."""
        rest = self._loudspeaker.finish(epoch, samples)[0] if self._settings.speaks else []
        packets = [*self._tell(len(self._text)), *(one for piece in rest for one in self._deltas(piece))]
        if self.fault is not None:
            error = {"type": "server_error", "code": self.fault.code, "message": self.fault.message}
            return packets + self._end("failed", {"type": "failed", "error": error})
        if self._thought is not None and self._thought.reason == "length":
            return packets + self._end("incomplete", {"type": "incomplete", "reason": "max_output_tokens"})
        return packets + self._end("completed", None)

    def cut(self) -> list[Packet]:
        """Return its end after an interruption: text whose sound was not sent is not part of it."""
        reason = "client_cancelled" if self.cancelled else "turn_detected"
        return self._end("cancelled", {"type": "cancelled", "reason": reason})

    # ---- its message

    def _begin(self) -> list[Packet]:
        self._begun = True
        empty = shown_message(self.item, "assistant", [], "in_progress")
        return [*self._added(empty), self._of_part("response.content_part.added", part=self._part(""))]

    def _close_message(self, status: str) -> list[Packet]:
        spoken, text = self._settings.speaks, self._text[: self._told]
        content = spoken_part(text) if spoken else written_part(text)
        item = shown_message(self.item, "assistant", [content], status)
        if spoken:
            dones = [
                self._of_part("response.output_audio.done"),
                self._of_part("response.output_audio_transcript.done", transcript=text),
            ]
        else:
            dones = [self._of_part("response.output_text.done", text=text)]
        return [*dones, self._of_part("response.content_part.done", part=self._part(text)), *self._done(item)]

    def _part(self, text: str) -> Shown:
        return {"type": "audio", "transcript": text} if self._settings.speaks else {"type": "text", "text": text}

    def _deltas(self, piece: SoundPiece) -> list[Packet]:
        packets = []
        wide = 2 if self._form.codec == "pcm16" else 1
        for at in range(0, len(piece.data), DELTA_BYTES):
            data = piece.data[at : at + DELTA_BYTES]
            event = self._of_part("response.output_audio.delta", delta=base64.b64encode(data).decode()).fields
            end, seconds = piece.offset + (at + len(data)) // wide, len(data) / wide / self._form.rate
            packets.append(Packet(event, piece.epoch, end, seconds))
        return packets

    # ---- its calls

    def _call_packets(self, called: ToolCalled, place: int) -> list[Packet]:
        name = called.item or f"{self.item}_c{place}"
        started = shown_call(name, called.call_id, called.name, "", "in_progress")
        item = shown_call(name, called.call_id, called.name, called.arguments)
        packets = self._added(started)
        common = {**self._where(name), "call_id": called.call_id}
        whole = {"name": called.name, "arguments": called.arguments}
        return [
            *packets,
            packet("response.function_call_arguments.delta", **common, delta=called.arguments),
            packet("response.function_call_arguments.done", **common, **whole),
            *self._done(item),
        ]

    # ---- its items and its end

    def _added(self, item: Shown) -> list[Packet]:
        packets = [packet("response.output_item.added", **self._in_output(item))]
        return packets + self._in_conversation("conversation.item.added", item, self._known.add)

    def _done(self, item: Shown) -> list[Packet]:
        packets = self._in_conversation("conversation.item.done", item, self._known.before)
        packets.append(packet("response.output_item.done", **self._in_output(item)))
        self._output.append(item)
        return packets

    def _in_conversation(self, kind: str, item: Shown, before: Callable[[str], str | None]) -> list[Packet]:
        return [] if self.aside else [packet(kind, previous_item_id=before(item["id"]), item=item)]

    def _in_output(self, item: Shown) -> Event:
        return {"response_id": self.name, "output_index": len(self._output), "item": item}

    def _where(self, item: str) -> Event:
        return {"response_id": self.name, "item_id": item, "output_index": len(self._output)}

    def _of_part(self, kind: str, **fields: Any) -> Packet:
        return packet(kind, **self._where(self.item), content_index=0, **fields)

    def _end(self, status: str, details: Event | None) -> list[Packet]:
        whole = "completed" if status == "completed" else "incomplete"
        packets = self._close_message(whole) if self._begun else []
        for place, called in enumerate(self._calls):
            packets += self._call_packets(called, place)
        done = packet("response.done", response=self._shown(status, details))
        # This server has no limits per minute, but some clients wait for the event.
        return [*packets, done, packet("rate_limits.updated", rate_limits=[])]

    def _shown(self, status: str, details: Event | None) -> Event:
        session = self._settings.session
        spoken = {"format": shown_format(session.output_format), "voice": session.voice}
        return {
            "object": "realtime.response",
            "id": self.name,
            "status": status,
            "status_details": details,
            "output": list(self._output),
            "conversation_id": None if self.aside else self._conversation,
            "output_modalities": ["audio"] if self._settings.speaks else ["text"],
            "max_output_tokens": session.max_output_tokens,
            "audio": {"output": spoken},
            "usage": None if status == "in_progress" else self._usage(),
            "metadata": self._settings.metadata,
        }

    def _usage(self) -> Event:
        """Return its token counts; our models count text tokens only."""
        thought = self._thought
        given, cached, made = (
            (thought.prompt_tokens, thought.cached_tokens, thought.output_tokens) if thought else (0, 0, 0)
        )
        return {
            "total_tokens": given + made,
            "input_tokens": given,
            "output_tokens": made,
            "input_token_details": {
                "text_tokens": given,
                "audio_tokens": 0,
                "image_tokens": 0,
                "cached_tokens": cached,
                "cached_tokens_details": {"text_tokens": cached, "audio_tokens": 0, "image_tokens": 0},
            },
            "output_token_details": {"text_tokens": made, "audio_tokens": 0},
        }
