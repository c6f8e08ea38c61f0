"""Markdown and HTML -> plain text. Each character keeps its place in the source.

Code blocks, link targets, tags, rules and markers are left out; link text, inline code and table cells stay. All other
text passes unchanged.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from voxlane.engine.text.normalise.addresses import UNDERSCORED, WINDOWS

SOFT_WRAP_CHARS = 50
"""A line of at least this length without final punctuation is taken to continue in the next line."""

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})([^`\n]*)$")
_STRUCTURE = re.compile(
    r"[ \t]*(?:>[ \t]?)*[ \t]*"
    r"(?P<mark>#{1,6}[ \t]+|[-*+•‣◦▪·][ \t]+(?:\[[ xX]\][ \t]+)?|(?=[0-9]{1,3}[.)][ \t])|(?=\|))?"
)
INLINE = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`{1,2})(?!`)(?P<codetext>[^`\n]{1,500}+)(?P=ticks)(?!`))"
    r"|(?P<address>(?:https?://|www\.)[^\s<>()\[\]`|*]++|(?<![A-Za-z0-9._+-])[A-Za-z0-9._+-]{1,64}+@[A-Za-z0-9.-]{1,255}+)"
    rf"|(?P<path>(?<![A-Za-z0-9]){WINDOWS}|{UNDERSCORED})"
    r"|(?P<image>!?\[(?P<label>[^\[\]\n]{0,500}+)\]"
    r"(?:\((?:[^()\s]++|\([^()\s]*+\)){0,200}+(?:[ \t]+\"[^\"\n]{0,200}\")?\)|\[[^\[\]\n]{0,100}+\]))"
    r"|(?P<note>\[\^[^\[\]\s]{1,40}+\]:?)"
    r"|(?P<auto><(?P<target>(?:https?://|mailto:)[^<>\s]{1,2000}+)>)"
    r"|(?P<comment><!--(?:[^-]|-(?!->)){0,1000}+-->)"
    r"|(?P<tag></?(?P<tagname>[A-Za-z][A-Za-z0-9-]{0,20})(?:[\s/][^<>]{0,500}+)?>)"
    r"|(?P<entity>&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,10});)"
    r"|(?P<keycap>[0-9#*]\ufe0f?\u20e3)"
    r"|(?P<face>(?<!\S)(?:[:;=][-']?[)(DPpOo|*/3]{1,3}|<3|\^_?\^|[xX]D)(?!\S))"
    r"|(?P<strong>\*{1,3}|~~|_{1,3})"
    r"|(?P<pipe>\|)"
    r"|(?P<dropped>[`\\])"
)
_MARKS = frozenset("`:@\\_[<&\u20e3;=^*~|")
_BREAKING_TAGS = {"br", "p", "li", "div", "tr", "td", "th", "hr", "ul", "ol", "h1", "h2", "h3", "h4", "h5", "h6"}


@dataclass(frozen=True, slots=True)
class Plain:
    """Text without markup; `origin[i]` is the source index of `text[i]`. A "\\n" is a break, a soft wrap is a space."""

    text: str
    origin: list[int]


class _Sink:
    def __init__(self) -> None:
        self.chars: list[str] = []
        self.origin: list[int] = []

    def put(self, text: str, start: int) -> None:
        """Append text that the source has at `start`."""
        self.chars.extend(text)
        self.origin.extend(range(start, start + len(text)))

    def put_at(self, text: str, index: int) -> None:
        """Append text that replaces the source character at `index`."""
        self.chars.extend(text)
        self.origin.extend([index] * len(text))


def plain(source: str) -> Plain:
    """Return the text of a Markdown source without its code blocks."""
    sink, fence, offset = _Sink(), "", 0
    lines = source.split("\n")
    for number, line in enumerate(lines):
        start, offset = offset, offset + len(line) + 1
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
            continue
        if mark:
            fence = mark[1]
            continue
        following = lines[number + 1] if number + 1 < len(lines) else ""
        structured = _line(sink, line, start)
        if number + 1 < len(lines):
            sink.put_at(" " if not structured and _goes_on(line, following) else "\n", start + len(line))
    return Plain("".join(sink.chars), sink.origin)


def may_have_markup(line: str) -> bool:
    """Return whether INLINE may find something in a line. In most it finds nothing, and takes a while."""
    return not _MARKS.isdisjoint(line) or "www." in line or "xD" in line or "XD" in line


def _goes_on(line: str, following: str) -> bool:
    """Return whether a line break is only a soft wrap."""
    line, following = line.strip(), following.lstrip()
    if not line or not following:
        return False
    if following[0].islower():
        return True
    long = len(line) >= SOFT_WRAP_CHARS and line[-1] not in ".!?:;"
    return long and following[0].isalpha()


def _line(sink: _Sink, line: str, start: int) -> bool:
    """Append one line; return whether it is an item, a heading or a table row, which end with the line."""
    if not any(char.isalnum() for char in line):
        # Rules, table separators and emoji have nothing to read. Punctuation alone still ends the sentence before it.
        sink.put(line if line.strip() in {".", "!", "?", "..."} else "", start)
        return True
    structure = _STRUCTURE.match(line)
    assert structure is not None  # every part of the pattern is optional
    position = structure.end()
    for match in INLINE.finditer(line, position) if may_have_markup(line) else ():
        sink.put(line[position : match.start()], start + position)
        _inline(sink, line, match, start)
        position = match.end()
    sink.put(line[position:], start + position)
    return structure["mark"] is not None


def _inline(sink: _Sink, line: str, match: re.Match[str], start: int) -> None:
    at = start + match.start()
    match match.lastgroup:
        case "code":
            sink.put(match["codetext"], start + match.start("codetext"))
        case "address" | "path":
            sink.put(match[0], at)
        case "image":
            for index, char in enumerate(match["label"], match.start("label")):
                if char not in "*`":
                    sink.put(char, start + index)
        case "auto":
            target = match["target"].removeprefix("mailto:")
            sink.put(target, start + match.end() - 1 - len(target))
        case "tag" if match["tagname"].lower() in _BREAKING_TAGS:
            sink.put_at("\n", at)
        case "entity":
            sink.put_at(html.unescape(match[0])[:1], at)
        case "strong":
            _emphasis(sink, line, match, start)
        case "pipe" if line[match.end() :].strip() and line[: match.start()].strip():
            sink.put_at(", ", at)
        case "keycap" | "face" | "comment":
            sink.put_at(" ", at)


def _emphasis(sink: _Sink, line: str, match: re.Match[str], start: int) -> None:
    """Leave markers out; keep a character that is a multiplication sign or part of a name."""
    before = line[match.start() - 1 : match.start()]
    after = line[match.end() : match.end() + 1]
    if match[0][0] == "_" and before.isalnum() and after.isalnum():
        sink.put_at(" ", start + match.start())
    elif match[0] == "*" and ((before.isdigit() and after.isdigit()) or before == after == " "):
        sink.put_at("×", start + match.start())
