"""A saved call is the same when it is loaded, and a damaged folder gives one clear line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from lab_example import call

from voxlane.codecs.wav import decode_wav
from voxlane_lab.errors import LabError
from voxlane_lab.recording_file import call_folder, load, save
from voxlane_lab.values import USER_RATE, Arrival, Occurrence, Recording, Run, StepRecord

PCM = arrays(np.int16, st.integers(0, 400))
COUNT = st.integers(0, 2**40)
SECONDS = st.floats(0, 1e6, allow_nan=False)
TEXT = st.text(max_size=20)
NUMBER = st.none() | st.integers(0, 200)
INTERVALS = st.lists(st.tuples(COUNT, COUNT), max_size=3).map(tuple)
MEANS = st.sampled_from(("turn", "stop", "nothing"))
RESULT = st.sampled_from(("done", "nothing_to_interrupt", "not_in_dialect", "late", "not_reached"))

RECORDINGS = st.builds(
    Recording,
    scenario=TEXT,
    dialect=TEXT,
    repeat=st.integers(0, 999),
    seed=st.integers(0, 2**32 - 1),
    agent_rate=st.sampled_from((8_000, 16_000, 24_000, 48_000)),
    person=PCM,
    microphone=PCM,
    agent=PCM,
    runs=st.lists(st.builds(Run, COUNT, TEXT, COUNT, COUNT), max_size=3),
    arrivals=st.lists(st.builds(Arrival, SECONDS, TEXT, COUNT, COUNT, st.booleans()), max_size=3),
    received=st.dictionaries(TEXT, PCM, max_size=3),
    queued=st.lists(COUNT, max_size=5),
    held=st.lists(st.booleans(), max_size=5),
    steps=st.lists(
        st.builds(
            StepRecord, st.integers(0, 9), TEXT, MEANS, RESULT, COUNT, INTERVALS, TEXT, st.booleans(), st.booleans(),
            st.booleans(), SECONDS,
        ),
        max_size=3,
    ),
    occurrences=st.lists(
        st.builds(Occurrence, SECONDS, st.sampled_from(("sent", "got", "card")), TEXT, TEXT), max_size=4
    ),
    texts=st.dictionaries(TEXT, TEXT, max_size=3),
    history=st.lists(st.tuples(TEXT, TEXT), max_size=3),
    late_ms=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5),
    recalled=st.dictionaries(st.integers(0, 9), st.tuples(NUMBER, NUMBER), max_size=3),
    failure=TEXT,
)  # fmt: skip


def plain(recording: Recording) -> dict[str, Any]:
    """Return a recording as values that `==` compares."""

    def bare(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.tolist()
        return {key: bare(one) for key, one in value.items()} if isinstance(value, dict) else value

    return {field.name: bare(getattr(recording, field.name)) for field in fields(recording)}


@pytest.mark.property
@given(recording=RECORDINGS)
@settings(max_examples=examples(60), deadline=None)
def test_load_gives_back_what_save_was_given(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("call")
    save(recording, folder)
    loaded = load(folder)
    assert plain(loaded) == plain(recording)
    assert list(loaded.received) == list(recording.received), "the order of the responses is lost"


def test_the_files_of_a_real_call(tmp_path: Path) -> None:
    recording = call("stale")
    save(recording, tmp_path / "a" / "b")
    assert plain(load(tmp_path / "a" / "b")) == plain(recording)
    samples, rate = decode_wav((tmp_path / "a" / "b" / "call.wav").read_bytes(), mono=False)
    assert (rate, samples.shape) == (USER_RATE, (len(recording.person), 2))
    assert np.array_equal(np.rint(samples[:, 0] * 32768).astype(np.int16), recording.person)
    silent = recording.agent[: recording.agent_rate]
    assert not silent.any()
    assert not samples[: USER_RATE - 100, 1].any()
    assert samples[:, 1].any()
    lines = (tmp_path / "a" / "b" / "events.jsonl").read_text().splitlines()
    assert len(lines) == len(recording.occurrences)
    assert json.loads(lines[0]) == {"at_s": 0.0, "side": "sent", "name": "start", "detail": ""}


def test_the_same_call_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(call(), tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_half_a_surrogate_pair_of_a_server_is_written_as_a_question_mark(tmp_path: Path) -> None:
    recording = call()
    recording.texts["1"] = "a\ud800b"
    recording.occurrences = [Occurrence(0.0, "got", "\udfff")]
    save(recording, tmp_path)
    assert load(tmp_path).texts["1"] == "a?b"
    assert load(tmp_path).occurrences == [Occurrence(0.0, "got", "?")]


def npz(path: Path, **changed: Any) -> None:
    """Write the arrays again with some of them changed."""
    with np.load(path) as found:
        kept = {name: found[name] for name in found.files}
    np.savez(path, **{name: array for name, array in (kept | changed).items() if array is not None})


DAMAGE: list[tuple[str, Callable[[Path], Any], str]] = [
    ("no facts", lambda at: (at / "call.json").unlink(), "call.json is missing"),
    ("no arrays", lambda at: (at / "call.npz").unlink(), "call.npz is missing"),
    ("no events", lambda at: (at / "events.jsonl").unlink(), "events.jsonl is missing"),
    ("facts are no JSON", lambda at: (at / "call.json").write_text("{"), "call.json: the file is damaged"),
    ("facts are a list", lambda at: (at / "call.json").write_text("[]"), "call.json: must be an object"),
    ("a fact has another type", lambda at: _fact(at, repeat="one"), "call.json: repeat must be a whole number"),
    ("another version", lambda at: _fact(at, version=2), "call.json: version must be 1"),
    ("a line is no event", lambda at: (at / "events.jsonl").write_text("\n{}\n"), "events.jsonl, line 2: at_s"),
    ("arrays are no zip", lambda at: (at / "call.npz").write_bytes(b"PK no"), "call.npz: the file is damaged"),
    ("arrays are cut", lambda at: _cut(at / "call.npz"), "call.npz: the file is damaged"),
    ("an array is missing", lambda at: npz(at / "call.npz", agent=None), "call.npz: an array is missing"),
    ("a track of floats", lambda at: npz(at / "call.npz", agent=np.zeros(3)), "call.npz: agent has the wrong type"),
    ("a pickle", lambda at: npz(at / "call.npz", held=np.array([{}])), "call.npz: the file is damaged"),
]


def _fact(folder: Path, **changed: Any) -> None:
    path = folder / "call.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_damaged_folder_gives_one_line(tmp_path: Path) -> None:
    save(call(), tmp_path / "whole")
    for name, damage, said in DAMAGE:
        folder = tmp_path / name / "story-001"
        shutil.copytree(tmp_path / "whole", folder)
        damage(folder)
        with pytest.raises(LabError) as caught:
            load(folder)
        assert f"story-001/{said}" in str(caught.value), name
        assert "\n" not in str(caught.value), name
        assert str(tmp_path) not in str(caught.value), name


@pytest.mark.parametrize(
    ("scenario", "repeat", "folder"),
    [("mhm, then stop", 0, "mhm-then-stop-001"), ("../../etc", 11, "etc-012"), ("…", 0, "scenario-001")],
)
def test_folders_have_plain_names(scenario: str, repeat: int, folder: str) -> None:
    assert call_folder(scenario, repeat) == folder
