"""Functions, their calls and formats of answers in a request for text: a description, and the engine's values. Pure.

Whether a JSON schema can be enforced is decided by the engine.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from msgspec import Meta

from voxlane.engine.api import Tool, ToolUse
from voxlane.server.api.bodies import Body, Ignored, Name, wrong

FunctionType = Annotated[
    Literal["function"], Meta(extra={"unsupported": "only functions are supported, no built-in or hosted tools"})
]
JsonSchema = Annotated[dict[str, Any], Meta(extra={"rule": "must be a JSON schema"})]


class DeclaredFunction(Body):
    """A function that the model may call."""

    name: Annotated[Name, Meta(description="What the model calls it.")]
    description: Annotated[str | None, Meta(description="What it does, for the model.")] = None
    parameters: Annotated[JsonSchema | None, Meta(description="The JSON schema of its arguments.")] = None
    strict: Annotated[
        Any, Meta(description="Accepted, without effect: arguments always fit where a call is required.")
    ] = None


class ChatTool(Body, forbid_unknown_fields=False):
    """A tool; all of them are functions."""

    type: FunctionType
    function: DeclaredFunction


class FlatTool(DeclaredFunction, kw_only=True, forbid_unknown_fields=False):
    """A function that the model may call, as the Responses API writes it."""

    type: FunctionType


class FunctionName(Body, forbid_unknown_fields=False):
    """A function by its name."""

    name: Name


class FlatFunctionName(FunctionName, kw_only=True, forbid_unknown_fields=False):
    """The one function to call, as the Responses API writes it."""

    type: FunctionType


class NamedFunction(Body, forbid_unknown_fields=False):
    """The one function to call."""

    type: FunctionType
    function: FunctionName


class CalledFunction(Body, forbid_unknown_fields=False):
    """The function that was called."""

    name: Name
    arguments: Annotated[str, Meta(description="A JSON object, as text.")]


class MadeCall(Body, forbid_unknown_fields=False):
    """A call that the assistant made."""

    id: Name
    type: FunctionType
    function: CalledFunction


class AnySchema(Body):
    """The schema of an answer, by a name."""

    schema: Annotated[dict[str, Any], Meta(extra={"rule": "must be a JSON schema"})]
    name: Ignored = None
    description: Ignored = None
    strict: Ignored = None


class TextFormat(Body, forbid_unknown_fields=False, tag_field="type", tag="text"):
    """Any text."""


class JsonFormat(Body, forbid_unknown_fields=False, tag_field="type", tag="json_object"):
    """Any JSON object."""


class SchemaFormat(Body, forbid_unknown_fields=False, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    json_schema: AnySchema


class FlatSchemaFormat(AnySchema, forbid_unknown_fields=False, tag_field="type", tag="json_schema"):
    """JSON that follows a schema, as the Responses API writes it."""


ResponseFormat = TextFormat | JsonFormat | SchemaFormat
FlatFormat = TextFormat | JsonFormat | FlatSchemaFormat


def declared(function: DeclaredFunction) -> Tool:
    """Return a function as the engine wants it."""
    return Tool(
        function.name, function.description or "", json.dumps(function.parameters) if function.parameters else ""
    )


def chosen(choice: str | NamedFunction | FlatFunctionName | None, tools: tuple[Tool, ...]) -> str:
    """Return "auto", "none", "required" or a declared function's name."""
    if isinstance(choice, NamedFunction | FlatFunctionName):
        name = choice.function.name if isinstance(choice, NamedFunction) else choice.name
        if name not in {tool.name for tool in tools}:
            raise wrong("tool_choice", "must name one of the tools")
        return name
    if choice == "required" and not tools:
        raise wrong("tool_choice", "needs tools to choose from")
    return choice or "auto"


def schema_of(wanted: ResponseFormat | FlatFormat | None) -> str:
    """Return the schema of the answer as the engine wants it: "" for none, "json" for any object."""
    match wanted:
        case SchemaFormat():
            return json.dumps(wanted.json_schema.schema)
        case FlatSchemaFormat():
            return json.dumps(wanted.schema)
        case JsonFormat():
            return "json"
    return ""


def made(call: MadeCall) -> ToolUse:
    """Return an assistant's call as the engine wants it."""
    return ToolUse(call.id, call.function.name, call.function.arguments)
