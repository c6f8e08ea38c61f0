"""Triton's interpreter, for runs that try a benchmark on a CPU: what it takes to get to our kernels and through."""

from __future__ import annotations

from typing import Any


def mend() -> None:
    """Let a loop run to a scalar: Triton 3.6 makes a number of it in a way that numpy 2.4 refuses."""
    from triton.runtime import interpreter

    whole = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        whole(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch


def put(module: object, **functions: object) -> None:
    """Let a module call other functions under these names: kernels, where a CPU's tensors would go to references."""
    for name, function in functions.items():
        setattr(module, name, function)
