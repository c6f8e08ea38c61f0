"""Function calling as text: describes tools to a model whose template does not know tools, and parses a model's calls.
Pure; it knows no token and no template.

The format is that of Hermes, which most small models know: <tool_call>{"name": …, "arguments": …}</tool_call>. LFM2 has
marks of its own, and Python between them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxlane.engine.api import ChatMessage, Tool
from voxlane.engine.text.python_calls import NotCallsError, read_calls, write_call
from voxlane.engine.text.schema import SchemaError, json_object

MAX_TOOLS = 128
"""As many as OpenAI allows."""

CALL, CALL_END = "<tool_call>", "</tool_call>"
RESULT = "<tool_response>"

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_CHOICES = {"auto", "none", "required"}
_BARE = '{"name"'

# The shortest wording did best with SmolLM2-135M: forced to call, it chose the right one of four functions in 7 of 8
# cases, against 5 or 6 with longer wordings. Without force it never calls, whatever the wording.
_INSTRUCTIONS = """Functions:
{tools}
If one of the functions helps, answer only with
{call}
{{"name": "...", "arguments": {{...}}}}
{end}"""


class ToolError(ValueError):
    """A declaration, choice, call or result is wrong; str() holds no content but a tool's name."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a declared tool, read from a model's output."""

    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True, slots=True)
class CallMarks:
    """What a model writes around calls, and before the result of one."""

    call: str = CALL
    end: str = CALL_END
    result: str = RESULT


@dataclass(frozen=True, slots=True)
class CallStyle:
    """How a model writes a call: the text before the JSON, and the key of the arguments."""

    opening: str = f"{CALL}\n"
    key: str = "arguments"
    marks: CallMarks = CallMarks()
    python: bool = False  # calls are Python, unless the engine demands one: then they are JSON


_LFM2_MARKS = CallMarks("<|tool_call_start|>", "<|tool_call_end|>", "<|tool_response_start|>")

LFM2_STYLE = CallStyle(opening=_LFM2_MARKS.call, marks=_LFM2_MARKS, python=True)
"""<|tool_call_start|>[get_weather(city="Paris")]<|tool_call_end|>; the marks are tokens that are never text."""


def check_tools(tools: Sequence[Tool], choice: str) -> None:
    """Raise ToolError unless the names are valid and distinct, and the choice is possible."""
    if len(tools) > MAX_TOOLS:
        raise ToolError(f"there are {len(tools)} tools; the limit is {MAX_TOOLS}")
    if not all(_NAME.fullmatch(tool.name) for tool in tools):
        raise ToolError('a tool\'s name must have 1 to 64 letters, digits, "_", "-" or "."')
    names = {tool.name for tool in tools}
    if len(names) < len(tools):
        raise ToolError("two tools have the same name")
    if names & _CHOICES:
        raise ToolError("a tool must not be called auto, none or required")
    if choice not in _CHOICES | names:
        raise ToolError("tool_choice names no declared tool")
    if choice == "required" and not tools:
        raise ToolError("tool_choice is required, but there are no tools")


def declarations(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return tools in the form that chat templates expect."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": _object(tool.parameters or '{"type": "object", "properties": {}}', "a tool's parameters"),
            },
        }
        for tool in tools
    ]


def entry(message: ChatMessage, names: Mapping[str, str]) -> dict[str, Any]:
    """Return a message in the form that chat templates expect; `names` has the tool of each call."""
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": use.call_id,
                "type": "function",
                "function": {"name": use.name, "arguments": _object(use.arguments, "a call's arguments")},
            }
            for use in message.tool_calls
        ]
    if message.role == "tool":
        shown |= {"tool_call_id": message.call_id, "name": names.get(message.call_id, "")}
    return shown


def called(messages: Sequence[ChatMessage]) -> dict[str, str]:
    """Return the tool of each call in a conversation, by the call's id."""
    return {use.call_id: use.name for message in messages for use in message.tool_calls}


def python_calls(message: ChatMessage) -> str:
    """Return the calls of a message as a list in Python."""
    calls = (write_call(use.name, _object(use.arguments, "a call's arguments")) for use in message.tool_calls)
    return f"[{', '.join(calls)}]"


