"""Function calling and response formats in the words of OpenAI's chat completions, into the engine's values.

It knows shapes; whether a schema can be enforced is the engine's to say.
"""

from __future__ import annotations

import json
from typing import Any

from voxlane.engine.api import Tool, ToolUse
from voxlane.server import limits
from voxlane.server.api.fields import RequestFields, wrong
from voxlane.server.errors import UnsupportedParameter
from voxlane.server.log import quote


def tools(value: Any) -> tuple[Tool, ...]:
    """Return the declared functions."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > limits.TOOLS:
        raise wrong("tools", f"must be a list of up to {limits.TOOLS} functions")
    return tuple(_tool(f"tools[{index}]", tool) for index, tool in enumerate(value))


def tool_choice(value: Any, declared: tuple[Tool, ...]) -> str:
    """Return "auto", "none", "required" or a declared function's name."""
    if value is None or value in ("auto", "none"):
        return value or "auto"
    if value == "required":
        if not declared:
            raise wrong("tool_choice", "needs tools to choose from")
        return "required"
    if isinstance(value, str):
        raise wrong("tool_choice", "must be none, auto, required or an object that names a function")
    name = _function("tool_choice", value).text("name")
    if name not in {tool.name for tool in declared}:
        raise wrong("tool_choice", "must name one of the tools")
    assert name is not None
    return name


def response_format(value: Any) -> str:
    """Return the schema the answer must follow as the engine wants it: "" for none, "json" for any object."""
    if value is None:
        return ""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return ""
    if kind == "json_object":
        return "json"
    if kind != "json_schema":
        raise wrong("response_format", "must be an object whose type is text, json_object or json_schema")
    fields = _object("response_format.json_schema", value.get("json_schema"))
    schema = fields.take("schema")
    if not isinstance(schema, dict):
        raise wrong("response_format.json_schema.schema", "must be a JSON schema")
    _only(fields, "response_format.json_schema", "name", "description", "strict")
    return json.dumps(schema)


def tool_calls(path: str, value: Any) -> tuple[ToolUse, ...]:
    """Return the calls in an assistant's message."""
    if not value:
        return ()
    if not isinstance(value, list) or len(value) > limits.TOOLS:
        raise wrong(path, f"must be a list of up to {limits.TOOLS} calls")
    uses = []
    for index, call in enumerate(value):
        at = f"{path}[{index}]"
        function = _function(at, call)
        name, arguments = function.text("name"), function.take("arguments")
        if name is None or not isinstance(arguments, str):
            raise wrong(f"{at}.function", "must have a name and arguments")
        uses.append(ToolUse(_text(f"{at}.id", call.get("id")), name, arguments))
    return tuple(uses)


def call_id(path: str, value: Any) -> str:
    """Return the id of the call that a tool's message answers; absent is "", for those who have only one."""
    return "" if value is None else _text(path, value)


def _tool(path: str, value: Any) -> Tool:
    function = _function(path, value)
    name = function.text("name")
    if name is None:
        raise wrong(f"{path}.function.name", "is missing")
    description, parameters = function.take("description"), function.take("parameters")
    if not isinstance(description, str | None):
        raise wrong(f"{path}.function.description", "must be a string")
    if not isinstance(parameters, dict | None):
        raise wrong(f"{path}.function.parameters", "must be a JSON schema")
    _only(function, f"{path}.function", "strict")  # calls are always made to fit, where a call is asked for
    return Tool(name, description or "", json.dumps(parameters) if parameters else "")


def _function(path: str, value: Any) -> RequestFields:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise wrong(path, "must be an object with a type")
    if value["type"] != "function":
        raise UnsupportedParameter(f"{path}.type: only functions are supported.", param=f"{path}.type")
    return _object(f"{path}.function", value.get("function"))


def _object(path: str, value: Any) -> RequestFields:
    if not isinstance(value, dict):
        raise wrong(path, "must be an object")
    return RequestFields(value)


def _only(fields: RequestFields, path: str, *harmless: str) -> None:
    for name in fields.rest():
        if name not in harmless:
            raise wrong(f"{path}.{quote(name)}", "is not known")


def _text(path: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= limits.NAME_CHARACTERS:
        raise wrong(path, f"must be a string of 1 to {limits.NAME_CHARACTERS} characters")
    return value
