"""The JSON of OpenAI Realtime's conversation items: read, written, and in the order in which a client knows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from voxlane.server.conversation.values import TEXT_CHARACTERS, Item, TypedText
from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.openai_realtime.values import FunctionName, ItemName, Wrong, object_text, read, sound
from voxlane.server.protocols.sound import Microphone

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


class _AnyItem(Struct):
    type: Any = None
    id: ItemName | None = None


class _Part(Struct):
    type: Any = None
    text: TypedText | None = None
    audio: str | None = None
    transcript: TypedText | None = None


class _Message(Struct):
    role: Literal["user", "system", "assistant"]
    content: Annotated[list[_Part], Meta(max_length=64)]


class _Call(Struct):
    name: FunctionName
    arguments: TypedText
    call_id: ItemName | None = None


class _Result(Struct):
    call_id: ItemName
    output: Annotated[str, Meta(max_length=32_000)]


def read_item(param: str, value: object, usual_id: str, form: AudioFormat) -> tuple[Item, bytes]:
    """Return an item, and its sound at 16 kHz if it must be transcribed; raise Wrong if it is not valid."""
    given = read(_AnyItem, value, param)
    name = usual_id if given.id is None else given.id
    match given.type:
        case "message":
            return _message(param, read(_Message, value, param), name, form)
        case "function_call":
            call = read(_Call, value, param)
            arguments = object_text(f"{param}.arguments", call.arguments)
            return Item(name, "call", arguments, call.name, name if call.call_id is None else call.call_id), b""
        case "function_call_output":
            result = read(_Result, value, param)
            return Item(name, "result", result.output, call_id=result.call_id), b""
        case None:
            raise Wrong(f"{param}.type", "is missing", "missing_required_parameter")
        case _:
            raise Wrong(f"{param}.type", "must be message, function_call or function_call_output")


def _message(param: str, given: _Message, name: str, form: AudioFormat) -> tuple[Item, bytes]:
    role = given.role
    written, said, pcm = [], [], b""
    for place, part in enumerate(given.content):
        at = f"{param}.content[{place}]"
        if part.type in _TEXTS[role]:
            written.append(_needed(f"{at}.text", part.text))
        elif part.type not in _SOUNDS.get(role, ()):
            raise Wrong(f"{at}.type", f"must be {_TEXTS[role][0]} or {_SOUNDS.get(role, _TEXTS[role])[0]}")
        elif part.audio is not None and role == "user":
            pcm += _heard(f"{at}.audio", part.audio, form)
        else:
            said.append(_needed(f"{at}.{'audio' if role == 'user' else 'transcript'}", part.transcript))
    if pcm and (written or said):
        raise Wrong(f"{param}.content", "must be text or audio, not both", "unsupported_parameter")
    words = "\n".join([*written, *said])
    if len(words) > TEXT_CHARACTERS:
        raise Wrong(f"{param}.content", f"must have at most {TEXT_CHARACTERS} characters")
    spoken = bool(pcm or said) and not written
    return Item(name, role, words, spoken=spoken, whole=not pcm), pcm


def _needed(param: str, value: str | None) -> str:
    if value is None:
        raise Wrong(param, "is missing", "missing_required_parameter")
    return value


def _heard(param: str, value: str, form: AudioFormat) -> bytes:
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
