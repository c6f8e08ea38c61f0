"""The history of a conversation: items in order, and which of them the chat model is shown.

The model is shown the last exchanges within a token budget, with roles in an order that every template accepts and each
result behind its call. An exchange is the person's words and everything that answers them; it is shown whole or not at
all. When the budget is spent, the oldest exchanges are hidden until half of it is free: the model then has to prefill
everything again, so this must not happen in every turn. Facts about the person from hidden exchanges stay, behind the
instructions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from msgspec import structs

from voxlane.engine.api import LISTEN_RATE, ChatMessage, Tool, ToolUse
from voxlane.server.conversation.replies.memory import RememberedFacts
from voxlane.server.conversation.replies.saved import SavedHistory
from voxlane.server.conversation.values import Item

HISTORY_TOKENS = 2000
"""The default budget: some ten minutes of talk, which two cores prefill in a few seconds."""

ITEM_TOKENS = 6
"""Tokens that a template writes around a message."""

TURN_SHARE = 8
"""After a reply 1/8 of the budget stays free for the next turn: exchanges are hidden while the person does not wait."""

MAX_CHARS = 64_000
"""Characters of text that are remembered, shown or not; the oldest items beyond that are forgotten."""

MAX_ITEMS = 1000
"""Items that are remembered, empty ones included."""

SOUND_BYTES = 8 << 20
"""Sound of past turns that a speech-to-speech model is told: four minutes. It fits one message to the engine twice."""

Frames = tuple[tuple[int, ...], ...]
"""An answer's pieces, as the engine's Pieces tells them."""

EARLIER = "The person said earlier: "

NOTHING_SAID = "…"
"""What the model is told that the person said, where it speaks up again after a silence."""


class TokenCount:
    """Estimates how many tokens a text has from earlier prompts: the server has no tokenizer."""

    LEAST, FIRST, MOST = 1.0, 3.0, 6.0
    """Characters per token: the least, with a vocabulary of bytes; the first guess, below that of English; the most."""

    def __init__(self) -> None:
        self._ratio = self.FIRST

    @property
    def ratio(self) -> float:
        """Characters per token, as far as is known."""
        return self._ratio

    def restore(self, ratio: float) -> None:
        """Take back what `ratio` was."""
        if ratio:
            self._ratio = min(max(ratio, self.LEAST), self.MOST)

    def of(self, characters: int) -> int:
        """Return how many tokens so many characters probably are."""
        return math.ceil(characters / self._ratio)

    def learn(self, characters: int, tokens: int) -> None:
        """Learn from a prompt of known size: at once if it had more tokens than expected, else slowly."""
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

    def __init__(self, tokens: int = HISTORY_TOKENS, context_tokens: int = 0, sound_rows_s: float = 0.0) -> None:
        """Show the model at most `tokens` of it; `context_tokens` is the model's context length, 0: not known.

        A speech-to-speech model has `sound_rows_s` rows, which are as long as tokens, for a second of sound.
        """
        self._items: dict[str, Item] = {}  # in order
        self._hidden: set[str] = set()  # ids of items that the model is no longer shown
        self._memory = RememberedFacts()
        self._count = TokenCount()
        self._tokens = self._budget = tokens
        self._context = context_tokens
        self._sound_rows_s = sound_rows_s
        self.changes = 0  # it rises with every change

    @property
    def items(self) -> tuple[Item, ...]:
        """All items."""
        return tuple(self._items.values())

    @property
    def shown(self) -> tuple[Item, ...]:
        """The items that the model is shown."""
        return tuple(item for name, item in self._items.items() if name not in self._hidden)

    def saved(self) -> SavedHistory:
        """Return everything that is remembered, in words alone."""
        items = tuple(_words_alone(item) for item in self.items)
        return SavedHistory(items, tuple(sorted(self._hidden)), self._memory.saved(), self._count.ratio)

    def restore(self, saved: SavedHistory) -> None:
        """Take back what `saved` has returned, without turns whose words were never known."""
        kept = (item for item in saved.items if item.kind != "user" or item.text)
        self._items = {item.id: item for item in kept}
        self._hidden = {name for name in saved.hidden if name in self._items}
        self._memory.restore(saved.facts)
        self._count.restore(saved.ratio)
        self.changes += 1

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """All items as messages."""
        return as_messages(self._items.values())

    @property
    def facts(self) -> str:
        """What the person said about themselves in exchanges that are no longer shown."""
        return self._memory.text

    def __contains__(self, name: str) -> bool:
        return name in self._items

    def get(self, name: str) -> Item | None:
        """Return an item, None if no item has this id."""
        return self._items.get(name)

    def place(self, item: Item, after: str | None = None) -> str:
        """Insert an item behind the item `after`, None: at the end, "": first; return the id of the item before it."""
        names = list(self._items)
        place = len(names) if after is None else (names.index(after) + 1 if after else 0)
        if place == len(names):
            self._items[item.id] = item
        else:
            rest = {name: self._items.pop(name) for name in names[place:]}
            self._items |= {item.id: item} | rest
        before = names[place - 1] if place else ""
        self._enforce_limits(item)
        return before

    def fill(self, name: str, text: str, *, whole: bool = True, sound: bytes = b"", pieces: Frames = ()) -> None:
        """Set an item's words, and what it is for a speech-to-speech model, if it is still remembered."""
        if name in self._items:
            hidden = name in self._hidden
            kept = (b"", ()) if hidden else (sound, pieces)
            self._items[name] = replace(self._items[name], text=text, whole=whole, sound=kept[0], pieces=kept[1])
            self._enforce_limits(self._items[name])

    def drop(self, name: str) -> None:
        """Forget an item, if it is remembered, and the facts it held about the person."""
        self.changes += 1
        self._items.pop(name, None)
        self._hidden.discard(name)
        self._memory.forget(name)

    def drop_unanswered(self, name: str) -> None:
        """Forget what the person said under this id, unless something answers it: it will be said again."""
        names = list(self._items)
        behind = [self._items[one] for one in names[names.index(name) + 1 :]] if name in self._items else []
        if not any(item.kind == "call" or (item.kind == "assistant" and item.text) for item in behind):
            self.drop(name)

    def prompt(self, instructions: str, saying: str = "") -> tuple[ChatMessage, ...]:
        """Return the prompt: instructions, history, and what the person is `saying` right now."""
        return prompt_of(self.shown, self.with_facts(instructions), saying)

    def spoken_prompt(self, instructions: str, saying: Item | None = None) -> tuple[ChatMessage, ...]:
        """Return the prompt of a speech-to-speech model; `saying` takes the place of an item with its id."""
        items = [item for item in self.shown if saying is None or item.id != saying.id]
        return spoken_prompt_of([*items, saying] if saying else items, self.with_facts(instructions))

    def with_facts(self, instructions: str) -> str:
        """Return the instructions with the facts about the person behind them."""
        return "\n".join(filter(None, (instructions, EARLIER + self.facts if self.facts else "")))

    def learn(self, characters: int, tokens: int) -> None:
        """Learn that a prompt of so many characters had so many tokens."""
        self._count.learn(characters, tokens)

    def make_room(self, characters: int, reply_tokens: int) -> None:
        """Hide exchanges that do not fit beside `characters` of instructions and a reply of `reply_tokens`."""
        if self._context:
            room = self._context - self._count.of(characters + len(EARLIER + self.facts)) - reply_tokens
            self._budget = max(min(self._tokens, room), 0)
            self._hide(self._budget)

    def shorten(self) -> None:
        """Show half as much: the prompt was too long for the model."""
        characters = sum(len(item.text) for item in self.shown)
        self._hide_until(lambda: sum(len(item.text) for item in self.shown) <= characters // 2)
        self._cut(characters // 2, self.shown)

    # ---- forgetting

    def _enforce_limits(self, changed: Item) -> None:
        """Keep within the budget and the limits after an item was placed or filled."""
        self.changes += 1
        if changed.id in self._hidden and changed.kind == "user":  # its words came after it was hidden
            self._memory.note(changed.id, changed.text)
        spare = self._budget // TURN_SHARE if changed.kind == "assistant" and changed.text else 0
        self._hide(self._budget - spare)
        self._forget()
        self._limit_sound()

    def _hide(self, most: int) -> None:
        """If more than `most` tokens are shown, hide the oldest exchanges until half of the budget is free."""
        if self._shown_tokens() > most:
            self._hide_until(lambda: self._shown_tokens() <= self._budget // 2)

    def _hide_until(self, enough: Callable[[], bool]) -> None:
        """Hide the oldest exchanges one by one; of the last exchange, only items before the person's last words."""
        *before, last = exchanges(self.shown)
        spoken = [place for place, item in enumerate(last) if item.kind == "user"]
        for exchange in [*before, *(last[start:end] for start, end in pairwise([0, *spoken[1:]]))]:
            if enough():
                break
            self.changes += 1
            for item in exchange:
                self._hidden.add(item.id)
                self._items[item.id] = _words_alone(item)
                if item.kind == "user":
                    self._memory.note(item.id, item.text)

    def _shown_tokens(self) -> int:
        return sum(ITEM_TOKENS + self._tokens_of(item) for item in self.shown if item.text or item.sound or item.pieces)

    def _tokens_of(self, item: Item) -> int:
        if item.sound:
            return math.ceil(len(item.sound) / 2 / LISTEN_RATE * self._sound_rows_s)
        return len(item.pieces) or self._count.of(len(item.text))

    def _limit_sound(self) -> None:
        """If there is more sound than SOUND_BYTES, keep the latest half of that; the turns before are words alone."""
        if sum(len(item.sound) for item in self._items.values()) > SOUND_BYTES:
            self._items = {item.id: item for item in with_latest_sound(self.items, SOUND_BYTES // 2)}

    def _forget(self) -> None:
        """Keep within MAX_ITEMS and MAX_CHARS: drop the oldest exchanges first."""
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
        """Shorten a single exchange to `most` characters; items that are not the person's words go first."""
        self.changes += 1
        while sum(len(item.text) for item in items) > most:
            longest, half = max(items, key=lambda item: len(item.text)), most // 2
            if len(longest.text) <= half:
                spoken = [item for item in items if item.text]
                self._lose([next((item for item in spoken if item.kind != "user"), spoken[0])])
            elif longest.kind == "call":  # truncated arguments are not valid JSON
                self._lose([longest])
            else:  # the end of what the person said counts most
                end = len(longest.text)
                kept = longest.text[end - half :] if longest.kind == "user" else longest.text[:half]
                self._items[longest.id] = replace(_words_alone(longest), text=kept)
            items = [self._items[item.id] for item in items if item.id in self._items]


def exchanges(items: Sequence[Item]) -> list[list[Item]]:
    """Return items split before each stretch of the person's words, without the system messages at the very beginning.

    Those are the client's own instructions, which hold for the whole conversation.
    """
    found: list[list[Item]] = [[]]
    opening, answered = True, False  # only system messages so far; the person's last words have an answer
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
    """Return how many characters of a prompt do not come from the template."""
    said = sum(
        len(message.content) + sum(len(use.name) + len(use.arguments) for use in message.tool_calls)
        for message in messages
    )
    return said + sum(len(tool.name) + len(tool.description) + len(tool.parameters) for tool in tools)


def _words_alone(item: Item) -> Item:
    return replace(item, sound=b"", pieces=()) if item.sound or item.pieces else item


def with_latest_sound(items: Sequence[Item], most: int) -> list[Item]:
    """Return items with at most `most` bytes of sound: the earlier ones are words alone."""
    found: list[Item] = []
    for item in reversed(items):
        most -= len(item.sound)
        found.append(item if most >= 0 else replace(item, sound=b""))
    return found[::-1]


def spoken_prompt_of(items: Sequence[Item], instructions: str) -> tuple[ChatMessage, ...]:
    """Return the prompt of a speech-to-speech model: what was said as sound where it is known, else as words.

    It has one system message, and knows no tools. It answers each time something that the person said.
    """
    heard = with_latest_sound(items, SOUND_BYTES)  # a client may name an item several times
    shown = [item for item in heard if item.sound or item.pieces or item.text.strip()]
    told = [instructions, *(item.text for item in shown if item.kind == "system")]
    opening = [ChatMessage("system", "\n".join(filter(None, told)))] if any(told) else []
    said = [
        ChatMessage(item.kind, item.text.strip(), sound=item.sound, pieces=item.pieces)
        for item in shown
        if item.kind in ("user", "assistant")
    ]
    talk = [*opening]
    for message in said:
        if message.role == "assistant" and talk and talk[-1].role == "assistant":
            talk.append(_SILENT)
        talk.append(message)
    return tuple(talk if talk and talk[-1].role == "user" else [*talk, _SILENT])


_SILENT = ChatMessage("user", NOTHING_SAID)


def prompt_of(items: Iterable[Item], instructions: str, saying: str = "") -> tuple[ChatMessage, ...]:
    """Return the prompt: instructions, items, and what the person is `saying` right now."""
    opening = [Item("", "system", instructions)] if instructions else []
    closing = [Item("", "user", saying)] if saying else []
    return as_messages([*opening, *items, *closing])


def as_messages(items: Iterable[Item]) -> tuple[ChatMessage, ...]:
    """Return items as messages: without empty items, adjacent ones of one role merged, results behind their calls."""
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
                if result is not None:  # call ids from other chat servers are not always unique
                    results.remove(result)
                    found.append(ChatMessage("tool", result.text, call_id=call.call_id))
                groups[-1] = (structs.replace(message, tool_calls=(*message.tool_calls, call)), found)
            case kind if last is not None and last.role == kind and not last.tool_calls:
                groups[-1] = (structs.replace(last, content=f"{last.content} {item.text.strip()}"), groups[-1][1])
            case kind:
                groups.append((ChatMessage(kind, item.text.strip() if kind != "system" else item.text), []))
    return tuple(message for first, found in groups for message in (first, *found))
