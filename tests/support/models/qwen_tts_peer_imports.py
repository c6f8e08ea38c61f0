"""Import this first in a script that runs inside the peer: afterwards `import qwen_tts` works there.

The package's modelling code is unchanged. Its other imports are replaced by stubs: audio files, the 25 Hz tokenizer
that no 12 Hz checkpoint uses, and librosa, of which the speaker encoder needs one function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import torch
from transformers.audio_utils import mel_filter_bank


def _mel(*, sr: int, n_fft: int, n_mels: int, fmin: float = 0.0, fmax: float | None = None) -> Any:
    """Return librosa.filters.mel's bank [n_mels, n_fft / 2 + 1]: transformers documents its own as equal."""
    top = sr / 2 if fmax is None else fmax
    bank = mel_filter_bank(n_fft // 2 + 1, n_mels, fmin, top, sr, norm="slaney", mel_scale="slaney")
    return bank.T.astype(np.float32)


def _module(name: str, **members: Any) -> ModuleType:
    module = sys.modules[name] = ModuleType(name)
    for key, value in members.items():
        setattr(module, key, value)
    return module


_module("soundfile")
_module("librosa", filters=_module("librosa.filters", mel=_mel))
_module(
    "qwen_tts.core.tokenizer_25hz.modeling_qwen3_tts_tokenizer_v1",
    Qwen3TTSTokenizerV1Model=type("Qwen3TTSTokenizerV1Model", (), {}),
)
torch.set_num_threads(1)
torch.set_grad_enabled(False)
