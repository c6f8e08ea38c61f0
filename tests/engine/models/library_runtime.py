"""The ONNX Runtime that Moonshine's C++ library is linked with, through its C interface.

Only this one computes the library's bits: another version of the runtime adds up in another order. It runs a model on
float32, int64 and bool arrays and gives float32 back; it knows nothing of speech.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import moonshine_voice
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

_API_VERSION = 23
_PLACES = {  # in the interface's table of functions, to which versions only ever append
    "GetErrorMessage": 2, "CreateEnv": 3, "CreateSession": 7, "CreateSessionFromArray": 8, "Run": 9,
    "CreateSessionOptions": 10, "SetOptimizedModelFilePath": 11, "SetSessionLogSeverityLevel": 22,
    "SetSessionGraphOptimizationLevel": 23, "SetIntraOpNumThreads": 24, "CreateTensorWithDataAsOrtValue": 49,
    "GetTensorMutableData": 51, "GetDimensionsCount": 61, "GetDimensions": 62, "GetTensorTypeAndShape": 65,
    "CreateCpuMemoryInfo": 69, "ReleaseSession": 95, "ReleaseValue": 96, "ReleaseTensorTypeAndShapeInfo": 99,
    "ReleaseSessionOptions": 100,
}  # fmt: skip
_TYPES = {np.dtype(np.float32): 1, np.dtype(np.int64): 7, np.dtype(np.bool_): 9}
_ERRORS_ONLY = 3
_OPTIMISE_NOTHING = 0
_ARENA, _DEFAULT_MEMORY = 1, 0


class LibraryRuntime:
    """One environment of the runtime, for as long as the process lives."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(Path(moonshine_voice.__file__).with_name("libmoonshine.so")))
        library.OrtGetApiBase.restype = ctypes.POINTER(ctypes.c_void_p)  # [GetApi, GetVersionString]
        base = library.OrtGetApiBase()
        table = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(base[0])(_API_VERSION)
        self.version = ctypes.CFUNCTYPE(ctypes.c_char_p)(base[1])().decode()
        self._functions = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
        self._environment = self.make("CreateEnv", ctypes.c_int(_ERRORS_ONLY), b"test")
        self.memory = self.make("CreateCpuMemoryInfo", ctypes.c_int(_ARENA), ctypes.c_int(_DEFAULT_MEMORY))

    def call(self, name: str, *arguments: object) -> None:
        """Call a function that reports its success."""
        status = self._function(name, ctypes.c_void_p)(*arguments)
        if status:
            message = self._function("GetErrorMessage", ctypes.c_char_p)(ctypes.c_void_p(status))
            raise RuntimeError(f"{name}: {message.decode()}")

    def make(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """Call a function whose last argument points to where its result goes."""
        made = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(made))
        return made

    def release(self, kind: str, thing: ctypes.c_void_p) -> None:
        """Give something back that was made."""
        self._function(f"Release{kind}", None)(thing)

    def convert(self, source: Path, target: Path) -> None:
        """Write a model in the runtime's own format as one in ONNX, node by node the same."""
        options = self._options()
        self.call("SetOptimizedModelFilePath", options, str(target).encode())
        self.release("Session", self.make("CreateSession", self._environment, str(source).encode(), options))
        self.release("SessionOptions", options)

    def session(self, model: bytes) -> LibrarySession:
        """Load an ONNX model to be run as it is, on one thread."""
        options = self._options()
        made = self.make("CreateSessionFromArray", self._environment, model, ctypes.c_size_t(len(model)), options)
        self.release("SessionOptions", options)
        return LibrarySession(self, made)

    def _options(self) -> ctypes.c_void_p:
        options = self.make("CreateSessionOptions")
        self.call("SetSessionLogSeverityLevel", options, ctypes.c_int(_ERRORS_ONLY))
        self.call("SetSessionGraphOptimizationLevel", options, ctypes.c_int(_OPTIMISE_NOTHING))
        self.call("SetIntraOpNumThreads", options, ctypes.c_int(1))
        return options

    def _function(self, name: str, result: type | None) -> Callable[..., Any]:
        return ctypes.CFUNCTYPE(result)(self._functions[_PLACES[name]])


class LibrarySession:
    """A loaded model."""

    def __init__(self, runtime: LibraryRuntime, session: ctypes.c_void_p) -> None:
        self._runtime = runtime
        self._session = session

    def run(self, names: Sequence[str], feed: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
        """Return the outputs `names`, all of them float32."""
        arrays = [np.ascontiguousarray(array) for array in feed.values()]
        inputs = [self._tensor(array) for array in arrays]
        outputs = (ctypes.c_void_p * len(names))()
        self._runtime.call(
            "Run", self._session, None,
            _texts(list(feed)), (ctypes.c_void_p * len(inputs))(*inputs), ctypes.c_size_t(len(inputs)),
            _texts(names), ctypes.c_size_t(len(names)), outputs,
        )  # fmt: skip
        found = {name: self._read(ctypes.c_void_p(output)) for name, output in zip(names, outputs, strict=True)}
        for value in (*inputs, *map(ctypes.c_void_p, outputs)):
            self._runtime.release("Value", value)
        return found

    def _tensor(self, array: Array) -> ctypes.c_void_p:
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        return self._runtime.make(
            "CreateTensorWithDataAsOrtValue", self._runtime.memory, ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(array.nbytes), shape, ctypes.c_size_t(array.ndim), ctypes.c_int(_TYPES[array.dtype]),
        )  # fmt: skip

    def _read(self, value: ctypes.c_void_p) -> NDArray[np.float32]:
        info = self._runtime.make("GetTensorTypeAndShape", value)
        rank = ctypes.c_size_t()
        self._runtime.call("GetDimensionsCount", info, ctypes.byref(rank))
        shape = (ctypes.c_int64 * rank.value)()
        self._runtime.call("GetDimensions", info, shape, rank)
        self._runtime.release("TensorTypeAndShapeInfo", info)
        data = self._runtime.make("GetTensorMutableData", value)
        return np.ctypeslib.as_array(ctypes.cast(data, ctypes.POINTER(ctypes.c_float)), tuple(shape)).copy()


def _texts(names: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
