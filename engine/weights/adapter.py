"""LoRA adapters in PEFT's layout, merged into a model's tensors while it is loaded.

An adapter is a directory with adapter_config.json and adapter_model.safetensors. AdaptedWeights takes the place of the
model file: it returns a tensor that the adapter changes in float32 with the change in it, the others as the file has
them. When the model runs, the adapter costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from voxlane.engine.errors import StoreError, WeightsError
from voxlane.engine.weights import store
from voxlane.engine.weights.adapter_config import CONFIG, AdapterConfig
from voxlane.engine.weights.safetensors import SafetensorsFiles
from voxlane.engine.weights.tensors import Blocks, WeightFile, decoder_name

TENSORS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

_PREFIX = "base_model.model."
_PART = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?:\.default)?(?:\.weight)?"
)
_WRAPPER = re.compile(r"\.(base_layer|modules_to_save(?:\.default)?)(?=\.)")


@dataclass(frozen=True, slots=True)
class _LowRank:
    """The change of one matrix, by its tensors' names in the adapter: weight + scale · B @ A."""

    a: str  # [rank, in]
    b: str  # [out, rank]
    magnitude: str | None  # DoRA: the length of each row afterwards, or of each column of an embedding table
    scale: float
    table: bool  # an embedding table [vocabulary, hidden]: the product is transposed


SHIPPED = "voxlane-spoken"
"""The public name of every adapter that comes with voxlane."""


def shipped(model: str) -> Path | None:
    """Return the directory of the adapter that comes with voxlane for a model of the catalog, None if there is none."""
    known = store.task_of(model) is not None  # a path is not the name of a folder
    folder = Path(__file__).parent / "adapters" / model
    return folder if known and folder.is_dir() else None


def locate(name: str, progress: store.Progress = lambda done: None, *, pull_missing: bool = True) -> Path:
    """Return the directory of an adapter given by path or hf: name, or raise StoreError."""
    if name.startswith("hf:"):
        return store.resolve(name, progress=progress, pull_missing=pull_missing)
    path = Path(name).expanduser()
    if not path.exists():
        raise StoreError(f"{name}: there is no such adapter: a directory with {CONFIG}, or hf:OWNER/REPO, is needed")
    return path.parent if path.name in (CONFIG, TENSORS) and path.is_file() else path


class Adapter:
    """An adapter's tensors, sorted by what they do to which tensor of a model."""

    def __init__(self, directory: Path) -> None:
        if not (directory / CONFIG).is_file():
            raise WeightsError(directory, f"not an adapter: there is no {CONFIG} in it")
        self.config = AdapterConfig.read(directory)
        self._file = directory / TENSORS
        self.sources = (self._file, directory / CONFIG)
        if not self._file.is_file():
            if (directory / PICKLE).is_file():
                raise WeightsError(
                    directory / PICKLE,
                    f"a pickle, which is never loaded: save the adapter again as {TENSORS} (PEFT's default)",
                )
            raise WeightsError(directory, f"there is no {TENSORS} in it")
        self._tensors = SafetensorsFiles([self._file])
        self.replaced: dict[str, str] = {}  # a tensor of the model -> the tensor of the adapter that replaces it
        self.shared: set[str] = set()  # names in `replaced` whose tensor is the base model's own, saved along
        self.low_rank: dict[str, _LowRank] = {}
        parts: dict[str, dict[str, str]] = {}
        for name in self._tensors.names():
            self._sort(name, parts)
        for module, found in parts.items():
            self._pair(module, found)
        if not self.replaced and not self.low_rank:
            raise WeightsError(self._file, "there is no tensor in it that changes a language model")

    def tensor(self, name: str) -> Tensor:
        """Return one tensor as float32, or raise WeightsError if a number in it is not finite."""
        tensor = self._tensors.tensor(name).to(torch.float32)
        if not bool(torch.isfinite(tensor).all()):
            raise self.refuse(f"tensor {name!r:.120} has a number in it that is not finite")
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """Return one tensor's shape."""
        return self._tensors.shape(name)

    def refuse(self, reason: str) -> WeightsError:
        """Return the error that names the adapter's file."""
        return WeightsError(self._file, reason)

    def _sort(self, name: str, parts: dict[str, dict[str, str]]) -> None:
        """Sort a tensor of the adapter by its name; leave out those of a vision tower, which is never run."""
        plain = name.removeprefix(_PREFIX)
        part = _PART.fullmatch(plain)
        if part is not None:
            if decoder_name(f"{part['module']}.weight") is not None:
                self._put(parts.setdefault(part["module"], {}), part["part"], name)
            return
        wrapper = _WRAPPER.search(plain)
        target = decoder_name(_WRAPPER.sub("", plain))
        if target is not None:
            self._put(self.replaced, target, name)
            if wrapper is not None and wrapper[1] == "base_layer":
                self.shared.add(target)

    def _put(self, table: dict[str, str], key: str, name: str) -> None:
        if key in table:
            raise self.refuse(f"tensors {table[key]!r:.120} and {name!r:.120} are for the same place")
        table[key] = name

    def _pair(self, module: str, found: dict[str, str]) -> None:
        """Check the factors of one module's change against each other and the configuration."""
        table = any("embedding" in part for part in found)
        first, second = ("lora_embedding_A", "lora_embedding_B") if table else ("lora_A", "lora_B")
        magnitude = found.pop("lora_magnitude_vector", None)
        if set(found) != {first, second}:
            raise self.refuse(f"{module:.120} has {', '.join(sorted(found)) or 'a magnitude'} without its counterpart")
        if self.config.dora != (magnitude is not None):
            there, told = ("no", "true") if self.config.dora else ("a", "false")
            raise self.refuse(f"{module:.120} has {there} lora_magnitude_vector, but use_dora is {told}")
        rank, a, b = self.config.rank_of(module), self.shape(found[first]), self.shape(found[second])
        if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
            raise self.refuse(f"{module:.120}: factors of shapes {list(a)} and {list(b)} are not of rank {rank}")
        target = decoder_name(f"{module}.weight")
        assert target is not None  # _sort left the others out
        if target in self.low_rank:
            raise self.refuse(f"there are two changes of {target:.120}")
        scale = self.config.scale_of(module)
        self.low_rank[target] = _LowRank(found[first], found[second], magnitude, scale, table)


