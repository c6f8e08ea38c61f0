"""The native library: built from the C++ files of all kernels by the machine's own compiler, loaded through ctypes.

If there is no compiler, a build fails or a result differs from its reference, it logs that once and the references
serve.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import threading
from pathlib import Path

import torch
from torch import Tensor

from voxlane.codecs.native_build import BuildError, build, fingerprint

_log = logging.getLogger(__name__)

_KERNELS = Path(__file__).parents[1]
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-ffp-contract=off")

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    "vox_set_threads": [ctypes.c_int],
    "vox_show_progress": [_POINTER],
    "vox_packed_linear": [_POINTER] * 2 + [_INT] + [_POINTER] * 2 + [_INT] * 3,
    "vox_packed_embed": [_POINTER] * 3 + [_INT] * 2,
    "vox_linear": [_POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT, _INT, _INT],
    "vox_stack": [_POINTER] * 4,
    "vox_rms_norm": [_POINTER] * 3 + [_INT, _INT, _FLOAT],
    "vox_add_rms_norm": [_POINTER] * 4 + [_INT, _INT, _FLOAT],
    "vox_layer_norm": [_POINTER] * 4 + [_INT, _INT, _FLOAT],
    "vox_add_layer_norm": [_POINTER] * 5 + [_INT, _INT, _FLOAT],
    "vox_gelu": [_POINTER, _INT, _INT],
    "vox_tanh": [_POINTER, _INT, _INT],
    "vox_silu_mul": [_POINTER, _POINTER, _INT, _INT],
    "vox_gelu_tanh_mul": [_POINTER, _POINTER, _INT, _INT],
    "vox_rope_write": [_POINTER] * 2 + [_INT] * 4 + [_POINTER] * 4 + [_INT] + [_POINTER] * 4 + [_INT]
    + [_POINTER] * 2 + [_FLOAT],
    "vox_paged_attention": [_POINTER] * 2 + [_INT] * 4 + [_POINTER] * 4 + [_INT] + [_POINTER] * 4 + [_INT] * 2
    + [_FLOAT, _INT, _INT, _FLOAT, _POINTER, _FLOAT],
    "vox_route": [_POINTER] * 4 + [_INT] * 4 + [_FLOAT],
    "vox_short_conv": [_POINTER] * 4 + [_INT] * 3 + [_POINTER] + [_INT] * 2 + [_POINTER] * 4 + [_INT] * 2,
}  # fmt: skip

_PAGE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}  # pages.h

_lock = threading.Lock()
_tried = False
_library: ctypes.CDLL | None = None
_reason = ""
_threads = 0


def library(x: Tensor) -> ctypes.CDLL | None:
    """Return the library if it can work on `x`, a float32 tensor on the CPU; build and load it on the first call."""
    if x.dtype is not torch.float32 or not x.is_cpu:
        return None
    return _library if _tried else load()


def load() -> ctypes.CDLL | None:
    """Build, load and check the library once; return it, or None if the references must serve."""
    global _tried, _library
    with _lock:
        if not _tried:
            _library = _load()
            _tried = True
    return _library


def set_threads(count: int) -> None:
    """Set the number of threads of native operations; 0 means every core this process may use."""
    global _threads
    _threads = count
    loaded = load()
    if loaded is not None:
        loaded.vox_set_threads(count or _cores())


def show_progress(address: int) -> bool:
    """Let native operations of the calling thread count at this address; return whether there are any."""
    loaded = load()
    if loaded is not None:
        loaded.vox_show_progress(address)
    return loaded is not None


def description() -> str:
    """Return what serves the operations on this machine's CPU, for logs and benchmarks."""
    loaded = load()
    if loaded is None:
        return "torch"
    kind: bytes = loaded.vox_kind()
    return f"native {kind.decode()}, {loaded.vox_threads()} threads"


def reason() -> str:
    """Return why the references must serve, or "" where they need not."""
    return "" if load() else _reason


def pointer(tensor: Tensor | None) -> int | None:
    """Return the address of a tensor's data, or a null pointer."""
    return None if tensor is None else tensor.data_ptr()


def page_type(page: Tensor) -> int:
    """Return the library's number for the element type of a page."""
    return _PAGE_TYPES[page.dtype]


def _load() -> ctypes.CDLL | None:
    global _reason
    if os.environ.get("VOXLANE_NATIVE") == "0":
        _reason = "VOXLANE_NATIVE=0 turns them off"
        _log.info("native=off reason=VOXLANE_NATIVE")
        return None
    from voxlane.engine.kernels import selfcheck  # here, because the operations it checks import this module

    try:
        loaded = _open(_build())
    except (OSError, AttributeError, subprocess.SubprocessError, BuildError) as error:
        _reason = " ".join(str(error).split())
        _log.warning("native=off slow=yes reason=%s", _reason)
        return None
    wrong = selfcheck.first_mismatch(loaded)
    if wrong:
        _reason = f"{wrong} disagrees with its reference on this machine"
        _log.warning("native=off slow=yes reason=%s", _reason)
        return None
    return loaded


def _open(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    for name, arguments in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, None
    loaded.vox_kind.restype = ctypes.c_char_p
    loaded.vox_set_threads(_threads or _cores())
    return loaded


def _build() -> Path:
    """Return the library's path, compiling it unless this machine has done so before."""
    return build("libvoxlane.so", sorted(_KERNELS.rglob("*.cpp")), sorted(_KERNELS.rglob("*.h")), _FLAGS)


def _fingerprint(compiler: str) -> str:
    """Return a name for this exact library: sources, flags, compiler and processor."""
    return fingerprint(compiler, (*_KERNELS.rglob("*.cpp"), *_KERNELS.rglob("*.h")), _FLAGS)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
