"""What is remembered of a conversation: items in their order, and what the chat model is shown of them.

The model is shown roles in an order that every template takes, and each call's result behind it. It knows nothing of
epochs, samples or time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from voxlane.engine.api import ChatMessage, ToolUse
from voxlane.server.conversation.values import Item

MAX_CHARS = 24_000
"""What is beyond this is forgotten, oldest first: some 6,000 tokens, within the context of every model served."""

MAX_ITEMS = 1000
"""And so many items, be they empty."""


def turn_item(session: str, turn: int) -> str:
    """Return the id under which a turn is remembered."""
    return f"item_{session.rpartition('-')[2]}_t{turn}"


def reply_item(session: str, epoch: int) -> str:
    """Return the id under which a reply is remembered."""
    return f"item_{session.rpartition('-')[2]}_r{epoch}"


class History:
    """The items of one conversation, without the instructions."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}  # in their order

    @property
    def items(self) -> tuple[Item, ...]:
        """Everything that is remembered."""
        return tuple(self._items.values())

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """What the model is shown of it."""
        return as_messages(self._items.values())

    def __contains__(self, name: str) -> bool:
        return name in self._items

    def get(self, name: str) -> Item | None:
        """Return an item, None if there is none of this id."""
        return self._items.get(name)

    def place(self, item: Item, after: str | None = None) -> str:
        """Remember an item behind another, None: at the end, "": as the first; return the id of the one before it."""
        names = list(self._items)
        place = len(names) if after is None else (names.index(after) + 1 if after else 0)
        if place == len(names):
            self._items[item.id] = item
        else:
            rest = {name: self._items.pop(name) for name in names[place:]}
            self._items |= {item.id: item} | rest
        before = names[place - 1] if place else ""
        self._forget()
        return before

    def fill(self, name: str, text: str, *, whole: bool = True) -> None:
        """Set an item's words, if it is still remembered."""
        if name in self._items:
            self._items[name] = replace(self._items[name], text=text, whole=whole)
            self._forget()

    def drop(self, name: str) -> None:
        """Forget an item, if it is remembered."""
        self._items.pop(name, None)

    def prompt(self, instructions: str, saying: str = "") -> tuple[ChatMessage, ...]:
        """Return what the model is asked: instructions, history, and what the person is `saying` right now."""
        return prompt_of(self._items.values(), instructions, saying)

    def shorten(self) -> None:
        """Forget half of it: it was too long for the model."""
        self._forget(sum(len(item.text) for item in self._items.values()) // 2)

    def _forget(self, most: int = MAX_CHARS) -> None:
        """Drop the oldest exchanges, each with all that answers it, until the rest is short enough."""
        while len(self._items) > MAX_ITEMS:
            del self._items[next(iter(self._items))]
        while sum(len(item.text) for item in self._items.values()) > most:
            items = list(self._items.values())
            turns = [place for place, item in enumerate(items) if item.kind == "user" and item.text]
            if len(turns) > 1:
                for item in items[: turns[1]]:
                    del self._items[item.id]
                continue
            longest, half = max(items, key=lambda item: len(item.text)), most // 2
            if len(longest.text) <= half:
                del self._items[next(item.id for item in items if item.text and item.kind != "user")]
            elif longest.kind == "call":  # a part of its arguments would be no arguments
                del self._items[longest.id]
            else:  # of what was said, the last counts most
                end = len(longest.text)
                kept = longest.text[end - half :] if longest.kind == "user" else longest.text[:half]
                self._items[longest.id] = replace(longest, text=kept)


def prompt_of(items: Iterable[Item], instructions: str, saying: str = "") -> tuple[ChatMessage, ...]:
    """Return what a model is asked: instructions, items, and what the person is `saying` right now."""
    opening = [Item("", "system", instructions)] if instructions else []
    closing = [Item("", "user", saying)] if saying else []
    return as_messages([*opening, *items, *closing])


def as_messages(items: Iterable[Item]) -> tuple[ChatMessage, ...]:
    """Return items as a model is shown them: without empty ones, one message for one voice, results behind calls."""
    kept = [item for item in items if item.kind in ("call", "result") or item.text.strip()]
    results = [item for item in kept if item.kind == "result"]
    groups: list[tuple[ChatMessage, list[ChatMessage]]] = []  # a message, and the results of its calls
    for item in kept:
        last = groups[-1][0] if groups else None
        match item.kind:
            case "result":
                continue
            case "call":
                call = ToolUse(item.call_id, item.name, item.text)
                if (
                    last is None
                    or last.role != "assistant"
                    or any(use.call_id == call.call_id for use in last.tool_calls)
                ):
                    groups.append((ChatMessage("assistant", ""), []))
                message, found = groups[-1]
                result = next((one for one in results if one.call_id == call.call_id), None)
                if result is not None:  # ids of other servers' calls are not always unique
                    results.remove(result)
                    found.append(ChatMessage("tool", result.text, call_id=call.call_id))
                groups[-1] = (replace(message, tool_calls=(*message.tool_calls, call)), found)
            case kind if last is not None and last.role == kind and not last.tool_calls:
                groups[-1] = (replace(last, content=f"{last.content} {item.text.strip()}"), groups[-1][1])
            case kind:
                groups.append((ChatMessage(kind, item.text.strip() if kind != "system" else item.text), []))
    return tuple(message for first, found in groups for message in (first, *found))
