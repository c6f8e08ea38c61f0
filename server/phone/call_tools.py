"""The tools of a call: those that the telephone itself has, and the customer's own behind a URL. Pure.

The operator enables each built-in tool. The model chooses among names; numbers to transfer to come from the
configuration alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from voxlane.engine.api import Tool
from voxlane.server.conversation.server_events import ToolCalled
from voxlane.server.phone.tones import KEYS

MOST_DIGITS = 32
"""Keys that one call of send_digits may press."""

ENDING = '{"result": "The call ends after your words, unless the caller goes on."}'
"""The result of a tool that ends the call."""

SHORTEST_NAME, MOST_OTHER_WORDS = 3, 3
"""The letters of a destination that may be named among other words, and how many these may be."""

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class HangUp:
    """End the call when everything was said."""


@dataclass(frozen=True, slots=True)
class TransferTo:
    """Connect the caller with this destination when everything was said."""

    name: str
    destination: str


@dataclass(frozen=True, slots=True)
class SendKeys:
    """Play the tones of these keys."""

    keys: str


@dataclass(frozen=True, slots=True)
class CollectKeys:
    """Wait for the keys that the caller presses."""


@dataclass(frozen=True, slots=True)
class CustomerTool:
    """Ask the customer's server."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class WrongCall:
    """The model's call cannot be followed; the text says why, to the model."""

    reason: str


ToolAction = HangUp | TransferTo | SendKeys | CollectKeys | CustomerTool | WrongCall


class _TransferArguments(msgspec.Struct):
    to: str


class _KeyArguments(msgspec.Struct):
    digits: str


class CallTools:
    """The tools that the operator has enabled."""

    def __init__(
        self,
        *,
        hang_up: bool = False,
        send_digits: bool = False,
        collect_digits: bool = False,
        transfer: Mapping[str, str] | None = None,
        customer: Sequence[Tool] = (),
    ) -> None:
        self._transfer = dict(transfer or {})
        own: dict[str, Tool] = {}
        if hang_up:
            own["hang_up"] = Tool("hang_up", "End the telephone call. Say good-bye first.", _schema({}))
        if self._transfer:
            to = {"type": "string", "enum": list(self._transfer)}
            own["transfer"] = Tool("transfer", "Connect the caller with a person.", _schema({"to": to}))
        if send_digits:
            digits = {"type": "string", "pattern": f"^[0-9*#,]{{1,{MOST_DIGITS}}}$"}
            own["send_digits"] = Tool("send_digits", "Press keys of the telephone.", _schema({"digits": digits}))
        if collect_digits:
            what = "Ask the caller to press keys, and wait for them. Say first what to press."
            own["collect_digits"] = Tool("collect_digits", what, _schema({}))
        self._own = frozenset(own)
        self.tools: tuple[Tool, ...] = (*own.values(), *(tool for tool in customer if tool.name not in own))

    def action(self, called: ToolCalled) -> ToolAction:
        """Return what a call of the model asks for."""
        if called.name not in self._own:
            known = any(tool.name == called.name for tool in self.tools)
            return CustomerTool(called.name, called.arguments) if known else WrongCall("There is no such tool.")
        try:
            match called.name:
                case "transfer":
                    return self._transfer_to(msgspec.json.decode(called.arguments, type=_TransferArguments).to)
                case "send_digits":
                    return _keys(msgspec.json.decode(called.arguments, type=_KeyArguments).digits)
                case "collect_digits":
                    return CollectKeys()
                case _:
                    return HangUp()
        except msgspec.MsgspecError:
            return WrongCall("The arguments are not those of the tool.")

    def _transfer_to(self, asked: str) -> ToolAction:
        """Return the transfer to the destination that the model names, be it in other words."""
        meant = _meant(asked, self._transfer)
        if len(meant) != 1:
            return WrongCall(f"There is no such destination. There are: {', '.join(self._transfer)}.")
        return TransferTo(meant[0], self._transfer[meant[0]])


def _meant(asked: str, names: Collection[str]) -> list[str]:
    """Return the names that may be meant: "sales" by "your Sales people", but "it" not by "put it through"."""
    if asked in names:
        return [asked]
    said = _words(asked)
    spoken = {name: words for name in names if len((words := _words(name)).strip()) >= SHORTEST_NAME}
    if same := [name for name, words in spoken.items() if words == said]:
        return same
    among = {name: words for name, words in spoken.items() if words in said}
    longest = [
        name for name, words in among.items() if not any(words != more and words in more for more in among.values())
    ]
    others = said.count(" ") - sum(among[name].count(" ") - 1 for name in longest) - 1
    return longest if others <= MOST_OTHER_WORDS else []


def _words(text: str) -> str:
    """Return the words of a text in lower case, with a space on each side."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "


def _keys(digits: str) -> ToolAction:
    if 0 < len(digits) <= MOST_DIGITS and all(key in KEYS or key == "," for key in digits):
        return SendKeys(digits)
    return WrongCall(f"digits: 1 to {MOST_DIGITS} of 0 to 9, *, # and the comma, which is a pause.")


def _schema(properties: Mapping[str, object]) -> str:
    return json.dumps(
        {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    )
