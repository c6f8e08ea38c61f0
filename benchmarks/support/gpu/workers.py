"""Run work in many processes or threads on a machine with one device: compiling kernels, comparing with references."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing.pool import IMapIterator, Pool
from typing import Any, TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")

_IMPORTED = ["torch", "torch.nn.attention.bias", "triton.language", "voxlane.engine.runners.cuda.selfcheck"]
"""Slow imports: done anew in each process, they would cost as much as compiling thirty kernels."""
_started: list[Pool] = []


def elsewhere(
    work: Callable[[Given], Made], given: Iterable[Given], deadline: float, *, fork: bool = True
) -> Iterator[Made]:
    """Run work in other processes; return the results in order; raise TimeoutError if they are late.

    A process that dies leaves its work undone, which is also late.
    """
    return _until(pool(fork=fork).imap(work, given), deadline)


def _until(results: IMapIterator[Made], deadline: float) -> Iterator[Made]:
    while True:
        try:
            yield results.next(max(0.0, deadline - time.monotonic()))
        except StopIteration:
            return


@cache
def pool(*, fork: bool = True) -> Pool:
    """Return processes forked from one that has done the imports and not touched the device; new ones without `fork`.

    A memory checker follows new processes, but no fork.
    """
    context = multiprocessing.get_context("forkserver" if fork else "spawn")
    context.set_forkserver_preload(_IMPORTED)
    _started.append(context.Pool(max(1, min(15, (os.cpu_count() or 2) - 1))))
    return _started[-1]


def stop_compiling() -> None:
    """Kill the processes and wait until they are gone: a process that leaves the device delays the others on it."""
    for each in _started:
        each.terminate()
    for each in _started:
        each.join()
    _started.clear()
    pool.cache_clear()


@contextmanager
def compiling_only() -> Iterator[None]:
    """Make launches of Triton kernels only compile, in many threads at once; their results are noise."""
    from triton import AsyncCompileMode
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def compile_it(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **options)

    JITFunction.run = compile_it
    try:
        with ThreadPoolExecutor(os.cpu_count()) as threads, AsyncCompileMode(threads):
            yield
    finally:
        JITFunction.run = run
