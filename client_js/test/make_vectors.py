"""Write data/msgpack.json: values as JSON and as Python's msgpack writes them. Bytes are {"$bin": hex} in the JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack

EDGES = (0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**53 - 1)
VALUES: list[Any] = [
    None,
    False,
    True,
    *EDGES,
    *(-edge for edge in (1, 32, 33, 127, 128, 129, 32768, 32769, 2**31, 2**31 + 1, 2**53 - 1)),
    0.5,
    -1.25,
    410.1,
    1e-300,
    *("x" * length for length in (0, 1, 31, 32, 255, 256)),
    "Grüße, 世界 🎉\u0000\ufeff",
    *(bytes(range(256)) * 2 for _ in range(1)),
    b"",
    bytes(255),
    bytes(256),
    [],
    list(range(15)),
    list(range(16)),
    {},
    {f"key {number}": number for number in range(15)},
    {f"key {number}": [number, {"deep": None}] for number in range(16)},
    ["audio", bytes((1, 0, 2, 0))],
    ["played", 1, 4800, 960],
    ["state", 4, "thinking"],
]
LONG: list[Any] = ["x" * 65535, "x" * 65536, bytes(65535), bytes(65536), [None] * 65536]


def as_json(value: object) -> object:
    match value:
        case bytes():
            return {"$bin": value.hex()}
        case list():
            return [as_json(item) for item in value]
        case dict():
            return {key: as_json(item) for key, item in value.items()}
        case _:
            return value


def main() -> None:
    vectors = [{"value": as_json(value), "hex": msgpack.packb(value).hex()} for value in VALUES]
    heads = [{"length": len(value), "hex": msgpack.packb(value)[:8].hex()} for value in LONG]
    single = [{"value": 0.25, "hex": msgpack.packb(0.25, use_single_float=True).hex()}]
    target = Path(__file__).parent / "data" / "msgpack.json"
    document = {"both_ways": vectors, "long": heads, "decoded_only": single}
    target.write_text(json.dumps(document, indent=0, ensure_ascii=True) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
