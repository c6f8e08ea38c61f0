"""Reads the customer's tools from a JSON file: a list of functions, as OpenAI's chat API has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from voxlane.engine.api import Tool
from voxlane.server.errors import ConfigError
from voxlane.server.protocols.settings import TOOLS, ToolName, ToolText
from voxlane.server.validation import InvalidValue, checked


class _Function(msgspec.Struct):
    name: ToolName
    description: ToolText = ""
    parameters: dict[str, Any] = {}


class _Entry(msgspec.Struct):
    function: _Function


def read_tools(path: str) -> tuple[Tool, ...]:
    """Return the tools of a file, none for ""; raise ConfigError if it cannot be used."""
    if not path:
        return ()
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(found, list) or len(found) > TOOLS:
            raise ConfigError(f"phone.tools: {path}: must be a list of at most {TOOLS} tools")
        entries = [
            checked(_Entry, entry if isinstance(entry, dict) and "function" in entry else {"function": entry})
            for entry in found
        ]
    except OSError as error:
        raise ConfigError(f"phone.tools: {path}: {error.strerror or error}") from error
    except InvalidValue as error:
        raise ConfigError(f"phone.tools: {path}: {error}") from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise ConfigError(f"phone.tools: {path}: not a JSON file in UTF-8") from error
    functions = [entry.function for entry in entries]
    if len({function.name for function in functions}) < len(functions):
        raise ConfigError(f"phone.tools: {path}: two tools have the same name")
    return tuple(
        Tool(one.name, one.description, json.dumps(one.parameters) if one.parameters else "") for one in functions
    )
