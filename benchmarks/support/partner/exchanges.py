"""The exchanges of partner.py, read from partner_exchanges.toml and checked."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.command_line import BENCHMARKS
from support.partner.rules import Reply, RuleError, Rules, read_rules

FILE = BENCHMARKS / "partner_exchanges.toml"


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that a model may call, and its answer."""

    name: str
    description: str
    parameters: str  # a JSON schema
    result: str

    def declared(self) -> dict[str, str]:
        """Return the tool as a conversation's settings describe it."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@dataclass(frozen=True, slots=True)
class Exchange:
    """The turns of a person in one conversation, and the rules for the replies."""

    name: str  # the category and a number
    category: str
    turns: tuple[str, ...]
    rules: Mapping[int, Rules]  # by turn, from 1; the last turn always has some
    tools: tuple[OfferedTool, ...] = ()

    def broken_by(self, replies: Sequence[Reply]) -> list[str]:
        """Return the broken rules as text; empty if all replies are right."""
        found = []
        for turn, rules in self.rules.items():
            if turn > len(replies):
                found.append(f"turn {turn} has no reply")
                continue
            before = replies[turn - 2].text if turn > 1 else ""
            where = "" if turn == len(self.turns) else f"turn {turn} "
            found += [where + wrong for wrong in rules.broken_by(replies[turn - 1], before)]
        return found


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All exchanges, and the titles of their categories."""

    titles: Mapping[str, str]
    exchanges: tuple[Exchange, ...]


def load(text: str) -> Catalogue:
    """Return the exchanges of a TOML text; raise RuleError that names the mistake."""
    tables = tomllib.loads(text)
    tools = {name: _tool(name, values) for name, values in tables.pop("tool", {}).items()}
    categories: dict[str, dict[str, Any]] = tables.pop("category")
    if unknown := tables.keys() - categories.keys():
        raise RuleError(f"{min(unknown)} is no category; there are {', '.join(categories)}")
    titles = {name: str(values.pop("title")) for name, values in categories.items()}
    exchanges = [
        _exchange(f"{category} {number}", category, {**shared, **values}, tools)
        for category, shared in categories.items()
        for number, values in enumerate(tables.get(category, ()), start=1)
    ]
    return Catalogue(titles, tuple(exchanges))


def load_file() -> Catalogue:
    """Return the exchanges of the benchmark."""
    return load(FILE.read_text(encoding="utf-8"))


def _tool(name: str, values: Mapping[str, Any]) -> OfferedTool:
    return OfferedTool(name, values["description"], json.dumps(values["parameters"]), values["result"])


def _exchange(name: str, category: str, values: dict[str, Any], tools: Mapping[str, OfferedTool]) -> Exchange:
    turns = tuple(values.pop("turns", ()))
    if not turns:
        raise RuleError(f"{name}: there are no turns")
    earlier = {int(turn): rules for turn, rules in values.pop("at", {}).items()}
    if not all(0 < turn < len(turns) for turn in earlier):
        raise RuleError(f"{name}: `at` is for turns before the last")
    offered = values.pop("tools", [])
    if unknown := set(offered) - tools.keys():
        raise RuleError(f"{name}: there is no tool {min(unknown)}")
    rules = {turn: read_rules(earlier[turn], name) for turn in sorted(earlier)}
    rules[len(turns)] = read_rules(values, name)
    return Exchange(name, category, turns, rules, tuple(tools[one] for one in offered))
