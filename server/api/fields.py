"""A request's parameters, each taken once and checked; what is left over at the end is refused by name.

It knows types and ranges, in JSON and in forms. It does not know what any parameter means.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from voxlane.server import limits
from voxlane.server.errors import InvalidRequest, UnsupportedParameter
from voxlane.server.log import quote


class RequestFields:
    """Parameters that came as JSON; null means absent."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._left = {name: value for name, value in body.items() if value is not None}

    def take(self, name: str) -> Any:
        """Return a value as it came, or None."""
        return self._left.pop(name, None)

    def rest(self) -> Mapping[str, Any]:
        """Return what nobody took."""
        return self._left

    def flag(self, name: str, *, usual: bool = False) -> bool:
        """Return true or false; absent is as usual."""
        value = self.take(name)
        if value is not None and type(value) is not bool:
            raise wrong(name, "must be true or false")
        return usual if value is None else bool(value)

    def text(self, name: str, most: int = limits.NAME_CHARACTERS) -> str | None:
        """Return a string that is neither empty nor too long."""
        value = self.take(name)
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= most):
            raise wrong(name, f"must be a string of 1 to {most} characters")
        return value

    def choice(self, name: str, choices: Iterable[str]) -> str | None:
        """Return one of the choices."""
        value = self.take(name)
        if value is not None and (not isinstance(value, str) or value not in choices):
            raise wrong(name, f"must be one of {', '.join(choices)}")
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        """Return a number of that range."""
        value = self.take(name)
        return None if value is None else in_range(name, value, least, most)

    def seconds(self, name: str, least: float, most: float) -> float | None:
        """Return a number of milliseconds as seconds."""
        value = self.number(name, least, most)
        return None if value is None else value / 1000

    def whole(self, name: str, least: int, most: int) -> int | None:
        """Return a whole number of that range."""
        value = self.take(name)
        if value is None:
            return None
        if type(value) is not int or not least <= value <= most:
            raise wrong(name, f"must be a whole number from {least} to {most}")
        return value

    def refuse_the_rest(
        self,
        *,
        harmless: Collection[str],
        unsupported: Collection[str],
        neutral: Mapping[str, tuple[object, ...]] | None = None,
    ) -> None:
        """Raise for the first parameter left that is neither harmless nor set to what it would do anyway."""
        for name, value in self._left.items():
            if name in harmless or value in (neutral or {}).get(name, ()):
                continue
            if name in unsupported:
                raise UnsupportedParameter(f"{name} is not supported.", param=name)
            raise InvalidRequest(f"{quote(name)} is not a parameter of this endpoint.", param=name[:64])


_FORM_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class FormFields(RequestFields):
    """Parameters that came as a form: all of them text, some of them several times."""

    def __init__(self, parts: Iterable[tuple[str, str]]) -> None:
        values: dict[str, list[str]] = {}
        for name, value in parts:
            # Clients differ on whether a list's name carries brackets.
            values.setdefault(name.removesuffix("[]"), []).append(value)
        super().__init__(values)

    def several(self, name: str, choices: Iterable[str]) -> tuple[str, ...]:
        """Return each of the choices that was named."""
        values: list[str] = super().take(name) or []
        if not set(values) <= set(choices):
            raise wrong(f"{name}[]", f"must be one of {', '.join(choices)}")
        return tuple(dict.fromkeys(values))

    def take(self, name: str) -> str | None:
        """Return the one value of a name; an empty one counts as absent, as forms have it."""
        values: list[str] = super().take(name) or [""]
        if len(values) > 1:
            raise wrong(name, "may be given only once")
        return values[0] or None

    def flag(self, name: str, *, usual: bool = False) -> bool:
        """Return true or false; absent is as usual."""
        value = self.take(name)
        if value is not None and value.lower() not in _FORM_FLAGS:
            raise wrong(name, "must be true or false")
        return usual if value is None else _FORM_FLAGS[value.lower()]

    def number(self, name: str, least: float, most: float) -> float | None:
        """Return a number of that range."""
        value = self.take(name)
        if value is None:
            return None
        try:
            return in_range(name, float(value), least, most)
        except ValueError as error:
            raise wrong(name, f"must be a number from {least:g} to {most:g}") from error


def in_range(name: str, value: Any, least: float, most: float) -> float:
    """Return a number of that range, or raise."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise wrong(name, f"must be a number from {least:g} to {most:g}")
    return float(value)


def wrong(param: str, rule: str) -> InvalidRequest:
    """Return the error that names a parameter and the rule it breaks."""
    return InvalidRequest(f"{param} {rule}.", param=param)
