"""Writing small .ort files: the few flatbuffer shapes they are made of."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Child = Callable[[bytearray], int]  # appends itself, returns where it begins


@dataclass(frozen=True)
class Scalar:
    """A number of struct's kind."""

    kind: str
    value: int


def text(value: str | bytes) -> Child:
    """Write a string."""
    raw = value.encode() if isinstance(value, str) else value

    def write(data: bytearray) -> int:
        place = len(data)
        data += struct.pack("<I", len(raw)) + raw + b"\0"
        return place

    return write


def numbers(kind: str, values: Sequence[int]) -> Child:
    """Write a vector of scalars."""

    def write(data: bytearray) -> int:
        place = len(data)
        data += struct.pack(f"<I{len(values)}{kind}", len(values), *values)
        return place

    return write


def children(items: Sequence[Child]) -> Child:
    """Write a vector of tables or strings."""

    def write(data: bytearray) -> int:
        place = len(data)
        data += struct.pack("<I", len(items)) + bytes(4 * len(items))
        for index, item in enumerate(items):
            at = place + 4 + 4 * index
            struct.pack_into("<I", data, at, item(data) - at)
        return place

    return write


def table(fields: Mapping[int, Scalar | Child]) -> Child:
    """Write a table and what it points to."""

    def write(data: bytearray) -> int:
        vtable, count = len(data), max(fields, default=-1) + 1
        place = vtable + 4 + 2 * count
        offsets, body = [0] * count, bytearray(4)
        for number, value in fields.items():
            offsets[number] = len(body)
            body += struct.pack(f"<{value.kind}", value.value) if isinstance(value, Scalar) else bytes(4)
        data += struct.pack(f"<HH{count}H", 4 + 2 * count, len(body), *offsets)
        struct.pack_into("<i", body, 0, place - vtable)
        data += body
        for number, value in fields.items():
            if not isinstance(value, Scalar):
                at = place + offsets[number]
                struct.pack_into("<I", data, at, value(data) - at)
        return place

    return write


@dataclass
class OrtFile:
    """An .ort file's graph."""

    initializers: list[Child] = field(default_factory=list)
    nodes: list[Child] = field(default_factory=list)

    def constant(self, name: str, kind: int, shape: Sequence[int], raw: bytes) -> str:
        """Add an initializer; return its name."""
        dims = numbers("q", shape)
        self.initializers.append(table({0: text(name), 2: dims, 3: Scalar("i", kind), 4: numbers("B", raw)}))
        return name

    def node(self, operation: str, name: str, inputs: Sequence[str], graph: Child | None = None) -> None:
        """Add an operation, with an inner graph if it has one."""
        fields: dict[int, Scalar | Child] = {0: text(name), 5: text(operation), 8: children([*map(text, inputs)])}
        if graph is not None:
            fields[10] = children([table({0: text("then_branch"), 2: Scalar("i", 5), 7: graph})])
        self.nodes.append(table(fields))

    def graph(self) -> Child:
        """Return the graph, to be put into a node of another."""
        return table({0: children(self.initializers), 2: children(self.nodes)})

    def bytes(self) -> bytes:
        """Return the whole file."""
        data = bytearray(b"\0\0\0\0ORTM")
        place = table({0: text("6"), 1: table({7: self.graph()})})(data)
        struct.pack_into("<I", data, 0, place)
        return bytes(data)
