"""Text in a terminal."""

from __future__ import annotations

from typing import TextIO


def write_text(stream: TextIO, text: str) -> None:
    """Write a text at once; a terminal gets it without control sequences: it may hold a server's own words."""
    if stream.isatty():
        text = "".join(character for character in text if character.isprintable() or character in "\n\t")
    stream.write(text)
    stream.flush()