class AdaptedWeights:
    """A model file with an adapter merged into it, as a WeightFile."""

    def __init__(self, base: WeightFile, adapter: Adapter, *, tied: bool) -> None:
        """Wrap `base`. `tied` means that its output head is its embedding table.

        If the adapter changes the table or the head of a tied model, the result is untied: the adapter was trained
        with the change in one of the two places. (PEFT's own merge_and_unload applies it to both.)
        """
        self._base = base
        self.adapter = adapter
        names = {plain: name for name in base.names() if (plain := decoder_name(name)) is not None}
        self._replaced = dict(adapter.replaced)
        if tied:
            for one, other in ((EMBEDDING, HEAD), (HEAD, EMBEDDING)):
                if one in adapter.shared:  # one tensor in PEFT's model, saved under one of its names
                    self._replaced.setdefault(other, adapter.replaced[one])
        changed = self._replaced.keys() | adapter.low_rank.keys()
        self._untied = tied and not changed.isdisjoint((EMBEDDING, HEAD))
        self._copies: dict[str, str] = {}  # a tensor's name -> the tensor of the base file that it copies
        if self._untied:
            self._copies[names.setdefault(HEAD, HEAD)] = names.get(EMBEDDING, EMBEDDING)
        self._check(names.keys(), changed)
        self._changed = {names[plain]: plain for plain in changed}

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that the weights come from; () if the base model's are not known."""
        base: tuple[Path, ...] = getattr(self._base, "sources", ())
        return (*base, *self.adapter.sources) if base else ()

    @property
    def config(self) -> dict[str, object]:
        """The base model's architecture, untied if the adapter requires it."""
        config = dict(self._base.config)
        if self._untied:
            config["tie_word_embeddings"] = False
            if isinstance(text := config.get("text_config"), dict):
                config["text_config"] = {**text, "tie_word_embeddings": False}
        return config

    def names(self) -> list[str]:
        """Return every tensor's name."""
        return list(dict.fromkeys([*self._base.names(), *self._copies]))

    def tensor(self, name: str) -> Tensor:
        """Return one tensor: in float32 if the adapter changes it, else as the base file has it."""
        stored = self._base.tensor(self._copies.get(name, name))
        plain = self._changed.get(name)
        if plain is None:
            return stored
        weight = self._whole(plain, stored)
        change = self.adapter.low_rank.get(plain)
        return weight if change is None else self._merged(plain, weight, change)

    def blocks(self, name: str) -> Blocks | None:
        """Return the base file's codes; None for a tensor that the adapter changes."""
        return None if name in self._changed else self._base.blocks(self._copies.get(name, name))

    def _check(self, there: Collection[str], changed: set[str]) -> None:
        """Raise WeightsError if the model lacks a tensor that the adapter changes, or the adapter one it announces."""
        for plain in sorted(changed.difference(there)):
            change = self.adapter.low_rank.get(plain)
            name = self._replaced[plain] if change is None else change.a
            raise self.adapter.refuse(f"tensor {name!r:.120} fits nothing in the model, which has no {plain:.120}")
        for plain in there:
            module = plain.rpartition(".")[0]
            if module.endswith(self.adapter.config.saved_modules) and plain not in self._replaced:
                raise self.adapter.refuse(f"modules_to_save has {module}, but there is no tensor for {plain}")

    def _whole(self, plain: str, stored: Tensor) -> Tensor:
        """Return the tensor before any low-rank change."""
        name = self._replaced.get(plain)
        if name is None:
            return stored.to(torch.float32)
        if self.adapter.shape(name) != stored.shape:
            raise self._misfit(name, self.adapter.shape(name), plain, stored)
        return self.adapter.tensor(name)

    def _merged(self, plain: str, weight: Tensor, change: _LowRank) -> Tensor:
        a, b = self.adapter.tensor(change.a), self.adapter.tensor(change.b)
        left, right = (a.t(), b.t()) if change.table else (b, a)
        shape = (left.shape[0], right.shape[1])
        if shape != weight.shape:
            raise self._misfit(change.b, shape, plain, weight)
        merged = torch.addmm(weight, left, right, alpha=change.scale)
        if change.magnitude is not None:
            lengths = torch.linalg.vector_norm(merged, dim=0 if change.table else 1, keepdim=True)
            wanted = self.adapter.tensor(change.magnitude)
            if wanted.numel() != lengths.numel():
                raise self._misfit(change.magnitude, wanted.shape, plain, weight)
            merged *= wanted.view_as(lengths) / lengths
        if not bool(torch.isfinite(merged).all()):
            raise self.adapter.refuse(f"{plain} is not finite with the adapter in it")
        return merged

    def _misfit(self, name: str, found: Sequence[int], plain: str, weight: Tensor) -> WeightsError:
        base = self.adapter.config.base
        other = f": it was trained on {base}" if base else ""
        return self.adapter.refuse(
            f"tensor {name!r:.120} is for a matrix of {list(found)}, but {plain} is {list(weight.shape)}{other}"
        )
