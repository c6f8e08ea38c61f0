"""What was said in a conversation, as the chat model sees it: the person's words, and what they heard of the replies.

It keeps roles in an order that every template takes. It knows nothing of epochs, samples or time.
"""

from __future__ import annotations

from dataclasses import replace

from voxlane.engine.api import ChatMessage, ToolUse

MAX_CHARS = 24_000
"""History beyond this is forgotten, oldest first: some 6,000 tokens, within the context of every model served."""


class History:
    """The messages of one conversation, without the instructions."""

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """Everything that is remembered."""
        return tuple(self._messages)

    def user(self, text: str) -> None:
        """Add what the person said; two turns without a reply between them are one message."""
        last = self._messages[-1] if self._messages else None
        if last is not None and last.role == "user":
            self._messages[-1] = replace(last, content=f"{last.content} {text}")
        else:
            self._messages.append(ChatMessage("user", text))
        self._forget()

    def assistant(self, heard: str, calls: tuple[ToolUse, ...] = ()) -> None:
        """Add what was heard of a reply, and the tools it called; a reply nobody heard leaves no trace."""
        heard = heard.strip()
        if not heard and not calls:
            return
        last = self._messages[-1] if self._messages else None
        if last is not None and last.role == "assistant" and not last.tool_calls and not calls:
            self._messages[-1] = replace(last, content=f"{last.content} {heard}")
        else:
            self._messages.append(ChatMessage("assistant", heard, tool_calls=calls))

    def tool(self, call_id: str, output: str) -> None:
        """Add what a call brought, after the calls it belongs to and their earlier results."""
        for place in range(len(self._messages) - 1, -1, -1):  # ids of other servers' calls are not always unique
            if any(call.call_id == call_id for call in self._messages[place].tool_calls):
                while place + 1 < len(self._messages) and self._messages[place + 1].role == "tool":
                    place += 1  # results stand in the order they came
                self._messages.insert(place + 1, ChatMessage("tool", output, call_id=call_id))
                return

    def prompt(self, instructions: str, saying: str = "") -> tuple[ChatMessage, ...]:
        """Return what the model is asked: instructions, history, and what the person is `saying` right now."""
        messages = list(self._messages)
        if saying:
            if messages and messages[-1].role == "user":
                messages[-1] = replace(messages[-1], content=f"{messages[-1].content} {saying}")
            else:
                messages.append(ChatMessage("user", saying))
        opening = [ChatMessage("system", instructions)] if instructions else []
        return (*opening, *messages)

    def shorten(self) -> None:
        """Forget half of it: it was too long for the model."""
        self._forget(sum(len(message.content) for message in self._messages) // 2)

    def _forget(self, most: int = MAX_CHARS) -> None:
        """Drop the oldest exchanges, each with all that answers it, until the rest is short enough."""
        size = sum(len(message.content) for message in self._messages)
        while size > most:
            turns = [place for place, message in enumerate(self._messages) if message.role == "user"]
            if len(turns) < 2:
                if turns:  # what was said last counts most
                    last = self._messages[turns[0]]
                    self._messages[turns[0]] = replace(last, content=last.content[-most:])
                return
            size -= sum(len(message.content) for message in self._messages[: turns[1]])
            del self._messages[: turns[1]]
