"""Compare kernels with their references on the device, and greedy tokens with the CPU's, before anything is timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from support import random_models
from support.chat import parts
from support.gpu import interpreter
from support.replace import put
from torch import Tensor

from voxlane.engine.api import SamplingParams
from voxlane.engine.kernels.attention import rope, swap
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.linear import skinny
from voxlane.engine.kernels.norm import activation, rms_norm
from voxlane.engine.kernels.sampling import sampling
from voxlane.engine.models import decoder
from voxlane.engine.models.loading import Mode
from voxlane.engine.runners.cuda import decode_graphs, prompts
from voxlane.engine.schedule.plan import Row


def interpret_kernels() -> None:
    """Send CPU tensors to the Triton kernels, under Triton's interpreter."""
    from voxlane.engine.kernels.attention import rope_triton as ropes
    from voxlane.engine.kernels.attention.paged_triton import paged_attention_triton
    from voxlane.engine.kernels.linear import skinny_triton as few
    from voxlane.engine.kernels.norm import activation_triton as gates
    from voxlane.engine.kernels.norm import rms_norm_triton as norms
    from voxlane.engine.kernels.sampling import decode_rows_triton as packets
    from voxlane.engine.kernels.sampling import sampling_triton as samples

    interpreter.mend()
    put(
        decoder,
        rms_norm=lambda x, weight, eps, dtype=None: norms.rms_norm(x, weight, eps, dtype or x.dtype),
        add_rms_norm=norms.add_rms_norm,
        silu_mul=lambda x: gates.gate_mul(x, gelu=False),
        rope_write=ropes.rope_write,
        paged_attention=paged_attention_triton,
    )
    put(
        skinny,
        serves=lambda rows, *_: rows <= skinny.MAX_ROWS,
        norm_linear=few.norm_linear,
        norm_gate=few.norm_gate,
        linear_add=few.linear_add,
        attend=few.attend,
    )
    put(decode_graphs, unpack=packets.unpack, sample=samples.sample)
    put(prompts, sample=samples.sample)


def _error(got: Tensor, expected: Tensor) -> float:
    difference = (got.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)
    return float(difference) if bool(torch.isfinite(got).all()) else float("nan")


def kernels(device: torch.device) -> Iterator[str]:
    """Compare each kernel with its reference on random input; yield a line for each."""
    if device.type != "cuda":
        return
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        for name, error in _errors(device, dtype):
            yield f"kernel {name:24} {dtype!s:15} error {error:.2e}  {'ok' if error <= bound else 'WRONG'}"
    yield _sampling(device)
    yield _swapping(device)


def _errors(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, float]]:
    x = torch.randn((37, 1024), device=device).to(dtype)
    gain = torch.rand(1024, device=device)
    yield "rms_norm", _error(rms_norm.rms_norm(x, gain, 1e-6), rms_norm.rms_norm_ref(x.float(), gain, 1e-6))
    residual = torch.randn((37, 1024), device=device)
    expected = rms_norm.add_rms_norm_ref(x.float(), residual.clone(), gain, 1e-6)
    got = rms_norm.add_rms_norm(x, residual, gain, 1e-6)
    yield "add_rms_norm", max(_error(got[0], expected[0]), _error(got[1], expected[1]))
    yield "silu_mul", _error(activation.silu_mul(x), activation.silu_mul_ref(x.float()))
    yield "gelu_tanh_mul", _error(activation.gelu_tanh_mul(x), activation.gelu_tanh_mul_ref(x.float()))
    for kind in (dtype, torch.int8):
        yield f"rope_write {str(kind).removeprefix('torch.')}", _rope(device, dtype, kind)
    if dtype is torch.bfloat16:
        from voxlane.engine.kernels import triton_overlap

        for rows, triton_overlap.PDL in itertools.product((1, 2), (False, True)):
            shapes = ((1024, 4096), (2048, 1024), (3072, 1024), (12_288, 4096))
            yield f"skinny {rows} rows{', overlapped' * triton_overlap.PDL}", _skinny(device, rows, shapes)


def _rope(device: torch.device, dtype: torch.dtype, kind: torch.dtype) -> float:
    tokens, heads, kv_heads, dim, size = 50, 16, 8, 128, 16
    qkv = torch.randn((tokens, (heads + 2 * kv_heads) * dim), device=device).to(dtype)
    angles = torch.rand((100, dim // 2), device=device) * 6
    slots = torch.randperm(10 * size, device=device)[:tokens].int()
    slots[7] = -1
    positions = torch.randint(0, 100, (tokens,), device=device, dtype=torch.int32)
    place = Layout(positions, slots, slots, slots, slots)
    gains = torch.rand((2, dim), device=device)
    pages = [_pages(kind, (10, kv_heads, size, dim), device) for _ in range(2)]
    sizes = (heads, kv_heads, dim, angles.cos(), angles.sin(), place)
    q = rope.rope_write(qkv, *sizes, pages[0], gains[0], gains[1], 1e-6)
    expected = rope.rope_write_ref(qkv.float(), *sizes, pages[1], gains[0], gains[1], 1e-6)
    worst = _error(q, expected)
    for mine, theirs in zip(_parts(pages[0]), _parts(pages[1]), strict=True):
        close = (mine.float() - theirs.float()).abs().max() <= 1 if kind is torch.int8 and mine.dtype is kind else True
        worst = max(worst, 0.0 if kind is torch.int8 and close else _error(mine, theirs), 0.0 if close else 1.0)
    return worst


def _pages(kind: torch.dtype, shape: tuple[int, ...], device: torch.device) -> Pages:
    k, v = torch.zeros(shape, dtype=kind, device=device), torch.zeros(shape, dtype=kind, device=device)
    if kind is not torch.int8:
        return Pages(k, v)
    scales = [torch.zeros(shape[:3], dtype=torch.bfloat16, device=device) for _ in range(2)]
    return Pages(k, v, *scales)


def _parts(pages: Pages) -> list[Tensor]:
    return [part for part in (pages.k, pages.v, pages.k_scale, pages.v_scale) if part is not None]


def _skinny(device: torch.device, rows: int, shapes: Sequence[tuple[int, int]]) -> float:
    worst = 0.0
    for inputs, outputs in shapes:
        residual, gain = torch.randn((rows, inputs), device=device), torch.rand(inputs, device=device)
        matrix = (torch.randn((outputs, inputs), device=device) * 0.02).bfloat16()
        wide = matrix.float()
        normed = rms_norm.rms_norm_ref(residual, gain, 1e-6)
        worst = max(worst, _error(skinny.norm_linear(residual, gain, 1e-6, matrix), normed @ wide.T))
        gated = skinny.norm_gate(residual, gain, 1e-6, matrix)
        worst = max(worst, _error(gated, activation.silu_mul_ref(normed @ wide.T)))
        x, total = residual.bfloat16(), torch.randn((rows, outputs), device=device)
        expected = total + x.float() @ wide.T
        skinny.linear_add(x, matrix, total)
        worst = max(worst, _error(total, expected))
        worst = max(worst, _error(skinny.linear_wide(x, matrix), x.float() @ wide.T))
    return worst


def _sampling(device: torch.device) -> str:
    rows, vocabulary = 48, 20_011
    logits = torch.randn((rows, vocabulary), device=device) * 2
    packet = torch.zeros((rows, 12), dtype=torch.int32)
    floats = packet.view(torch.float32)
    for row in range(rows):
        packet[row, sampling.POSITION], packet[row, sampling.SEED_LOW] = 10 * row, 77 - row
        floats[row, sampling.TEMPERATURE] = (0.0, 0.7, 1.0, 1.5)[row % 4]
        packet[row, sampling.TOP_K] = (0, 1, 20, 300)[row // 4 % 4]
        floats[row, sampling.TOP_P] = (1.0, 0.9, 0.3)[row // 16 % 3]
        floats[row, sampling.MIN_P] = (0.0, 0.05)[row % 2]
    tokens = torch.empty(rows, dtype=torch.int32, device=device)
    logprobs = torch.empty(rows, device=device)
    sampling.sample(logits, packet.to(device), tokens, logprobs)
    expected = sampling.sample_ref(logits.cpu(), packet)
    same = int((tokens.cpu() == expected[0]).sum())
    off = float((logprobs.cpu() - expected[1]).abs()[tokens.cpu() == expected[0]].max())
    return f"kernel sampling: {same} of {rows} rows as the reference, log-probabilities within {off:.1e}"


def _swapping(device: torch.device) -> str:
    wrong = 0
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        storage = torch.randint(-99, 99, (3, 2, 20, 4, 16, 64), device=device).to(dtype)
        host = torch.zeros((3, 2, 8, 4, 16, 64), dtype=dtype, pin_memory=True)
        before = storage.clone()
        swap.copy_blocks(storage, host, [3, 7, 1], [0, 2, 5])
        swap.copy_blocks(host, storage, [5, 0], [11, 12])
        swap.copy_blocks(storage, storage, [2, 3], [14, 15])
        torch.cuda.synchronize()
        for source, target in ((1, 11), (3, 12), (2, 14), (3, 15)):
            wrong += int(not torch.equal(storage[:, :, target], before[:, :, source]))
    return f"kernel swap: {'ok' if wrong == 0 else f'{wrong} blocks WRONG'}"


def greedy(device: torch.device, *, dry: bool) -> Iterator[str]:
    """Compare greedy tokens of a small model with the CPU's; where bfloat16 differs, say how close the logits are."""
    config = random_models.SHAPES["speck" if dry else "tiny"]
    prompts, outputs = (2, 3) if dry else (20, 48)
    work = parts.random_work(prompts, 5, 20 if dry else 300, 97 if dry else 1031, seed=3)

    def tokens_of(where: str, mode: Mode, pages: torch.dtype, chunk: int) -> list[list[int]]:
        model = parts.make_model(config, where, mode, 1024, drawn_on="cpu")
        bench = parts.make_bench(model, prompts * 512, max_batch=prompts, pages=pages)
        return [answer.tokens for answer in parts.ask(bench, [prompt for prompt, _ in work], outputs, chunk)]

    reference = tokens_of("cpu", "float32", torch.float32, 1 << 30)
    same = tokens_of(str(device), "float32", torch.float32, 1 << 30)
    yield f"greedy float32: {_alike(reference, same)} of {prompts} outputs as the CPU's"
    chunked = tokens_of(str(device), "float32", torch.float32, 37)
    yield f"greedy float32, chunks of 37: {_alike(reference, chunked)} of {prompts}"
    if dry:
        return
    narrow = tokens_of(str(device), "bfloat16", torch.bfloat16, 1 << 30)
    whole = parts.make_model(config, "cpu", "float32", 1024)
    gaps = []
    for (prompt, _), mine, theirs in zip(work, narrow, reference, strict=True):
        if mine != theirs:
            at = next(n for n, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
            gaps.append(_gap(whole, prompt + theirs[:at], mine[at], theirs[at]))
    told = ", ".join(f"{gap:.3f}" for gap in sorted(gaps))
    yield f"greedy bfloat16: {prompts - len(gaps)} of {prompts} the same; logit gaps where they part: {told or 'none'}"


def _alike(one: list[list[int]], other: list[list[int]]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


def _gap(model: decoder.Decoder, tokens: list[int], one: int, other: int) -> float:
    """Return the difference of two tokens' float32 logits after a sequence."""
    bench = parts.make_bench(model, 1024, max_batch=1, pages=torch.float32)
    request = bench.request("gap", tokens, SamplingParams())
    request.table.append(len(tokens))
    ids, layout = bench.runner._layout([Row(request, 0, len(tokens))])
    with torch.inference_mode():
        logits = model.logits(model.forward(ids, layout, bench.cache.pages)[-1:])[0]
    return abs(float(logits[one] - logits[other]))


def transformers_rate(folder: Path, prompts: list[list[int]], outputs: int, device: torch.device) -> float:
    """Return the tokens a second of transformers' continuous batching, after a short run that is not counted."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa").to(device)
    rate = 0.0
    for count in (min(outputs, 8), outputs):
        config = GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)
        begin = time.monotonic()
        results = model.generate_batch(inputs=prompts, generation_config=config, record_timestamps=True)
        seconds = time.monotonic() - begin
        stamps = [stamp for result in results.values() for stamp in (getattr(result, "timestamps", None) or [])]
        if stamps and max(stamps) > min(stamps):
            # From the first token on, so that its own warm-up does not count.
            seconds = max(stamps) - min(stamps)
        rate = sum(len(result.generated_tokens) for result in results.values()) / seconds
    return rate
