"""A multipart/form-data body as it arrives: text fields, and one file. Pure.

The library `multipart` parses the bytes. This module collects the parts, limits each of them and names the errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from multipart import (
    MultipartError,
    MultipartSegment,
    ParserLimitReached,
    PushMultipartParser,
    parse_options_header,
)

from voxlane.server import limits
from voxlane.server.errors import InvalidRequest, TooLarge
from voxlane.server.log import quote

BOUNDARY_CHARACTERS = 200
"""Length of a boundary: RFC 2046 allows 70."""


@dataclass(slots=True)
class Form:
    """The contents of a form: text fields in order, and the file if there is one."""

    fields: list[tuple[str, str]] = field(default_factory=list)
    file: bytearray | None = None


def boundary_of(content_type: str) -> bytes:
    """Return the boundary named in a Content-Type header."""
    kind, options = parse_options_header(content_type[: limits.FORM_HEADER_BYTES])
    boundary: str = options.get("boundary", "")
    if kind != "multipart/form-data" or not 0 < len(boundary) <= BOUNDARY_CHARACTERS:
        raise InvalidRequest("The body must be multipart/form-data with a boundary.")
    return boundary.encode("latin-1", "replace")


class FormReader:
    """Reads a form from the pieces of its body."""

    def __init__(self, boundary: bytes, file_field: str, field_bytes: int = limits.FORM_FIELD_BYTES) -> None:
        self._form = Form()
        self._file_field = file_field
        self._field_bytes = field_bytes  # the most of a part that is not the file
        self._parser = PushMultipartParser(
            boundary,
            max_header_count=limits.FORM_HEADERS,
            max_header_size=limits.FORM_HEADER_BYTES,
            max_segment_count=limits.FORM_PARTS,
        )
        self._parts = 0
        self._name = ""
        self._value = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body."""
        if not data:
            return  # the parser takes an empty piece for the end of the body
        try:
            for event in self._parser.parse(data):
                if isinstance(event, MultipartSegment):
                    self._begin(event.name)
                elif event is None:
                    self._end()
                else:
                    self._add(event)
        except ParserLimitReached as error:
            if self._parts == limits.FORM_PARTS:
                raise TooLarge(f"A form has at most {limits.FORM_PARTS} parts.") from error
            headers = f"{limits.FORM_HEADERS} headers of at most {limits.FORM_HEADER_BYTES} bytes"
            raise TooLarge(f"A part of a form has at most {headers}.") from error
        except MultipartError as error:
            # The first argument is a constant of the library; others may hold the sender's text.
            raise InvalidRequest(f"The form cannot be read: {error.args[0]}.") from error

    def finish(self) -> Form:
        """Return the form; raise if the body ended too early."""
        try:
            self._parser.close()
        except MultipartError as error:
            raise InvalidRequest("The form ends in the middle.") from error
        return self._form

    def _begin(self, name: str) -> None:
        self._parts += 1
        if not 0 < len(name) <= limits.NAME_CHARACTERS:
            raise InvalidRequest("A part of the form has no name.")
        if name == self._file_field and self._form.file is not None:
            raise InvalidRequest(f"{self._file_field} may be given only once.", param=self._file_field)
        self._name, self._value = name, bytearray()

    def _add(self, data: bytes) -> None:
        self._value += data
        if self._name != self._file_field and len(self._value) > self._field_bytes:
            raise TooLarge(f"{quote(self._name)} has more than {self._field_bytes} bytes.", param=self._name[:64])

    def _end(self) -> None:
        if self._name == self._file_field:
            self._form.file = self._value
            return
        try:
            self._form.fields.append((self._name, self._value.decode("utf-8")))
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{quote(self._name)} is not UTF-8.", param=self._name[:64]) from error
