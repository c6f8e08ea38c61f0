"""Other people's attention on the same shapes: torch SDPA and FlexAttention on contiguous keys, FlashInfer on pages.

Contiguous keys favour the peer: it follows no block table. Each peer is called in several ways, and its fastest counts.
"""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from multiprocessing.pool import AsyncResult, Pool
from typing import Any

import torch
import torch.nn.functional as F
from gpu_paged import CUDA, DEVICE, Case, microseconds, random_pages, scrambled
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

FAILURES = (RuntimeError, ValueError, TypeError, AssertionError, ImportError)
"""What a peer may raise at a shape that it does not take."""

BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION) if CUDA else (SDPBackend.MATH,)
PAGES = ((16, "NHD"), (16, "HND"), (64, "HND"))
"""FlashInfer's page sizes and layouts: the common one, and ours."""


def contiguous(case: Case) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values [batch, kv_heads, context, head_dim] of as many layers as the case has."""
    shape = (case.batch, case.kv_heads, case.context, case.head_dim)
    return [
        tuple(torch.empty(shape, dtype=case.compute, device=DEVICE).normal_() for _ in range(2))  # type: ignore[misc]
        for _ in range(case.sets)
    ]


def queries(case: Case) -> Tensor:
    """Return queries [batch, heads, queries, head_dim]."""
    return torch.randn((case.batch, case.heads, case.queries, case.head_dim), device=DEVICE).to(case.compute)


def sdpa(case: Case) -> float:
    """Return µs of scaled_dot_product_attention."""
    layers, q = contiguous(case), queries(case)
    options: dict[str, Any] = {"enable_gqa": case.heads != case.kv_heads}
    if case.queries > 1 and case.causal:
        options["attn_mask"] = causal_lower_right(case.queries, case.context)
    ways: list[tuple[Tensor, dict[str, Any]]] = [(q, options)]
    if case.queries == 1:
        # The heads of a group as that many queries: keys are read once a group.
        ways.append((q.view(case.batch, case.kv_heads, -1, case.head_dim), {}))
    best = float("inf")
    for backend, (q, options) in itertools.product(BACKENDS, ways):
        with sdpa_kernel(backend):
            calls = [
                lambda k=k, v=v, q=q, options=options: F.scaled_dot_product_attention(q, k, v, **options)
                for k, v in layers
            ]
            best = min(best, attempt(f"SDPA by {backend.name}", calls))
    return best


def flex(case: Case) -> float:
    """Return µs of compiled FlexAttention."""
    module = importlib.import_module("torch.nn.attention.flex_attention")
    torch._dynamo.reset()
    compiled = torch.compile(module.flex_attention, dynamic=False)
    layers, q = contiguous(case), queries(case)
    options: dict[str, Any] = {"enable_gqa": case.heads != case.kv_heads}
    if case.queries > 1 and case.causal:
        before = case.context - case.queries
        options["block_mask"] = module.create_block_mask(
            lambda b, h, i, j: i + before >= j, None, None, case.queries, case.context, device=DEVICE
        )
    return attempt("Flex", [lambda k=k, v=v: compiled(q, k, v, **options) for k, v in layers])


def flashinfer(case: Case) -> float:
    """Return µs of FlashInfer's paged decode; planning is not counted."""
    if case.queries != 1 or case.kind is not torch.bfloat16:
        return float("inf")
    best = float("inf")
    for page, order in PAGES:
        paged = replace(case, page=page)
        table, blocks = scrambled([case.context] * case.batch, page)
        layers = [(pages.k, pages.v) for pages in (random_pages(paged, blocks) for _ in range(case.sets))]
        if order == "NHD":
            layers = [tuple(side.view(blocks, page, case.kv_heads, -1) for side in sides) for sides in layers]  # type: ignore[misc]
        q = queries(case)[:, :, 0].contiguous()
        for tensor_cores in (True, False):
            name = f"FlashInfer, pages of {page} {order}, tensor cores {tensor_cores}"
            try:
                wrapper = plan(paged, table, order, tensor_cores)
            except FAILURES as error:
                print(f"  {name} declined: {str(error).splitlines()[0][:150]}", flush=True)
                continue
            best = min(best, attempt(name, [partial(wrapper.run, q, sides) for sides in layers]))
    return best


def plan(case: Case, table: Tensor, order: str, tensor_cores: bool) -> Any:
    """Return FlashInfer's wrapper, ready to run.

    Left to itself it takes its Hopper prefill kernel for tensor cores, seen at up to four times the time of this one.
    """
    module = importlib.import_module("flashinfer")
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)
    wrapper = module.BatchDecodeWithPagedKVCacheWrapper(workspace, order, use_tensor_cores=tensor_cores, backend="fa2")
    ends = torch.arange(case.batch + 1, dtype=torch.int32, device=DEVICE) * table.shape[1]
    last = torch.full((case.batch,), (case.context - 1) % case.page + 1, dtype=torch.int32, device=DEVICE)
    wrapper.plan(
        ends, table.flatten(), last, case.heads, case.kv_heads, case.head_dim, case.page,
        q_data_type=case.compute, kv_data_type=case.kind,
    )  # fmt: skip
    return wrapper


def compile_flashinfer(head_dims: Iterable[int]) -> list[AsyncResult[None]]:
    """Begin to compile FlashInfer's kernels into its cache on disk, each module by a process of its own."""
    wanted = list(itertools.product(sorted(head_dims), (True, False)))
    os.environ.setdefault("MAX_JOBS", "6")  # compilers a module
    return [_pool(len(wanted)).apply_async(_compile, way) for way in wanted]


@cache
def _pool(size: int) -> Pool:
    return multiprocessing.get_context("spawn").Pool(size)


def _compile(head_dim: int, tensor_cores: bool) -> None:
    case = Case(2, 1, head_dim, 16, 1, page=16)
    plan(case, torch.zeros((1, 1), dtype=torch.int32, device=DEVICE), "NHD", tensor_cores)


def attempt(name: str, calls: list[Callable[[], object]]) -> float:
    """Return the time of a call, or infinity and a line that says why there is none."""
    try:
        return microseconds(calls)
    except FAILURES as error:
        print(f"  {name} declined: {type(error).__name__} {str(error).splitlines()[0][:150]}", flush=True)
        return float("inf")


PEERS: dict[str, Callable[[Case], float]] = {"SDPA": sdpa, "Flex": flex, "FlashInfer": flashinfer}
