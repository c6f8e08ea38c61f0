"""The chat model that most tests run: quick to load and quick to write, whatever it says."""

from __future__ import annotations

NAME = "smollm2-135m-instruct"


def with_small_model(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command's arguments with the small model, unless they name one."""
    return arguments if "--model" in arguments else (*arguments, "--model", NAME)
