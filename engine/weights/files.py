"""The format of a model file or directory: its content decides, never its name."""

from __future__ import annotations

from pathlib import Path

from voxlane.engine.errors import WeightsError
from voxlane.engine.weights.gguf import GGUFFile
from voxlane.engine.weights.gguf_header import MAGIC
from voxlane.engine.weights.importers.ctranslate2 import MODEL, CTranslate2Directory
from voxlane.engine.weights.importers.ort import ENCODER, MoonshineDirectory
from voxlane.engine.weights.safetensors import SafetensorsDirectory

OpenedWeights = GGUFFile | SafetensorsDirectory | MoonshineDirectory | CTranslate2Directory


def open_weights(path: str | Path) -> OpenedWeights:
    """Open a GGUF file or a directory of safetensors, ONNX Runtime or CTranslate2 files, or raise WeightsError."""
    path = Path(path)
    if path.is_dir():
        if (path / ENCODER).is_file():
            return MoonshineDirectory(path)
        if (path / MODEL).is_file():
            return CTranslate2Directory(path)
        if (path / "config.json").is_file():
            return SafetensorsDirectory(path)
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return GGUFFile(files[0])
        found = "several GGUF files: name one" if files else "neither config.json nor a GGUF file in it"
        raise WeightsError(path, f"not a model directory: {found}")
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except FileNotFoundError as error:
        raise WeightsError(path, "there is no such file or directory") from error
    except OSError as error:
        raise WeightsError(path, f"cannot be read: {error.strerror or error}") from error
    if start[:4] == MAGIC:
        return GGUFFile(path)
    if start[8:9] == b"{" and (path.parent / "config.json").is_file():
        return SafetensorsDirectory(path.parent)
    raise WeightsError(path, "not a model file: neither GGUF nor safetensors beside a config.json")