def spelt_out(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    """Return a conversation with its tools, calls and results written as plain text of ordinary roles."""
    plain: list[ChatMessage] = []
    names = called(messages)
    for is_result, group in itertools.groupby(messages, key=lambda message: message.role == "tool"):
        if is_result:  # one message for all of them: many templates want roles to alternate
            plain.append(ChatMessage("user", _results_text(group, names)))
            continue
        for message in group:
            calls = [f"{CALL}\n{_call_json(use.name, use.arguments)}\n{CALL_END}" for use in message.tool_calls]
            content = "\n".join([message.content, *calls]) if message.content else "\n".join(calls)
            plain.append(ChatMessage(message.role, content))
    if tools:
        text = instructions(tools)
        if plain and plain[0].role == "system":
            plain[0] = ChatMessage("system", f"{plain[0].content}\n\n{text}")
        else:
            plain.insert(0, ChatMessage("system", text))
    return plain


def _results_text(results: Iterable[ChatMessage], names: Mapping[str, str]) -> str:
    """Return the results of one or more calls as a message of the user.

    No tag is around them. After a result in <tool_response>, SmolLM2-135M wrote that tag around 40 of 144 answers, and
    what it holds is never said. This is one of 27 wordings tried on the same prompts: 66 answers told the result, with
    the tag 40 where the engine bars it. It was not measured on other prompts. After "The result is" the model repeats
    these words and the JSON.
    """
    return "\n".join(f"Here is what {names.get(one.call_id, 'it')} says:\n{one.content}" for one in results)


def instructions(tools: Sequence[Tool]) -> str:
    """Return the instruction for a model that may call `tools`."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in declarations(tools)]
    return _INSTRUCTIONS.format(tools="\n".join(lines), call=CALL, end=CALL_END)


class CallReader:
    """Splits a model's output, incrementally, into text and calls.

    Text that looks like a call and is none stays text. With `whole`, all of the output is one call.
    """

    def __init__(self, tools: Sequence[Tool], *, whole: bool = False, style: CallStyle | None = None) -> None:
        style = style or CallStyle()
        self._names = frozenset(tool.name for tool in tools)
        self._marks = style.marks
        self._python = style.python
        self._whole = whole
        self._held = ""
        self._inside = False  # `_held` begins with the mark of a call
        self._fresh = True  # only white space since the start or the last call
        self._calls = 0
        self.over = False  # the model has begun to invent a result

    def push(self, text: str) -> list[str | Call]:
        """Take more output; return the parts that are now final."""
        self._held += text
        if self._whole:
            return []
        pieces: list[str | Call] = []
        while not self.over and self._advance(pieces):
            pass
        return pieces

    def finish(self) -> list[str | Call]:
        """Return the parts that were held back."""
        held, self._held = self._held, ""
        if self.over:
            return []
        if self._whole:
            return list(self._parsed(held) or ())  # an unfinished call is dropped
        body = held.removeprefix(self._marks.call) if self._inside else held
        calls = self._parsed(body) if self._inside or self._fresh else None
        if calls:
            return list(calls)
        if self._inside and self._python:
            return [body] if body else []
        return [held] if held and not (self._fresh and self._calls and held.isspace()) else []

    def _advance(self, pieces: list[str | Call]) -> bool:
        """Handle the first part of the held text if it is final; return whether it was."""
        marks = self._marks
        if self._inside:
            end = self._held.find(marks.end)
            if end < 0:
                return False
            raw, self._held = self._held[: end + len(marks.end)], self._held[end + len(marks.end) :]
            self._inside = False
            inner = raw[len(marks.call) : end]
            calls = self._parsed(inner)
            pieces.extend(calls or [inner if self._python else raw])  # marks that are tokens are never shown
            self._fresh = bool(calls)
            self._calls += len(calls or ())
            return True
        sought = (marks.call, marks.result) if self._calls else (marks.call,)
        places = [(place, mark) for mark in sought if (place := self._held.find(mark)) >= 0]
        if self._fresh and (not self._held.strip() or self._may_be_bare()):
            return False
        if not places:
            certain = len(self._held) - max(_overlap(self._held, mark) for mark in sought)
            if not (self._fresh and self._held[:certain].isspace()):  # white space before a call belongs to the call
                self._show(self._held[:certain], pieces)
                self._held = self._held[certain:]
            return False
        place, mark = min(places)
        self._show(self._held[:place], pieces)
        self._held = self._held[place:]
        self._inside = mark == marks.call
        self.over = mark == marks.result
        return not self.over

    def _show(self, text: str, pieces: list[str | Call]) -> None:
        if self._fresh and text.isspace():
            return
        if text:
            self._fresh = False
            pieces.append(text)

    def _may_be_bare(self) -> bool:
        """Return whether the held text may be a call without its tags, as some models write it."""
        start = "".join(self._held[:64].split())[: len(_BARE)]
        return bool(start) and not self._calls and _BARE.startswith(start)

    def _parsed(self, text: str) -> list[Call] | None:
        """Return the calls in a text, one or a list in the model's style or as JSON, or None if it is anything else."""
        try:
            value = self._value(text)
        except (ValueError, RecursionError):
            return None
        calls = [self._call(item) for item in (value if isinstance(value, list) else [value])]
        sound = [call for call in calls if call is not None]
        return sound if sound and len(sound) == len(calls) else None

    def _value(self, text: str) -> Any:
        """Return calls as JSON has them, or raise ValueError."""
        if self._python:
            with contextlib.suppress(NotCallsError):
                return [{"name": name, "arguments": arguments} for name, arguments in read_calls(text)]
        return _loads(text)

    def _call(self, value: object) -> Call | None:
        if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or name not in self._names:
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = _loads(arguments)
            except (ValueError, RecursionError):
                return None
        if not isinstance(arguments, dict):
            return None
        # A model may write half of a surrogate pair as an escape, which no message can carry.
        return Call(name, json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace").decode())


def strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)


def _call_json(name: str, arguments: str) -> str:
    return json.dumps({"name": name, "arguments": _object(arguments, "a call's arguments")}, ensure_ascii=False)


def _loads(text: str) -> Any:
    """Parse strict JSON: a number that Python would read as infinity becomes the largest number, or an error."""
    return json.loads(text, parse_float=_finite, parse_constant=_refuse)


def _finite(text: str) -> float:
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        return json_object(text)
    except SchemaError as error:
        raise ToolError(f"{what}: the JSON {error}") from error


def _overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that begins `mark`."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)
