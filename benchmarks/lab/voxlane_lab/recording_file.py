"""A call on disk: a folder with four files. `load` gives back what `save` was given.

    call.json      what was said and played, and when
    call.npz       the tracks and the states of each tick, as arrays
    events.jsonl   what happened, one event a line
    call.wav       the call to listen to: stereo at 16 kHz, the person left, the agent right; `load` does not read it

The arrays are read without pickle: a folder from elsewhere is data, never code.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from voxlane_lab.checking import WrongShape, checked
from voxlane_lab.errors import LabError
from voxlane_lab.rates import converted
from voxlane_lab.values import USER_RATE, Arrival, Occurrence, Pcm, Recording, Run, StepRecord
from voxlane_lab.waveform import floats_of, quantise, write_wav

FACTS, ARRAYS, EVENTS, SOUND = "call.json", "call.npz", "events.jsonl", "call.wav"

T = TypeVar("T")


class _Facts(Struct, frozen=True):
    """All of a recording but its arrays and its events."""

    version: Literal[1]
    scenario: str
    dialect: str
    repeat: int
    seed: int
    agent_rate: int
    received: list[str]  # the responses; the sound of number n is the array `received_n`
    runs: list[Run]
    arrivals: list[Arrival]
    steps: list[StepRecord]
    texts: dict[str, str]
    history: list[tuple[str, str]]
    recalled: list[tuple[int, int | None, int | None]]  # Recording.recalled: the step's number and the two numbers
    failure: str


def call_folder(scenario: str, repeat: int) -> str:
    """Return the name of a call's folder; `repeat` counts from 0, the folders from 1."""
    slug = re.sub(r"[^a-z0-9]+", "-", scenario.lower()).strip("-") or "scenario"
    return f"{slug}-{repeat + 1:03d}"


def save(recording: Recording, folder: Path) -> None:
    """Write a call into a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = _Facts(
        version=1,
        scenario=recording.scenario,
        dialect=recording.dialect,
        repeat=recording.repeat,
        seed=recording.seed,
        agent_rate=recording.agent_rate,
        received=list(recording.received),
        runs=recording.runs,
        arrivals=recording.arrivals,
        steps=recording.steps,
        texts=recording.texts,
        history=recording.history,
        recalled=[(number, *numbers) for number, numbers in recording.recalled.items()],
        failure=recording.failure,
    )
    (folder / FACTS).write_bytes(msgspec.json.format(_encoded(facts), indent=1) + b"\n")
    (folder / EVENTS).write_bytes(b"".join(_encoded(one) + b"\n" for one in recording.occurrences))
    np.savez_compressed(folder / ARRAYS, allow_pickle=False, **_arrays(recording))
    (folder / SOUND).write_bytes(write_wav(stereo(recording), USER_RATE))


def load(folder: Path) -> Recording:
    """Return the call of a folder; raise LabError with one line that names the file and what is wrong with it."""
    facts = _read_facts(folder / FACTS)
    events = _read_events(folder / EVENTS)
    names = [f"received_{number}" for number in range(len(facts.received))]
    arrays = _read_arrays(folder / ARRAYS, names)
    return Recording(
        scenario=facts.scenario,
        dialect=facts.dialect,
        repeat=facts.repeat,
        seed=facts.seed,
        agent_rate=facts.agent_rate,
        person=arrays["person"],
        microphone=arrays["microphone"],
        agent=arrays["agent"],
        runs=facts.runs,
        arrivals=facts.arrivals,
        received={response: arrays[name] for response, name in zip(facts.received, names, strict=True)},
        queued=arrays["queued"].tolist(),
        held=arrays["held"].tolist(),
        steps=facts.steps,
        occurrences=events,
        texts=facts.texts,
        history=facts.history,
        late_ms=arrays["late_ms"].tolist(),
        recalled={number: (counted, answered) for number, counted, answered in facts.recalled},
        failure=facts.failure,
    )


def stereo(recording: Recording) -> Pcm:
    """Return the call as (frames, 2) at USER_RATE: the person left, the agent right."""
    person, agent = recording.person, recording.agent
    if recording.agent_rate != USER_RATE:
        agent = quantise(converted(floats_of(agent), recording.agent_rate, USER_RATE))
    both = np.zeros((max(len(person), len(agent)), 2), np.int16)
    both[: len(person), 0] = person
    both[: len(agent), 1] = agent
    return both


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a server's JSON may hold half a surrogate pair, which no file can
        return msgspec.json.encode(_writable(msgspec.to_builtins(value)))


def _writable(value: Any) -> Any:
    """Return plain values with a question mark for each character that UTF-8 does not know."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_writable(key): _writable(one) for key, one in value.items()}
        case list() | tuple():
            return [_writable(one) for one in value]
    return value


def _arrays(recording: Recording) -> dict[str, NDArray[Any]]:
    return {
        "person": recording.person,
        "microphone": recording.microphone,
        "agent": recording.agent,
        "queued": np.array(recording.queued, np.int64),
        "held": np.array(recording.held, np.bool_),
        "late_ms": np.array(recording.late_ms, np.float64),
        **{f"received_{number}": pcm for number, pcm in enumerate(recording.received.values())},
    }


_KINDS: Mapping[str, Any] = {"queued": np.int64, "held": np.bool_, "late_ms": np.float64}
"""The types of the arrays that are not sound."""


def _read_facts(path: Path) -> _Facts:
    return _typed(_Facts, _bytes(path), path.name, path.parent.name)


def _read_events(path: Path) -> list[Occurrence]:
    lines = _bytes(path).splitlines()
    return [
        _typed(Occurrence, line, f"{path.name}, line {number}", path.parent.name)
        for number, line in enumerate(lines, 1)
        if line
    ]


def _read_arrays(path: Path, received: list[str]) -> dict[str, Any]:
    _present(path)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in ("person", "microphone", "agent", *_KINDS, *received)}
    except KeyError:
        raise LabError(f"{path.parent.name}/{path.name}: an array is missing") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        raise LabError(f"{path.parent.name}/{path.name}: the file is damaged") from None
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype != _KINDS.get(name, np.int16):
            raise LabError(f"{path.parent.name}/{path.name}: {name} has the wrong type")
    return arrays


def _typed(kind: type[T], data: bytes, file: str, folder: str) -> T:
    try:
        return checked(kind, msgspec.json.decode(data))
    except (msgspec.DecodeError, RecursionError):
        raise LabError(f"{folder}/{file}: the file is damaged") from None
    except WrongShape as error:
        raise LabError(f"{folder}/{file}: {error}") from None


def _bytes(path: Path) -> bytes:
    _present(path)
    return path.read_bytes()


def _present(path: Path) -> None:
    if not path.is_file():
        raise LabError(f"{path.parent.name}/{path.name} is missing: this is not the folder of a saved call")
