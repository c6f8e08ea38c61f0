"""torchaudio's `functional`, importable beside any torch.

torchaudio's published wheels are linked with CUDA. Beside a CPU build of torch, `import torchaudio` raises OSError
because its binary half cannot load; beside a torch for another version of CUDA it raises RuntimeError. The functions
used here (mel filter banks, resampling, noise) are Python. So where the binary half fails, an empty module takes the
place of `torchaudio._extension`, which is all that loads it. Nothing else imports torchaudio directly.
"""

from __future__ import annotations

import sys
from types import ModuleType

__all__ = ["functional"]


def _without_binary_half() -> ModuleType:
    """Return what torchaudio's Python half expects of `_extension` where there is no binary half."""
    stub = ModuleType("torchaudio._extension")
    stub._IS_TORCHAUDIO_EXT_AVAILABLE = False  # type: ignore[attr-defined]
    stub.fail_if_no_align = lambda function: function  # type: ignore[attr-defined]
    return stub


try:
    from torchaudio import functional
except (OSError, RuntimeError):
    sys.modules["torchaudio._extension"] = _without_binary_half()
    from torchaudio import functional
