"""Work for all cores of a machine with one device: kernels are compiled so, and compared with their references there.

It knows processes, threads and deadlines, no kernels.
"""

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
"""What takes long to import: in every process of its own it would cost as much as compiling thirty kernels."""
_started: list[Pool] = []


def elsewhere(
    work: Callable[[Given], Made], given: Iterable[Given], deadline: float, *, fork: bool = True
) -> Iterator[Made]:
    """Begin some work in other processes; return what comes of it, in its order, or raise TimeoutError if it is late.

    A process that dies leaves its work undone, which is late too.
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
    """Return processes forked from one that has imported much and never touched the device, or without `fork` new ones.

    A memory checker sees what starts anew, and follows no fork.
    """
    context = multiprocessing.get_context("forkserver" if fork else "spawn")
    context.set_forkserver_preload(_IMPORTED)
    _started.append(context.Pool(max(1, min(15, (os.cpu_count() or 2) - 1))))
    return _started[-1]


def stop_compiling() -> None:
    """Give up what is still under way, and wait until it is gone: who leaves a device holds up who uses it."""
    for each in _started:
        each.terminate()
    for each in _started:
        each.join()
    _started.clear()
    pool.cache_clear()


@contextmanager
def compiling_only() -> Iterator[None]:
    """Let launches of Triton kernels compile them, by many threads at once, and do nothing else: results are noise."""
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
