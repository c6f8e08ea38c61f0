"""Readers for e-mail addresses, URLs, paths and file names: piece by piece, their marks by name.

They are read so that a listener can write them down. A piece without a vowel is spelled ("S R C"), and so are single
letters. A URL's scheme, "www", query and fragment tell a listener nothing and are left out.
"""

from __future__ import annotations

import re

from voxlane.engine.text.normalise.numbers import Reader, Reading, decimal, digits
from voxlane.engine.text.normalise.tables import ABBREVIATIONS

_EMAIL = re.compile(r"(?P<user>[A-Za-z0-9._+-]{1,64}+)@(?P<host>[A-Za-z0-9-]{1,63}+(?:\.[A-Za-z0-9-]{1,63}+)++)")
_URL = re.compile(r"(?:https?://|www\.)(?P<rest>[^\s<>\"“”`]++)", re.IGNORECASE)
_DOMAIN = re.compile(
    r"(?P<rest>[A-Za-z0-9-]{1,63}+(?:\.[A-Za-z0-9-]{1,63}+){0,8}?\.(?:com|org|net|edu|gov|io|co|uk|de|fr|info|dev|app|ai|eu)"
    r"(?![A-Za-z0-9-])(?:/[^\s<>\"“”`]*+)?)"
)
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}+(?:\.[A-Za-z0-9_-]{1,20}+){0,3}?"
_FILE = re.compile(rf"(?P<stem>{_NAME})\.(?P<suffix>[A-Za-z][A-Za-z0-9]{{0,4}})(?![A-Za-z0-9_-]|[.@/\\][A-Za-z0-9])")
_UNIX = re.compile(r"(?:(?:~|\.{1,2})?/[A-Za-z0-9._+-]{1,80}+|~(?=/))(?:/[A-Za-z0-9._+-]{1,80}+){0,40}+/?")
_RELATIVE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,40}+(?:/[A-Za-z0-9_.-]{1,60}+){1,20}+")
_RELATIVE_END = re.compile(r"\.[a-z][a-z0-9]{0,4}\Z")
_FOLDER = r"[A-Za-z0-9$%~_.()+-]{1,80}+(?: [A-Z(][A-Za-z0-9_.()+-]{0,40}+(?=[^\\\n]{0,20}\\)){0,2}+"
WINDOWS = rf"(?:[A-Za-z]:\\|\\\\(?=[A-Za-z0-9]))(?:{_FOLDER}\\{{0,1}}+){{0,40}}+"
"""A path of Windows: a drive's letter, or a server's name after two backslashes. Markup keeps its backslashes."""

UNDERSCORED = r"(?<![\w.@/\\-])[A-Za-z0-9.-]{0,40}_[A-Za-z0-9_.-]{0,60}\.[A-Za-z][A-Za-z0-9]{0,4}(?![\w-])"
"""A file name with an underscore. Markup keeps it."""

_WINDOWS = re.compile(WINDOWS)
_PIECE = re.compile(r"[A-Za-z]+|[0-9]+|[./:_~@+$%\\-]")
_PIECE_NAMES = {
    ".": "dot",
    "/": "slash",
    "\\": "backslash",
    ":": "colon",
    "_": "underscore",
    "~": "tilde",
    "@": "at",
    "+": "plus",
    "-": "dash",
    "$": "dollar",
    "%": "percent",
}
_TAIL = ".,;:!?)]}'\"*_’"
_TWO_LETTER_WORDS = {
    "me",
    "co",
    "so",
    "go",
    "py",
    "to",
    "my",
    "we",
    "do",
    "no",
    "is",
    "it",
    "in",
    "on",
    "of",
    "or",
    "up",
}
_VOWEL = re.compile("[aeiouy]", re.IGNORECASE)
_SPELLED = {"etc"}  # a lexicon says "et cetera"
_SUFFIX_READINGS = {"jpg": "jay-peg", "jpeg": "jay-peg", "json": "Jason", "yaml": "yammel", "gif": "gif", "exe": "EXE"}
_SUFFIX_WORDS = {
    "doc",
    "docs",
    "zip",
    "tar",
    "bin",
    "log",
    "bat",
    "toml",
    "app",
    "text",
    "data",
    "lock",
    "bak",
    "py",
    "conf",
}


