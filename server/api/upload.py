"""An uploaded audio file and the fields beside it: read, decoded, dropped.

Every byte is counted in the request's share before it is kept, and given back when it is dropped. What the fields mean
is up to the endpoint.
"""

from __future__ import annotations

from starlette.requests import Request

from voxlane.server.api.form import Form, FormReader, boundary_of
from voxlane.server.audio.decoding import AudioDecoder
from voxlane.server.http.body import pieces_of
from voxlane.server.http.request_limit import Share


async def read_form(request: Request, file_field: str, most_bytes: int, most_s: float, share: Share) -> Form:
    """Return the form in a request's body."""
    reader = FormReader(boundary_of(request.headers.get("content-type", "")), file_field)
    async for piece in pieces_of(request, most_bytes, most_s):
        share.hold(len(piece))
        reader.feed(piece)
    return reader.finish()


async def to_samples(
    file: bytearray, decoder: AudioDecoder, share: Share, rate: int, file_field: str, seconds: float | None = None
) -> bytes | bytearray:
    """Return a file's samples at `rate`, and empty the file; `seconds` limits its length, else the configuration."""
    samples = await decoder.decode(file, rate, seconds, file_field)
    share.hold(len(samples))
    share.give_back(len(file))
    file.clear()
    return samples
