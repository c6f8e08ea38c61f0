"""Waiting on the device, in one warp, for flags that another stream sets and clears."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from voxlane.engine.kernels.yield_flag import YieldFlag

_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def _look(elapsed_ns, begin):
    """Wait a little; return the time since `begin`."""
    if _INTERPRETED:
        return elapsed_ns + 1_000
    else:
        tl.inline_asm_elementwise("nanosleep.u32 $1; mov.u32 $0, 0;", "=r,r", [500], tl.int32, is_pure=False, pack=1)
        return globaltimer() - begin


@triton.jit
def give_way_kernel(asked, waited_ns, most_ns, askers, ASKERS: tl.constexpr, FIRST: tl.constexpr):
    """Wait until no flag is set, or the pass has waited for `most_ns` in all; add to its time."""
    index = tl.arange(0, ASKERS)
    before = tl.zeros([], tl.int64) if FIRST else tl.load(waited_ns)
    begin = tl.zeros([], tl.int64) if _INTERPRETED else globaltimer()
    elapsed = tl.zeros([], tl.int64)
    wanted = tl.max(tl.load(asked + index, mask=index < askers, other=0, volatile=True), 0)
    while (wanted != 0) & (before + elapsed < most_ns):
        elapsed = _look(elapsed, begin)
        wanted = tl.max(tl.load(asked + index, mask=index < askers, other=0, volatile=True), 0)
    tl.store(waited_ns, before + elapsed)


def yield_to_critical(yield_flag: YieldFlag, most_ns: int, *, first: bool) -> None:
    """Queue the wait; `first` resets the pass's time."""
    askers = yield_flag.asked.numel()
    give_way_kernel[(1,)](
        yield_flag.asked,
        yield_flag.waited_ns,
        most_ns,
        askers,
        ASKERS=triton.next_power_of_2(askers),
        FIRST=first,
        num_warps=1,
    )
