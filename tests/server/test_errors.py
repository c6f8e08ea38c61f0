"""The error tree: drawn as it is, each code once, each text fit to be shown."""

from __future__ import annotations

import re

from voxlane.server import errors
from voxlane.server.errors import VoxlaneError


def tree(cls: type[VoxlaneError]) -> list[type[VoxlaneError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in tree(child))]


def test_the_drawing_shows_every_class() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"(?:──|^)\s?([A-Z]\w+)", errors.__doc__, re.MULTILINE)
    assert [name for name in drawn if hasattr(errors, name)] == [cls.__name__ for cls in tree(VoxlaneError)]


def test_drawn_statuses_are_true() -> None:
    assert errors.__doc__ is not None
    for name, status in re.findall(r"(\w+) +(\d{3})\b", errors.__doc__):
        assert getattr(errors, name).http_status == int(status)


def test_codes_are_unique_and_texts_are_sentences() -> None:
    classes = [cls for cls in tree(VoxlaneError) if cls is not errors.InternalError]
    assert len({cls.code for cls in classes}) == len(classes)
    assert all(re.fullmatch(r"[A-Z].*\.", cls.text) for cls in classes)


def test_the_hint_is_shown_and_the_detail_is_not() -> None:
    error = errors.InvalidRequest("n must be 1.", param="n", detail="secret")
    assert error.message == "The request is not valid. n must be 1."
    assert "secret" not in str(error)
    assert errors.ContextTooLong("9 tokens").message.endswith("context. 9 tokens.")
    assert errors.InvalidRequest("Really?").message.endswith(" Really?")
    assert errors.InternalError().message == VoxlaneError.text
