"""multipart/form-data as it arrives: named fields, and one file. Pure, and bounded part by part.

Only searches in C run over the bytes, so that no body, however made, costs more than its length. It does not know how
the bytes arrive or what the fields mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from voxlane.server import limits
from voxlane.server.errors import InvalidRequest, TooLarge
from voxlane.server.log import quote

_BOUNDARY = re.compile(r'multipart/form-data *;(?:.*;)? *boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_DISPOSITION = re.compile(rb"(?:^|\r\n)content-disposition:[ \t]*form-data((?:[^\r]|\r(?!\n))*)", re.IGNORECASE)
_NAME = re.compile(rb';[ \t]*(name|filename)=(?:"((?:[^"\\]|\\.)*+)"|([^\s;"]++))', re.IGNORECASE)


@dataclass(slots=True)
class Form:
    """What a body holds: text fields in order, and the file if there is one."""

    fields: list[tuple[str, str]] = field(default_factory=list)
    file: bytearray | None = None


def boundary_of(content_type: str) -> bytes:
    """Return the boundary named in a Content-Type header."""
    found = _BOUNDARY.match(content_type[: limits.FORM_HEADER_BYTES])
    if not found:
        raise InvalidRequest("The body must be multipart/form-data with a boundary.")
    return (found[1] or found[2]).encode("latin-1", "replace")


class MultipartParser:
    """Takes a body in pieces; `form` is complete after finish()."""

    def __init__(self, boundary: bytes, file_field: str) -> None:
        self.form = Form()
        self._file_field = file_field
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # so that the first delimiter looks like the others
        self._state: Literal["preamble", "after", "header", "value", "epilogue"] = "preamble"
        self._parts = 0
        self._name = ""
        self._value = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body."""
        if self._state == "epilogue":
            return
        self._buffer += data
        while self._step():
            pass

    def finish(self) -> Form:
        """Return the form; raise if the body ended too early."""
        if self._state != "epilogue":
            raise InvalidRequest("The form ends in the middle.")
        return self.form

    def _step(self) -> bool:
        """Advance by one delimiter, header or value; return False when more bytes are needed, or no more."""
        match self._state:
            case "preamble" | "value":
                return self._until_delimiter()
            case "after":
                return self._after_delimiter()
            case _:
                return self._header()

    def _until_delimiter(self) -> bool:
        found = self._buffer.find(self._delimiter)
        # Without a delimiter, all but what could be the start of one is certain.
        certain = found if found >= 0 else max(0, len(self._buffer) - len(self._delimiter) + 1)
        if self._state == "value":
            self._add_value(certain)
        del self._buffer[:certain]
        if found < 0:
            return False
        if self._state == "value":
            self._end_value()
        del self._buffer[: len(self._delimiter)]
        self._state = "after"
        return True

    def _after_delimiter(self) -> bool:
        """Tell the last delimiter from one that a part follows."""
        if len(self._buffer) < 2:
            return False
        mark = bytes(self._buffer[:2])
        if mark == b"--":
            self._state = "epilogue"
            self._buffer.clear()
            return False
        if mark != b"\r\n":
            raise InvalidRequest("The form's parts are not separated as they should be.")
        self._parts += 1
        if self._parts > limits.FORM_PARTS:
            raise TooLarge(f"A form has at most {limits.FORM_PARTS} parts.")
        self._state = "header"
        return True

    def _header(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n", 0, limits.FORM_HEADER_BYTES)
        if end < 0:
            if len(self._buffer) >= limits.FORM_HEADER_BYTES:
                raise TooLarge(f"A part's header has at most {limits.FORM_HEADER_BYTES} bytes.")
            return False
        self._name = _part_name(bytes(self._buffer[:end]))
        if self._name == self._file_field and self.form.file is not None:
            raise InvalidRequest(f"{self._file_field} may be given only once.", param=self._file_field)
        self._value = bytearray()
        del self._buffer[: end + 4]
        self._state = "value"
        return True

    def _add_value(self, count: int) -> None:
        self._value += self._buffer[:count]
        if self._name != self._file_field and len(self._value) > limits.FORM_FIELD_BYTES:
            raise TooLarge(f"{quote(self._name)} has more than {limits.FORM_FIELD_BYTES} bytes.", param=self._name[:64])

    def _end_value(self) -> None:
        value, self._value = self._value, bytearray()
        if self._name == self._file_field:
            self.form.file = value
            return
        try:
            self.form.fields.append((self._name, value.decode("utf-8")))
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{quote(self._name)} is not UTF-8.", param=self._name[:64]) from error


def _part_name(header: bytes) -> str:
    disposition = _DISPOSITION.search(header)
    found = _NAME.findall(disposition[1]) if disposition else []
    names = {key.lower(): quoted or bare for key, quoted, bare in found}
    try:
        name: str = names[b"name"].decode("utf-8")
    except (KeyError, UnicodeDecodeError) as error:
        raise InvalidRequest("A part of the form has no name.") from error
    if not 0 < len(name) <= limits.NAME_CHARACTERS:
        raise InvalidRequest("A part of the form has no name.")
    return name