def spell_out(text: str) -> list[str]:
    """Return an address piece by piece, marks by name; runs of more than two digits are read digit by digit."""
    words: list[str] = []
    for piece in _PIECE.findall(text):
        if piece in _PIECE_NAMES:
            words.append(_PIECE_NAMES[piece])
        elif piece[0].isdigit():
            words += digits(piece) if len(piece) > 2 else decimal(piece)
        elif len(piece) == 2 and piece.islower() and piece not in _TWO_LETTER_WORDS:
            words.append(piece.upper())
        elif piece.lower() in _SPELLED or (1 < len(piece) <= 4 and not _VOWEL.search(piece)):
            words += list(piece.upper())
        else:
            words.append(piece)
    return words


def _spelled(end: int, words: list[str]) -> Reading:
    return Reading(end, words, spelled=True)


def _read_email(text: str, at: int) -> Reading | None:
    found = _EMAIL.match(text, at)
    if not found:
        return None
    host = found["host"].rstrip("-")
    return _spelled(found.end() - len(found["host"]) + len(host), [*spell_out(found["user"]), "at", *spell_out(host)])


def _read_url(text: str, at: int) -> Reading | None:
    found = _URL.match(text, at) or _DOMAIN.match(text, at)
    if not found:
        return None
    rest = found["rest"].rstrip(_TAIL)
    end = found.end() - len(found["rest"]) + len(rest)
    heard = re.split(r"[?#]", rest, maxsplit=1)[0].rstrip("/")
    if heard.lower().startswith("www."):
        heard = heard[4:]
    return _spelled(end, spell_out(heard))


def read_file(text: str, at: int) -> Reading | None:
    """Read the name of a file: "report dot PDF"."""
    found = _FILE.match(text, at)
    if not found or not found["stem"].strip("0123456789.") or found[0].lower() in ABBREVIATIONS:
        return None
    stem, suffix = found["stem"], found["suffix"]
    if suffix[0].isupper() and not (suffix.isupper() and len(suffix) > 1):
        return None  # a full stop without its space: "end.Then"
    return _spelled(found.end(), [*spell_out(stem), "dot", *_suffix(suffix)])


def _suffix(suffix: str) -> list[str]:
    known = suffix.lower()
    if known in _SUFFIX_READINGS:
        return [_SUFFIX_READINGS[known]]
    if suffix.isalpha() and len(suffix) == 3 and known not in _SUFFIX_WORDS:
        return [suffix.upper()]
    return spell_out(suffix)


def read_path(text: str, at: int) -> Reading | None:
    """Read a path of Windows or Unix, separators by name: "slash E T C slash hosts"."""
    before = text[max(0, at - 1) : at]
    if before.isalnum() or before in ("/", "\\", ".", "_", "-", "~", ":", "<", "&"):
        return None
    if found := _WINDOWS.match(text, at):
        path = found[0].rstrip(_TAIL.replace(")", "") if "(" in found[0] else _TAIL)
        return _spelled(at + len(path), _spell_path(path)) if len(path) > 2 else None
    if text[at] in "/~.":
        found = _UNIX.match(text, at)
        path = found[0].rstrip(_TAIL) if found else ""
        return _spelled(at + len(path), _spell_path(path)) if any(map(str.isalpha, path)) else None
    found = _RELATIVE.match(text, at)
    path = found[0].rstrip(_TAIL) if found else ""
    if found and _RELATIVE_END.search(path) and any(map(str.isalpha, path.partition("/")[0])):
        return _spelled(at + len(path), _spell_path(path))
    return None


def _spell_path(path: str) -> list[str]:
    stem, dot, suffix = path.rpartition(".")
    if dot and stem and suffix.isalnum() and suffix[0].isalpha() and len(suffix) <= 5:
        return [*spell_out(stem), "dot", *_suffix(suffix)]
    return spell_out(path)


ADDRESS_READERS: tuple[Reader, ...] = (_read_email, _read_url, read_path)
"""The readers for a letter or a digit, in the order to try them."""
