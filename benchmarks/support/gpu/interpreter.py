"""Make Triton's interpreter run our kernels on a CPU, for dry runs."""

from __future__ import annotations

from typing import Any


def mend() -> None:
    """Let a loop run to a scalar: Triton 3.6 converts it in a way that numpy 2.4 refuses."""
    from triton.runtime import interpreter

    whole = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        whole(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch
