"""Other implementations of attention on the same shapes: FlashAttention-3 and FlashInfer on pages, and SDPA.

SDPA has contiguous keys, which favours it: it follows no block table. Each peer can be called in several
ways; its fastest counts, without its planning on the host before a call. FlashAttention-3 is the library that vLLM
ships (_vllm_fa3_C.abi3.so), loaded from the path in GPU_PEERS_FA3.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from support.gpu.clock import FAILURES
from support.kernels.paged import CUDA, DEVICE, Case, random_pages, scrambled
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

DECLINES = (*FAILURES, ValueError, TypeError, AttributeError)
"""What a peer may raise for a shape that it does not support, or if its functions have changed."""

Way = tuple[str, Sequence[Callable[[], object]]]
"""A name, and one call for every layer."""

BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION) if CUDA else (SDPBackend.MATH,)
FLASHINFER_PAGES = ((16, "NHD"), (64, "HND"))
FA3_PAGES = (16, 64, 128)
"""The peers' page sizes: the common one, and ours. FlashAttention-3 takes token-major pages alone."""


def contiguous(case: Case, layers: int) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values [batch, kv_heads, context, head_dim] of some layers."""
    shape = (case.batch, case.kv_heads, case.context, case.head_dim)

    def side() -> Tensor:
        return torch.empty(shape, dtype=case.compute, device=DEVICE).normal_()

    return [(side(), side()) for _ in range(layers)]


def queries(case: Case) -> Tensor:
    """Return queries [batch, heads, queries, head_dim]."""
    return torch.randn((case.batch, case.heads, case.queries, case.head_dim), device=DEVICE).to(case.compute)


def flat_queries(case: Case) -> Tensor:
    """Return queries [batch · queries, heads, head_dim]."""
    return torch.randn((case.batch * case.queries, case.heads, case.head_dim), device=DEVICE).to(case.compute)


def sdpa(case: Case) -> Iterator[Way]:
    """Yield ways to call scaled_dot_product_attention."""
    layers, q = contiguous(case, case.sets), queries(case)
    options: dict[str, Any] = {"enable_gqa": case.heads != case.kv_heads}
    if case.queries > 1 and case.causal:
        options["attn_mask"] = causal_lower_right(case.queries, case.context)
    ways: list[tuple[Tensor, dict[str, Any]]] = [(q, options)]
    if case.queries == 1:
        # The heads of a group become queries, so that keys are read once a group.
        ways.append((q.view(case.batch, case.kv_heads, -1, case.head_dim), {}))
    for backend, (q, options) in itertools.product(BACKENDS, ways):
        yield f"SDPA by {backend.name}", [partial(sdpa_by, backend, q, k, v, **options) for k, v in layers]


def sdpa_by(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Call one of torch's implementations."""
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, **options)


def fa3(case: Case) -> Iterator[Way]:
    """Yield FlashAttention-3 on pages of several sizes."""
    path = os.environ.get("GPU_PEERS_FA3", "")
    if not CUDA or not path or case.kind is not torch.bfloat16:
        return
    torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    for page in FA3_PAGES:
        yield f"FA3, pages of {page}", list(fa3_calls(case, page, *peer_pages(replace(case, page=page), "NHD")))


def fa3_calls(
    case: Case, page: int, table: Tensor, layers: list[tuple[Tensor, Tensor]]
) -> Iterator[Callable[[], object]]:
    """Yield one call for every layer's pages; the work is divided among blocks before, as vLLM does it."""
    starts = torch.arange(case.batch + 1, dtype=torch.int32, device=DEVICE) * case.queries
    lengths = torch.full((case.batch,), case.context, dtype=torch.int32, device=DEVICE)
    causal, scale, q = case.causal and case.queries > 1, case.head_dim**-0.5, flat_queries(case)
    plan = torch.ops._vllm_fa3_C.get_scheduler_metadata(
        *(case.batch, case.queries, case.context, case.heads, case.kv_heads, case.head_dim, case.head_dim),
        *(case.compute, lengths, starts, None, None, None, None, page, 0, causal, -1, -1, False, 0, None, 0),
    )
    before = (starts, None, None, None, lengths, case.queries, case.context, table)
    after = (scale, causal, -1, -1, 0.0, True, plan, 0, None, 0, None, 1, 0, None)
    for k, v in layers:
        arguments = (q, k, v, None, None, None, None, *before, *(None,) * 8, *after)
        yield partial(torch.ops._vllm_fa3_C.fwd, *arguments)


def flashinfer(case: Case) -> Iterator[Way]:
    """Yield FlashInfer on pages, by its kernels of the second generation.

    By default it takes its Hopper prefill kernel, which took up to four times the time of this one.
    """
    if case.kind is not torch.bfloat16:
        return
    for (page, order), tensor_cores in itertools.product(FLASHINFER_PAGES, (True, False)):
        if case.queries > 1 and not tensor_cores:
            continue
        paged = replace(case, page=page)
        name = f"FlashInfer, pages of {page} {order}, tensor cores {tensor_cores}"
        table, layers = peer_pages(paged, order)
        try:
            wrapper = plan_flashinfer(paged, table, order, tensor_cores=tensor_cores)
        except DECLINES as error:
            print(f"  {name} declined: {str(error).splitlines()[0][:150]}", flush=True)
            continue
        q = flat_queries(case)
        yield name, [partial(wrapper.run, q, sides) for sides in layers]


def peer_pages(case: Case, order: str) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return block tables and the pages of as many layers as the case has, tokens before heads if `order` is NHD."""
    table, blocks = scrambled([case.context] * case.batch, case.page)
    layers = [(pages.k, pages.v) for pages in (random_pages(case, blocks) for _ in range(case.sets))]
    if order == "NHD":
        shape = (blocks, case.page, case.kv_heads, -1)
        layers = [(k.view(shape), v.view(shape)) for k, v in layers]
    return table, layers


def plan_flashinfer(case: Case, table: Tensor, order: str, *, tensor_cores: bool) -> Any:
    """Return FlashInfer's wrapper, ready to run."""
    module = narrowed_flashinfer()
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)
    rows = torch.arange(case.batch + 1, dtype=torch.int32, device=DEVICE)
    last = torch.full((case.batch,), (case.context - 1) % case.page + 1, dtype=torch.int32, device=DEVICE)
    shape = (case.heads, case.kv_heads, case.head_dim, case.page)
    pages = (rows * table.shape[1], table.flatten(), last, *shape)
    types = {"q_data_type": case.compute, "kv_data_type": case.kind}
    if case.queries > 1:
        wrapper = module.BatchPrefillWithPagedKVCacheWrapper(workspace, order, backend="fa2")
        wrapper.plan(rows * case.queries, *pages, causal=case.causal, **types)
        return wrapper
    wrapper = module.BatchDecodeWithPagedKVCacheWrapper(workspace, order, use_tensor_cores=tensor_cores, backend="fa2")
    wrapper.plan(*pages, **types)
    return wrapper


@cache
def narrowed_flashinfer() -> Any:
    """Return the flashinfer module, set to compile only kernels that are called here.

    Of a module's ten sources seven are for ragged keys and other masks. References to them stay unresolved, which
    lazy binding never notices.
    """
    os.environ["FLASHINFER_EXTRA_LDFLAGS"] = "-Wl,-z,lazy"
    modules: Any = importlib.import_module("flashinfer.jit.attention.modules")
    whole = modules.gen_jit_spec

    def narrow(name: str, sources: list[Any], *args: Any, **options: Any) -> Any:
        skipped = ("ragged_kernel", "mask_2", "mask_3")
        return whole(name, [one for one in sources if not any(part in str(one) for part in skipped)], *args, **options)

    modules.gen_jit_spec = narrow
    return importlib.import_module("flashinfer")


def compile_flashinfer(head_dim: int, tensor_cores: bool) -> None:
    """Compile one of FlashInfer's modules into its cache on disk."""
    case = Case(2, 1, head_dim, 16, 1, page=16)
    plan_flashinfer(case, torch.zeros((1, 1), dtype=torch.int32, device=DEVICE), "NHD", tensor_cores=tensor_cores)


PEERS: dict[str, Callable[[Case], Iterator[Way]]] = {"FA3": fa3, "FlashInfer": flashinfer, "SDPA": sdpa}
PAGED = ("FA3", "FlashInfer")
