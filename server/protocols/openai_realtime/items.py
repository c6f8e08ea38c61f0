"""The JSON of OpenAI Realtime's conversation items: read, written, and in the order in which a client knows them."""

from __future__ import annotations

from typing import Any

from voxlane.server.conversation.values import Item
from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.openai_realtime.values import Wrong, choice, listing, mapping, object_text, sound, text
from voxlane.server.protocols.settings import TEXT_CHARACTERS
from voxlane.server.protocols.sound import Microphone

CONTENT_PARTS = 64
OUTPUT_CHARACTERS = 32_000
"""Of a tool's output."""

INPUT_ITEMS = 256
"""Items in a response's own input."""

KNOWN_ITEMS = 2000
"""Items whose order is kept: twice what a conversation remembers."""

Shown = dict[str, Any]

_TEXTS = {
    "user": ("input_text", "text"),
    "system": ("input_text", "text"),
    "assistant": ("output_text", "text", "input_text"),  # pipecat writes input_text
}
_SOUNDS = {"user": ("input_audio",), "assistant": ("output_audio", "audio")}


# ---- reading


def read_item(param: str, value: object, usual_id: str, form: AudioFormat) -> tuple[Item, bytes]:
    """Return an item, and its sound at 16 kHz if it must be transcribed; raise Wrong if it is not valid."""
    given = mapping(param, value)
    name = usual_id if given.get("id") is None else text(f"{param}.id", given["id"], least=1)
    match given.get("type"):
        case "message":
            return _message(param, given, name, form)
        case "function_call":
            called = text(f"{param}.name", given.get("name"), 64, least=1)
            arguments = object_text(f"{param}.arguments", given.get("arguments"), TEXT_CHARACTERS)
            call_id = name if given.get("call_id") is None else text(f"{param}.call_id", given["call_id"], least=1)
            return Item(name, "call", arguments, called, call_id), b""
        case "function_call_output":
            call_id = text(f"{param}.call_id", given.get("call_id"), least=1)
            output = text(f"{param}.output", given.get("output"), OUTPUT_CHARACTERS)
            return Item(name, "result", output, call_id=call_id), b""
        case None:
            raise Wrong(f"{param}.type", "is missing", "missing_required_parameter")
        case _:
            raise Wrong(f"{param}.type", "must be message, function_call or function_call_output")


def _message(param: str, given: Any, name: str, form: AudioFormat) -> tuple[Item, bytes]:
    role = choice(f"{param}.role", given.get("role"), _TEXTS)
    written, said, pcm = [], [], b""
    for place, value in enumerate(listing(f"{param}.content", given.get("content"), CONTENT_PARTS)):
        at = f"{param}.content[{place}]"
        part = mapping(at, value)
        kind = part.get("type")
        if kind in _TEXTS[role]:
            written.append(text(f"{at}.text", part.get("text"), TEXT_CHARACTERS))
        elif kind not in _SOUNDS.get(role, ()):
            raise Wrong(f"{at}.type", f"must be {_TEXTS[role][0]} or {_SOUNDS.get(role, _TEXTS[role])[0]}")
        elif part.get("audio") is not None and role == "user":
            pcm += _heard(f"{at}.audio", part["audio"], form)
        elif part.get("transcript") is not None:
            said.append(text(f"{at}.transcript", part["transcript"], TEXT_CHARACTERS))
        else:
            wanted = "audio" if role == "user" else "transcript"
            raise Wrong(f"{at}.{wanted}", "is missing", "missing_required_parameter")
    if pcm and (written or said):
        raise Wrong(f"{param}.content", "must be text or audio, not both", "unsupported_parameter")
    words = "\n".join([*written, *said])
    if len(words) > TEXT_CHARACTERS:
        raise Wrong(f"{param}.content", f"must have at most {TEXT_CHARACTERS} characters")
    spoken = bool(pcm or said) and not written
    return Item(name, role, words, spoken=spoken, whole=not pcm), pcm


def _heard(param: str, value: object, form: AudioFormat) -> bytes:
    try:
        return Microphone(form).push(sound(param, value))
    except BadMessage as error:
        raise Wrong(param, f"cannot be used: {error}") from error


# ---- writing


def shown_item(item: Item) -> Shown:
    """Return an item as JSON fields."""
    status = "completed"
    match item.kind:
        case "call":
            return shown_call(item.id, item.call_id, item.name, item.text)
        case "result":
            body = {"type": "function_call_output", "call_id": item.call_id, "output": item.text}
            return {"id": item.id, "object": "realtime.item", "status": status, **body}
        case "assistant":
            status = "completed" if item.whole else "incomplete"
            content = [spoken_part(item.text) if item.spoken else written_part(item.text)]
        case "user" if item.spoken:
            # One client crashes if the transcript key is missing.
            content = [{"type": "input_audio", "transcript": item.text if item.whole else None}]
        case _:
            content = [{"type": "input_text", "text": item.text}]
    return shown_message(item.id, item.kind, content, status)


def shown_message(name: str, role: str, content: list[Shown], status: str) -> Shown:
    """Return a message item."""
    return {
        "id": name,
        "object": "realtime.item",
        "type": "message",
        "status": status,
        "role": role,
        "content": content,
    }


def spoken_part(transcript: str) -> Shown:
    """Return the content part of a spoken reply."""
    return {"type": "output_audio", "transcript": transcript}


def written_part(words: str) -> Shown:
    """Return the content part of a written reply."""
    return {"type": "output_text", "text": words}


def shown_call(name: str, call_id: str, called: str, arguments: str, status: str = "completed") -> Shown:
    """Return a tool call item."""
    return {
        "id": name,
        "object": "realtime.item",
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": called,
        "arguments": arguments,
    }


# ---- order


class KnownItems:
    """The ids of the items that a client was told of, in order; other ids must not be sent to it."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str, after: str | None = None) -> str | None:
        """Put an item behind `after`, "": first, None or unknown: at the end; return the id before it."""
        if name in self._names:
            self._names.remove(name)
        place = len(self._names)
        if after == "":
            place = 0
        elif after in self._names:
            place = self._names.index(after) + 1
        self._names.insert(place, name)
        before = self._names[place - 1] if place else None
        if len(self._names) > KNOWN_ITEMS:
            del self._names[0]
        return before

    def before(self, name: str) -> str | None:
        """Return the id before an item."""
        place = self._names.index(name) if name in self._names else 0
        return self._names[place - 1] if place else None

    def drop(self, name: str) -> None:
        """Forget an item."""
        if name in self._names:
            self._names.remove(name)
