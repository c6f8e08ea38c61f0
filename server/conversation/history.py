"""What is remembered of a conversation: items in their order, and what the chat model is shown of them.

The model is shown the last exchanges, as many as a budget of tokens allows, roles in an order that every template
takes, and each call's result behind it. An exchange is what the person said with all that answers it; it is shown whole
or not at all. When the budget is spent the oldest exchanges go until half of it is free again: each time the model has
to read everything anew, so it must not happen in every turn. What the person said of themselves there stays, behind the
instructions. It knows nothing of epochs, samples or time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from voxlane.engine.api import ChatMessage, Tool, ToolUse
from voxlane.server.conversation.memory import RememberedFacts
from voxlane.server.conversation.values import Item

HISTORY_TOKENS = 2000
"""What the model is shown, unless told otherwise: some ten minutes of talk, which two cores read in a few seconds."""

ITEM_TOKENS = 6
"""What a template writes around a message."""

TURN_SHARE = 8
"""One part in so many of the budget is left free after a reply, for the next turn: exchanges go while nobody waits."""

MAX_CHARS = 64_000
"""Text that is remembered, shown or not: what is beyond is forgotten, oldest first."""

MAX_ITEMS = 1000
"""And so many items, be they empty."""

EARLIER = "The person said earlier: "


class TokenCount:
    """How many tokens a text has, as far as prompts before it have shown: the server has no tokenizer."""

    LEAST, FIRST, MOST = 1.0, 3.0, 6.0
    """Characters per token: of a vocabulary of bytes; before anything is known, below what English has; of any text."""

    def __init__(self) -> None:
        self._ratio = self.FIRST

    def of(self, characters: int) -> int:
        """Return how many tokens so many characters are likely to be."""
        return math.ceil(characters / self._ratio)

    def learn(self, characters: int, tokens: int) -> None:
        """Take it that so many characters were so many tokens: at once if that is more than expected, else slowly."""
        if characters <= 0 or tokens <= 0:
            return
        found = min(max(characters / tokens, self.LEAST), self.MOST)
        self._ratio = min(found, self._ratio + (found - self._ratio) / 4)


def turn_item(session: str, turn: int) -> str:
    """Return the id under which a turn is remembered."""
    return f"item_{session.rpartition('-')[2]}_t{turn}"


def reply_item(session: str, epoch: int) -> str:
    """Return the id under which a reply is remembered."""
    return f"item_{session.rpartition('-')[2]}_r{epoch}"


class History:
    """The items of one conversation, without the instructions."""

    def __init__(self, tokens: int = HISTORY_TOKENS, context_tokens: int = 0) -> None:
        """Show the model at most so many tokens of it; `context_tokens` is all that it holds, 0: not known."""
        self._items: dict[str, Item] = {}  # in their order
        self._hidden: set[str] = set()  # those the model is no longer shown
        self._memory = RememberedFacts()
        self._count = TokenCount()
        self._tokens = self._budget = tokens
        self._context = context_tokens

    @property
    def items(self) -> tuple[Item, ...]:
        """Everything that is remembered."""
        return tuple(self._items.values())

    @property
    def shown(self) -> tuple[Item, ...]:
        """What the model is shown of it."""
        return tuple(item for name, item in self._items.items() if name not in self._hidden)

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """Everything that is remembered, as messages."""
        return as_messages(self._items.values())

    @property
    def facts(self) -> str:
        """What the person said of themselves in exchanges that are not shown any more."""
        return self._memory.text

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
        self._settle(item)
        return before

    def fill(self, name: str, text: str, *, whole: bool = True) -> None:
        """Set an item's words, if it is still remembered."""
        if name in self._items:
            self._items[name] = replace(self._items[name], text=text, whole=whole)
            self._settle(self._items[name])

    def drop(self, name: str) -> None:
        """Forget an item, if it is remembered, and what it told of the person."""
        self._items.pop(name, None)
        self._hidden.discard(name)
        self._memory.forget(name)

    def prompt(self, instructions: str, saying: str = "") -> tuple[ChatMessage, ...]:
        """Return what the model is asked: instructions, history, and what the person is `saying` right now."""
        return prompt_of(self.shown, self.told(instructions), saying)

    def told(self, instructions: str) -> str:
        """Return instructions with what is known of the person behind them."""
        return "\n".join(filter(None, (instructions, EARLIER + self.facts if self.facts else "")))

    def learn(self, characters: int, tokens: int) -> None:
        """Take it that a prompt of so many characters had so many tokens."""
        self._count.learn(characters, tokens)

    def make_room(self, characters: int, reply_tokens: int) -> None:
        """Show no more than the model holds beside so many characters of instructions and a reply of so many tokens."""
        if self._context:
            room = self._context - self._count.of(characters + len(EARLIER + self.facts)) - reply_tokens
            self._budget = max(min(self._tokens, room), 0)
            self._hide(self._budget)

    def shorten(self) -> None:
        """Show half as much: it was too long for the model."""
        characters = sum(len(item.text) for item in self.shown)
        self._hide_until(lambda: sum(len(item.text) for item in self.shown) <= characters // 2)
        self._cut(characters // 2, self.shown)

    # ---- forgetting

    def _settle(self, changed: Item) -> None:
        """Keep to the budget and to what may be remembered at all, an item having been placed or filled."""
        if changed.id in self._hidden and changed.kind == "user":  # its words came late
            self._memory.note(changed.id, changed.text)
        spare = self._budget // TURN_SHARE if changed.kind == "assistant" and changed.text else 0
        self._hide(self._budget - spare)
        self._forget()

    def _hide(self, most: int) -> None:
        """If more than so many tokens are shown, hide the oldest exchanges until half of the budget is free."""
        if self._shown_tokens() > most:
            self._hide_until(lambda: self._shown_tokens() <= self._budget // 2)

    def _hide_until(self, enough: Callable[[], bool]) -> None:
        """Hide the oldest exchanges one by one, and of the last what was said before the person's last words."""
        *before, last = exchanges(self.shown)
        spoken = [place for place, item in enumerate(last) if item.kind == "user"]
        for exchange in [*before, *(last[start:end] for start, end in pairwise([0, *spoken[1:]]))]:
            if enough():
                break
            for item in exchange:
                self._hidden.add(item.id)
                if item.kind == "user":
                    self._memory.note(item.id, item.text)

    def _shown_tokens(self) -> int:
        return sum(ITEM_TOKENS + self._count.of(len(item.text)) for item in self.shown if item.text)

    def _forget(self) -> None:
        """Keep what is remembered within bounds: the oldest goes first, exchange by exchange."""
        while len(self._items) > MAX_ITEMS or sum(len(item.text) for item in self._items.values()) > MAX_CHARS:
            found = exchanges(self.items)
            if len(found) > 1:
                self._lose(found[0])
            elif len(self._items) > MAX_ITEMS:
                self._lose(self.items[:1])
            else:
                self._cut(MAX_CHARS, self.items)

    def _lose(self, items: Iterable[Item]) -> None:
        for item in items:
            if item.kind == "user" and item.id not in self._hidden:
                self._memory.note(item.id, item.text)
            del self._items[item.id]
            self._hidden.discard(item.id)

    def _cut(self, most: int, items: Sequence[Item]) -> None:
        """Shorten a single exchange to so many characters: what it holds beside the person's words goes first."""
        while sum(len(item.text) for item in items) > most:
            longest, half = max(items, key=lambda item: len(item.text)), most // 2
            if len(longest.text) <= half:
                spoken = [item for item in items if item.text]
                self._lose([next((item for item in spoken if item.kind != "user"), spoken[0])])
            elif longest.kind == "call":  # a part of its arguments would be no arguments
                self._lose([longest])
            else:  # of what was said, the last counts most
                end = len(longest.text)
                kept = longest.text[end - half :] if longest.kind == "user" else longest.text[:half]
                self._items[longest.id] = replace(longest, text=kept)
            items = [self._items[item.id] for item in items if item.id in self._items]


def exchanges(items: Sequence[Item]) -> list[list[Item]]:
    """Return items cut before each stretch of the person's words; system messages at the very beginning are left out.

    Those are instructions of a client's own, which hold for all of it.
    """
    found: list[list[Item]] = [[]]
    opening, answered = True, False  # nothing but system messages so far; the person's last words have an answer
    for item in items:
        if opening and item.kind == "system":
            continue
        opening = False
        if item.kind == "user":
            if answered:
                found.append([])
            answered = False
        elif item.text or item.kind in ("call", "result"):
            answered = any(one.kind == "user" for one in found[-1])
        found[-1].append(item)
    return found


def characters_of(messages: Iterable[ChatMessage], tools: Iterable[Tool] = ()) -> int:
    """Return how many characters of a prompt are not the template's."""
    said = sum(
        len(message.content) + sum(len(use.name) + len(use.arguments) for use in message.tool_calls)
        for message in messages
    )
    return said + sum(len(tool.name) + len(tool.description) + len(tool.parameters) for tool in tools)


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
