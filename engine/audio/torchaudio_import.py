"""torchaudio's `functional`, importable beside any torch.

torchaudio's published wheels are linked with CUDA. Beside a CPU build of torch, `import torchaudio` raises OSError
because its binary half cannot load; beside a torch for another version of CUDA it raises RuntimeError. The functions
used here (mel filter banks, resampling, noise) are pure Python. So if the binary half fails to load, a stub takes the
place of `torchaudio._extension`, the only module that loads it. All our code imports torchaudio through this module.
transformers imports torchaudio too: a program that uses both imports this module first.
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
except (ImportError, OSError, RuntimeError):
    sys.modules["torchaudio._extension"] = _without_binary_half()
    from torchaudio import functional
