"""A request's body, read with limits on size and time; as JSON, with limits on depth and numbers too."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from voxlane.server.config import LimitsConfig
from voxlane.server.errors import InvalidRequest, RequestTimeout, TooLarge


async def read_object(request: Request, limits: LimitsConfig) -> dict[str, Any]:
    """Return the body as a JSON object; raise a VoxlaneError for anything else."""
    pieces = [piece async for piece in pieces_of(request, limits.body_bytes, limits.body_s)]
    value = parse_json(b"".join(pieces))
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return value


def parse_json(data: bytes) -> Any:
    """Return the JSON value in `data`; refuse what the json module lets through: NaN, infinity, half characters."""
    try:
        text = data.decode("utf-8")
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        # A lone surrogate survives json.loads and would break every encoder after us.
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest("The body is not UTF-8.") from error
    except UnicodeEncodeError as error:
        raise InvalidRequest("The body holds half a surrogate pair.") from error
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply.") from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not JSON: line {error.lineno} column {error.colno}.") from error
    except ValueError as error:
        raise InvalidRequest("The body holds a number that is out of range.") from error
    return value


async def pieces_of(request: Request, most_bytes: int, seconds: float) -> AsyncIterator[bytes]:
    """Yield the body as it arrives; raise when it is larger than `most_bytes` or takes longer than `seconds`."""
    declared = request.headers.get("content-length", "")
    too_large = TooLarge(f"The limit is {most_bytes} bytes.")
    # h11 has already refused a content-length that is no number.
    if declared.isdigit() and int(declared) > most_bytes:
        raise too_large
    size = 0
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    body = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout_at(due):
                piece = await anext(body, None)
        except TimeoutError as error:
            raise RequestTimeout from error
        except ClientDisconnect as error:
            raise ClientGone from error
        if piece is None:
            return
        size += len(piece)
        if size > most_bytes:
            raise too_large
        yield piece


class ClientGone(Exception):
    """The client left: no answer can be sent."""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(digits[:20])
    return value
