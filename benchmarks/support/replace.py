"""Replace names of a module by stand-ins."""

from __future__ import annotations


def put(module: object, **functions: object) -> None:
    """Replace names of a module, for example references by kernels; raise AttributeError if it has no such name."""
    for name, function in functions.items():
        getattr(module, name)
        setattr(module, name, function)
