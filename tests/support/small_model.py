"""The chat model of most tests: fast to load and to run; its words do not matter."""

from __future__ import annotations

NAME = "smollm2-135m-instruct"


def with_small_model(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command's arguments with the small model, unless they name one."""
    return arguments if "--model" in arguments else (*arguments, "--model", NAME)
