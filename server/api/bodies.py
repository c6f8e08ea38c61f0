"""Bodies of requests into checked structs, and the base of answers; errors name the parameter, as OpenAI's. Pure.

Every parameter is honoured, or accepted without effect, or refused by name: a parameter that is silently ignored is a
lie. The struct is the one description: it is checked here, and shown at /openapi.json.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from msgspec import Meta, Struct

from voxlane.engine.api import RequestStats
from voxlane.server import limits
from voxlane.server.errors import InvalidRequest, UnsupportedParameter
from voxlane.server.log import quote
from voxlane.server.validation import InvalidValue, checked, fields_of, is_list

B = TypeVar("B", bound=Struct)

Name = Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARACTERS)]
"""An identifier that a client sends."""

WITHOUT_EFFECT = "Accepted, without effect."
Ignored = Annotated[Any, Meta(description=WITHOUT_EFFECT)]
"""A parameter that changes nothing here: bookkeeping, and hints for another company's caches."""

PriorityName = Annotated[
    Literal["normal", "high", "critical"], Meta(description="How urgent it is; `critical` is the interrupt lane.")
]
Deadline = Annotated[
    float, Meta(ge=1, le=3_600_000, description="When the first output is due: what is due sooner is computed sooner.")
]
CacheSalt = Annotated[
    Name, Meta(description="Requests with another salt, or with another key, never share cached work with this one.")
]


class Body(Struct, kw_only=True, forbid_unknown_fields=True):
    """An object that a client sends: a name that it does not have is refused."""


class JsonReply(Struct, kw_only=True):
    """An object that we send: a field that is not always there is UNSET by default, the others always are."""


class TokenCounts(JsonReply):
    """How much the model read and wrote."""

    input_tokens: int
    output_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, stats: RequestStats) -> Self:
        """Return the counts of one request."""
        total = stats.prompt_tokens + stats.output_tokens
        return cls(input_tokens=stats.prompt_tokens, output_tokens=stats.output_tokens, total_tokens=total)


def read_body(
    kind: type[B],
    values: Mapping[str, Any],
    unsupported: Collection[str] = (),
    neutral: Mapping[str, tuple[object, ...]] | None = None,
) -> B:
    """Return a JSON object as a `kind`; null counts as absent.

    Raise UnsupportedParameter for the names in `unsupported`, unless they have a `neutral` value.
    """
    given = {name: value for name, value in values.items() if value is not None}
    return _read(kind, given, unsupported, neutral or {}, text=False)


def read_fields(
    kind: type[B],
    parts: Iterable[tuple[str, str]],
    unsupported: Collection[str] = (),
    neutral: Mapping[str, tuple[object, ...]] | None = None,
) -> B:
    """Return a form's fields as a `kind`: all of them are text, an empty one counts as absent, lists are repeated."""
    lists = {name.removesuffix("[]"): name for name, field in fields_of(kind).items() if is_list(field)}
    given: dict[str, Any] = {}
    for name, value in parts:
        plain = name.removesuffix("[]")  # clients differ on whether a list's name carries brackets
        if not value:
            continue
        if plain in lists:
            given.setdefault(lists[plain], []).append(value)
        elif plain in given:
            raise wrong(plain if plain in fields_of(kind) else quote(plain), "may be given only once")
        else:
            given[plain] = value
    return _read(kind, given, unsupported, neutral or {}, text=True)


def wrong(param: str, rule: str) -> InvalidRequest:
    """Return the error that names a parameter and the rule it breaks."""
    return InvalidRequest(f"{param} {rule}.", param=param)


def _read(
    kind: type[B],
    given: Mapping[str, Any],
    unsupported: Collection[str],
    neutral: Mapping[str, tuple[object, ...]],
    *,
    text: bool,
) -> B:
    known = fields_of(kind)
    for name, value in given.items():
        if name in unsupported:
            if value not in neutral.get(name, ()):
                raise UnsupportedParameter(f"{name} is not supported.", param=name)
        elif name not in known:
            raise InvalidRequest(f"{quote(name)} is not a parameter of this endpoint.", param=name[:64])
    try:
        return checked(kind, {name: value for name, value in given.items() if name in known}, text=text)
    except InvalidValue as error:
        if error.kind == "unsupported":
            raise UnsupportedParameter(f"{error.path}: {error.rule}.", param=error.path) from error
        raise wrong(error.path, error.rule) from error
