"""Forms as they arrive: the same whatever the pieces, bounded part by part, and never an undocumented error."""

from __future__ import annotations

from itertools import pairwise

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from voxlane.server import limits
from voxlane.server.api.form import Form, FormReader, boundary_of
from voxlane.server.errors import InvalidRequest, TooLarge, VoxlaneError


def encoded(fields: list[tuple[str, str]], file: bytes | None) -> tuple[bytes, bytes]:
    """Return a body as httpx writes it, and its boundary."""
    parts: list[tuple[str, tuple[str | None, bytes]]] = [(name, (None, value.encode())) for name, value in fields]
    if file is not None:
        parts.insert(len(parts) // 2, ("file", ('a "b".wav', file)))
    request = httpx.Request("POST", "http://host/", files=parts)
    return request.read(), boundary_of(request.headers["content-type"])


def parse(body: bytes, boundary: bytes, cuts: list[int] | None = None) -> Form:
    reader = FormReader(boundary, "file")
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts or ())})
    for start, end in pairwise(places):
        reader.feed(body[start:end])
    return reader.finish()


NAMES = st.text(alphabet="abc[]_-é", min_size=1, max_size=12).filter(lambda name: name != "file")


@given(
    st.lists(st.tuples(NAMES, st.text(max_size=40)), max_size=8),
    st.none() | st.binary(max_size=300) | st.text(alphabet="\r\n-", max_size=300).map(str.encode),
    st.lists(st.integers(0, 4000), max_size=12),
)
def test_what_httpx_writes_is_read_whatever_the_pieces(
    fields: list[tuple[str, str]], file: bytes | None, cuts: list[int]
) -> None:
    if not fields and file is None:
        return  # httpx sends no form at all
    body, boundary = encoded(fields, file)
    form = parse(body, boundary, cuts)
    assert form.fields == fields
    assert form.file == file


def test_a_file_may_hold_almost_its_own_end() -> None:
    file = b"\r\n--bound\r\n--boundar" * 50 + b"\r\n"
    body = b'--boundary\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + file + b"\r\n--boundary--\r\n"
    for step in (1, 7, len(body)):
        assert parse(body, b"boundary", list(range(0, len(body), step))).file == file


def part(name: str, value: bytes, more: bytes = b"") -> bytes:
    return (
        b'--b\r\nContent-Disposition: form-data; name="' + name.encode() + b'"' + more + b"\r\n\r\n" + value + b"\r\n"
    )


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (b"", InvalidRequest, "ends in the middle"),
        (part("a", b"1"), InvalidRequest, "ends in the middle"),
        (part("a", b"1") + b"--bXY", InvalidRequest, "after boundary"),
        (b"--b\r\n\r\n1\r\n--b--", InvalidRequest, "Missing Content-Disposition"),
        (b"--b\r\nContent-Type: a\r\n\r\n1\r\n--b--", InvalidRequest, "Missing Content-Disposition"),
        (b'--b\r\nContent-Disposition: form-data; name=""\r\n\r\n1\r\n--b--', InvalidRequest, "no name"),
        (b'--b\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n1\r\n--b--', InvalidRequest, "failed to decode"),
        (part("a", b"\xff") + b"--b--", InvalidRequest, "a is not UTF-8"),
        (part("file", b"") * 2 + b"--b--", InvalidRequest, "file may be given only once"),
        (part("a", b"x" * (limits.FORM_FIELD_BYTES + 1)) + b"--b--", TooLarge, "a has more than"),
        (
            part("a", b"", b"; x=" + b"y" * limits.FORM_HEADER_BYTES) + b"--b--",
            TooLarge,
            "at most 8 headers of at most 4096 bytes",
        ),
        (part("a", b"", b"\r\nX: y" * limits.FORM_HEADERS) + b"--b--", TooLarge, "at most 8 headers"),
        (part("a", b"") * (limits.FORM_PARTS + 1) + b"--b--", TooLarge, "at most 64 parts"),
    ],
)
def test_bad_forms_are_named(body: bytes, error: type[VoxlaneError], says: str) -> None:
    with pytest.raises(error, match=says):
        parse(body, b"b")


def test_a_name_without_quotes() -> None:
    body = b"--b\r\ncontent-disposition: form-data; filename=x; name=file\r\n\r\n1\r\n--b--"
    assert parse(body, b"b").file == b"1"


PIECES = [
    b"--b", b"\r\n", b"--", b"\r\n--b", b'name="a"', b"content-disposition: form-data;", b"content-length: 3\r\n",
    b"\n", b" ", b'"', b"\xff", b"SECRET",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES)))
@example([b"--b", b"\r\n", b"\r\n", b"\r\n"])
@example([b"--b\r\n", b"SECRET\xff: SECRET\r\n"])
def test_any_bytes_are_a_form_or_a_known_error_that_repeats_nothing(pieces: list[bytes]) -> None:
    reader, told = FormReader(b"b", "file"), ""
    try:
        for piece in pieces:
            reader.feed(piece)
        reader.finish()
    except (InvalidRequest, TooLarge) as error:
        told = error.message
    assert "SECRET" not in told


@pytest.mark.parametrize(
    ("header", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; boundary="a b:c"', b"a b:c"),
        ("multipart/form-data;boundary=--x; charset=utf-8", b"--x"),
    ],
)
def test_boundaries(header: str, boundary: bytes) -> None:
    assert boundary_of(header) == boundary


@pytest.mark.parametrize("header", ["", "application/json", "multipart/form-data", "multipart/form-data; boundary="])
def test_no_boundary(header: str) -> None:
    with pytest.raises(InvalidRequest, match="multipart/form-data"):
        boundary_of(header)
