"""What the pictures share: a sheet of SVG, a line of text on it, and the colours."""

from __future__ import annotations

from collections.abc import Iterable

INK, FAINT, RULE = "#23303f", "#6b7785", "#e4e1d9"
BLUE, PALE, RED = "#4a6a94", "#a9bdd8", "#b5300b"
PAPER = "#fbfaf7"


def sheet(width: int, height: int, parts: Iterable[str]) -> str:
    """Return a picture of this size in pixels with these parts."""
    size = f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif"'
    paper = f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', paper, *parts, "</svg>"]) + "\n"


def text(
    x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", fill: str = FAINT, weight: int = 400
) -> str:
    """Return a line of text."""
    safe = words.replace("&", "&amp;").replace("<", "&lt;")
    style = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{safe}</text>'
