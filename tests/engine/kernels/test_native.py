"""The library's life: built once, shared by processes, switched off with a word in the log, safe across threads."""

from __future__ import annotations

import ctypes
import logging
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from voxlane.engine.kernels import native
from voxlane.engine.kernels.linear.linear import embed, linear, linear_ref, pack
from voxlane.engine.kernels.norm import rms_norm
from voxlane.engine.weights.tensors import quantise


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.MonkeyPatch:
    """Forget the library until the end of the test, as in a process that has not tried to load it."""
    caplog.set_level(logging.INFO, native.__name__)
    for name, value in {"_tried": False, "_library": None, "_reason": "", "_threads": 0}.items():
        monkeypatch.setattr(native, name, value)
    return monkeypatch


def check_the_references_serve() -> None:
    """Compute with packed weights, and see that torch did it."""
    weight = pack(quantise(torch.randn(20, 64)))
    x = torch.randn(3, 64)
    assert torch.equal(linear(x, weight), linear_ref(x, weight))
    assert embed(torch.tensor([1, 19]), weight).shape == (2, 64)
    native.set_threads(2)
    assert native.description() == "torch"


def test_without_a_compiler_the_references_serve(
    unloaded: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for name, value in {"PATH": str(tmp_path), "CXX": "", "VOXLANE_CACHE": str(tmp_path)}.items():
        unloaded.setenv(name, value)
    check_the_references_serve()
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "install g++" in warning.getMessage()


def test_a_failing_compiler_is_named(
    unloaded: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'x.cpp:1: error: no such luck' >&2\nexit 1\n")
    compiler.chmod(0o755)
    unloaded.setenv("CXX", str(compiler))
    unloaded.setenv("VOXLANE_CACHE", str(tmp_path / "cache"))
    check_the_references_serve()
    assert "no such luck" in caplog.text
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_it_can_be_switched_off(unloaded: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    unloaded.setenv("VOXLANE_NATIVE", "0")
    check_the_references_serve()
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_two_may_build_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: ctypes.CDLL) -> None:
    """With a slow compiler, both miss the cache; each must end with a whole library and no rubbish beside it.

    Two threads stand for two processes: a build takes no lock and keeps nothing in memory.
    """
    compiler = tmp_path / "slow"
    compiler.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo slow; exit; fi\n'
        f'while [ "$1" != -o ]; do shift; done\n'
        f"touch {tmp_path}/$$.started\n"
        f"while [ $(ls {tmp_path}/*.started | wc -l) -lt 2 ]; do sleep 0.01; done\n"
        f'cp {library._name} "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("VOXLANE_CACHE", str(tmp_path / "cache"))
    with ThreadPoolExecutor(2) as pool:
        paths = {built.result() for built in [pool.submit(native._build) for _ in range(2)]}
    (path,) = paths
    assert native._open(path)._name == str(path)
    assert [found for found in (tmp_path / "cache").rglob("*") if found.is_file()] == [path]


def test_a_wrong_result_switches_the_library_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, library: ctypes.CDLL
) -> None:
    real = rms_norm.rms_norm_ref
    monkeypatch.setattr(
        rms_norm, "rms_norm_ref", lambda x, weight, eps, dtype=None: real(x, weight, eps, dtype) * 1.001
    )
    assert native._load() is None
    assert "row operations disagrees" in caplog.text
    monkeypatch.undo()
    assert native._load() is not None


def test_the_fingerprint_knows_compiler_flags_and_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = shutil.which("true")
    assert compiler is not None
    first = native._fingerprint(compiler)
    assert native._fingerprint(compiler) == first
    monkeypatch.setattr(native, "_FLAGS", ("-O0",))
    second = native._fingerprint(compiler)
    copy = shutil.copytree(native._KERNELS, tmp_path / "kernels")
    with (copy / "native" / "simd.h").open("a") as source:
        source.write("\n")
    monkeypatch.setattr(native, "_KERNELS", copy)
    assert len({first, second, native._fingerprint(compiler)}) == 3


def test_callers_on_many_threads_get_right_answers(library: ctypes.CDLL, random: torch.Generator) -> None:
    """ctypes lets go of the interpreter lock, so two engine threads can meet in the pool."""
    weight = pack(quantise(torch.randn((256, 512), generator=random)))
    inputs = [torch.randn((9, 512), generator=random) for _ in range(4)]
    expected = [linear(x, weight) for x in inputs]
    wrong: list[int] = []

    def call(index: int) -> None:
        results = (linear(inputs[index], weight) for _ in range(200))
        wrong.extend(index for result in results if not torch.equal(result, expected[index]))

    callers = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_threads_can_change_between_calls(library: ctypes.CDLL, random: torch.Generator) -> None:
    weight = pack(quantise(torch.randn((256, 512), generator=random)))
    x = torch.randn((9, 512), generator=random)
    expected = linear(x, weight)
    for count in (1, 4, 2, 1, 3, 0):
        native.set_threads(count)
        assert torch.equal(linear(x, weight), expected)


FORK = """
import os, torch
from voxlane.engine.kernels import native
from voxlane.engine.kernels.linear.linear import linear, pack
from voxlane.engine.weights.tensors import quantise
native.set_threads(3)
weight, x = pack(quantise(torch.randn(256, 512))), torch.randn(9, 512)
before = linear(x, weight)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(linear(x, weight), before) else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(linear(x, weight), before)
"""


@pytest.mark.soak
def test_a_forked_child_has_threads_of_its_own(library: ctypes.CDLL) -> None:
    done = subprocess.run([sys.executable, "-c", FORK], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_other_types_go_to_the_reference(library: ctypes.CDLL) -> None:
    assert native.library(torch.zeros(1)) is library
    assert native.library(torch.zeros(1, dtype=torch.float64)) is None
    assert native.library(torch.zeros(1, device="meta")) is None
    x, weight = torch.randn((2, 8), dtype=torch.float64), torch.randn((3, 8), dtype=torch.float64)
    assert torch.equal(linear(x, weight), linear_ref(x, weight))
