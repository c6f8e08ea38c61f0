"""Checks one small call of every kernel on the device against its reference, on a model's own sizes, and one graph.

It compiles the kernels that the model runs with, and reaches each code path once; the tests are thorough.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from voxlane.engine.errors import ModelError
from voxlane.engine.kernels.attention import paged, rope, swap
from voxlane.engine.kernels.attention.pages import Layout, Pages, StatePages
from voxlane.engine.kernels.conv import short_conv
from voxlane.engine.kernels.linear import experts, skinny
from voxlane.engine.kernels.norm import activation, layer_norm, rms_norm
from voxlane.engine.kernels.sampling import decode_rows, sampling
from voxlane.engine.kernels.selfcheck import Agreement, Comparison, agreement
from voxlane.engine.runners.cuda import selfcheck_clause_tts, selfcheck_codec_tts, selfcheck_converse
from voxlane.engine.runners.cuda.rows import PACKET
from voxlane.engine.runners.cuda.trial import LISTENER, TOLERANCES, Trial

_ONE_CODE = 0.02
"""Keys that differ in their last bit may be stored one int8 or bfloat16 code apart."""

_CUT = 256
"""Rows of a matrix: enough to see whether a product is right."""

_WAYS = (
    (0.0, 0, 1.0, 0.0, False),
    (0.8, 20, 1.0, 0.0, False),
    (1.0, 0, 0.9, 0.0, False),
    (1.2, 0, 1.0, 0.05, False),
    (0.0, 0, 1.0, 0.0, True),
    (0.9, 50, 0.8, 0.02, True),
)
"""How a token is chosen: temperature, top-k, top-p, min-p, and whether there are penalties and biases."""


_CROWD = 160  # rows


class KernelError(ModelError):
    """A kernel does not compile or is wrong on this device; str() is one line that says what to do."""

    def __init__(self, found: Agreement) -> None:
        what = found.failure or f"is off by {found.error:.1e}, at most {found.tolerance:.1e} is right"
        super().__init__(f'kernel {found.name}: {what}; `voxlane doctor` shows all, engine.device = "cpu" runs without')


def check_kernels(trial: Trial) -> None:
    """Raise KernelError for the first kernel that is not right."""
    for found in agreements(trial):
        if not found.good:
            raise KernelError(found)


def agreements(trial: Trial) -> Iterator[Agreement]:
    """Check every kernel and a graph; stop at the first that does not run."""
    from triton.errors import TritonError  # here: without a device there may be no Triton

    for name, check in _checks(trial).items():
        try:
            with torch.inference_mode():
                found = agreement(name, check(trial))
        except (RuntimeError, ValueError, TritonError) as error:
            found = Agreement(name, math.inf, trial.tolerance, " ".join(str(error).split())[:200] or repr(error))
        yield found
        if found.failure:  # the device may no longer answer
            return


def _checks(trial: Trial) -> dict[str, Callable[[Trial], Iterator[Comparison]]]:
    checks: dict[str, Callable[[Trial], Iterator[Comparison]]] = {
        "norms": _norms,
        "gate": _gate,
        "rope and cache write": _rope,
        "attention, prompts": _prompts,
        "attention, decodes": _decodes,
        "decode rows": _rows,
        "sampling": _sampling,
        "block copies": _copies,
    }
    if skinny.serves(1, torch.empty(1, dtype=trial.dtype, device=trial.device)):
        checks["products of few rows"] = _few
    if trial.convolution is not None:
        checks["short convolution"] = _short_conv
    if trial.ears:
        checks["listening, attention"] = _listening
    if trial.voice:
        checks |= selfcheck_clause_tts.CHECKS
    if trial.talker or trial.dialogue:
        checks |= selfcheck_codec_tts.CHECKS
    if trial.dialogue:
        checks |= selfcheck_converse.CHECKS
    if trial.spec.experts is not None:
        checks["products of experts"] = _experts
    if trial.device.type == "cuda":
        checks["graph, replayed"] = _graph
    return checks


def _norms(trial: Trial) -> Iterator[Comparison]:
    size, close = trial.spec.hidden_size, trial.tolerance
    x, weight, bias = trial.noise(3, size), trial.gain(size), trial.gain(size)
    residual, wide = trial.noise(3, size, dtype=torch.float32), x.to(torch.float32)
    yield rms_norm.rms_norm(x, weight, 1e-5), rms_norm.rms_norm_ref(wide, weight, 1e-5), close
    normed = layer_norm.layer_norm_ref(wide, weight, bias, 1e-5)
    yield layer_norm.layer_norm(x, weight, bias, 1e-5), normed, close
    added = rms_norm.add_rms_norm_ref(wide, residual.clone(), weight, 1e-5)
    for got, expected in zip(rms_norm.add_rms_norm(x, residual.clone(), weight, 1e-5), added, strict=True):
        yield got, expected, close
    summed = layer_norm.add_layer_norm_ref(wide, residual.clone(), weight, bias, 1e-5)
    for got, expected in zip(layer_norm.add_layer_norm(x, residual, weight, bias, 1e-5), summed, strict=True):
        yield got, expected, close


def _gate(trial: Trial) -> Iterator[Comparison]:
    x = trial.noise(3, 2 * trial.spec.intermediate_size)
    wide = x.to(torch.float32)
    if trial.spec.activation == "silu":
        yield activation.silu_mul(x), activation.silu_mul_ref(wide), trial.tolerance
    else:
        yield activation.gelu_tanh_mul(x), activation.gelu_tanh_mul_ref(wide), trial.tolerance


def _rope(trial: Trial) -> Iterator[Comparison]:
    heads = trial.attention
    place = _layout(trial, queries=(5, 1, 30), contexts=(5, 1, 30))
    qkv = trial.noise(36, heads.columns)
    angles = torch.rand((30, heads.head_dim // 2), generator=trial.random, device=trial.device) * 6.0
    gain = trial.gain(heads.head_dim) if heads.qk_norm else None
    stored = [_pages(trial, place) for _ in range(2)]
    sizes = (heads.heads, heads.kv_heads, heads.head_dim, angles.cos(), angles.sin(), place)
    got = rope.rope_write(qkv, *sizes, stored[0], gain, gain, 1e-6)
    expected = rope.rope_write_ref(qkv.to(torch.float32), *sizes, stored[1], gain, gain, 1e-6)
    yield got, expected, trial.tolerance
    for row, length in enumerate((5, 1, 30)):
        for part in ("k", "v"):
            mine, theirs = (paged.gather(pages, place.block_tables[row], length, part) for pages in stored)
            yield mine, theirs, _ONE_CODE


def _prompts(trial: Trial) -> Iterator[Comparison]:
    # The last row of either is cut into pieces.
    yield from _attend(trial, queries=(1, 33, 17), contexts=(1, 33, 1100))
    yield from _attend(trial, queries=(1, 17, 250), contexts=(1, 17, 2100))
    yield from _attend(trial, queries=(300, 300), contexts=(300, 420), alike=True)  # no row is cut


def _decodes(trial: Trial) -> Iterator[Comparison]:
    yield from _attend(trial, queries=(1, 1, 1), contexts=(1, 80, 1100))
    yield from _attend(trial, queries=[1] * _CROWD, contexts=range(1, _CROWD + 1))  # often another kernel serves these


def _listening(trial: Trial) -> Iterator[Comparison]:
    own = Trial(LISTENER, torch.float32, torch.float32, trial.block_tokens, trial.device)
    yield from _prompts(own)
    yield from _decodes(own)


def _attend(
    trial: Trial, queries: Sequence[int], contexts: Sequence[int], *, alike: bool = False
) -> Iterator[Comparison]:
    heads, place = trial.attention, _layout(trial, queries, contexts)
    if alike:
        place = replace(place, max_query=max(queries))
    pages = _pages(trial, place, filled=True)
    q = trial.noise(sum(queries), heads.heads, heads.head_dim)
    calls: list[Callable[[Tensor, Pages, Layout, float, int], Tensor]] = [paged.paged_attention]
    if max(queries) == 1 and len(queries) < _CROWD and trial.dtype is torch.bfloat16:
        calls.append(skinny.attend)
    for window in sorted({layer.window for layer in trial.spec.attention}):
        expected = paged.paged_attention_ref(q.to(torch.float32), pages, place, heads.scale, window)
        for call in [*calls, *_by_hopper(q, pages, window)] if max(queries) > 1 else calls:
            yield call(q, pages, place, heads.scale, window), expected, trial.tolerance


def _by_hopper(q: Tensor, pages: Pages, window: int) -> Iterator[Callable[..., Tensor]]:
    """Yield every variant with which triton_hopper.py would serve such queries in smaller or larger numbers."""
    if q.device.type == "cuda":
        from voxlane.engine.kernels.attention import paged_triton as by_triton  # here: Triton need not be installed
        from voxlane.engine.kernels.attention.triton_tuning import hopper_tuning

        if by_triton.by_hopper(q, pages, window, 0.0):
            for way in dict.fromkeys(hopper_tuning(q.shape[2], 1 << size) for size in (0, 20)):
                yield partial(by_triton.paged_attention_triton, prefill=way)


def _rows(trial: Trial) -> Iterator[Comparison]:
    packet = torch.zeros((4, PACKET), dtype=torch.int32)
    for row, (token, position, block) in enumerate(((11, 0, 3), (0, -1, 0), (12, trial.block_tokens, 7), (~2, 5, 1))):
        packet[row, [sampling.TOKEN, sampling.POSITION, sampling.BLOCK]] = torch.tensor([token, position, block]).int()

    def filled(function: Callable[..., None], device: torch.device) -> list[Tensor]:
        positions, slots, lengths = torch.full((3, 4), 9, dtype=torch.int32, device=device)
        tables = torch.zeros((4, 3), dtype=torch.int32, device=device)
        place = Layout(positions, slots, slots, lengths, tables)
        tokens = torch.zeros(4, dtype=torch.int64, device=device)
        chosen = torch.tensor([21, 22, 23, 24], dtype=torch.int32, device=device)
        function(packet.to(device), tokens, place, trial.block_tokens, chosen)
        return [part.cpu() for part in (tokens, positions, slots, lengths, tables)]

    reference = filled(decode_rows.unpack_ref, torch.device("cpu"))
    for got, expected in zip(filled(decode_rows.unpack, trial.device), reference, strict=True):
        yield got, expected, 1e-6


def _sampling(trial: Trial) -> Iterator[Comparison]:
    """Choose the largest, draw with every filter, do both with penalties; count the choices and feed them back."""
    rows, vocabulary = len(_WAYS), trial.spec.vocab_size
    logits = trial.noise(rows, vocabulary, dtype=torch.float32) * 3.0
    packet = torch.zeros((rows, PACKET), dtype=torch.int32)
    floats = packet.view(torch.float32)
    slots = 0
    for row, (temperature, top_k, top_p, min_p, penalised) in enumerate(_WAYS):
        slots += penalised
        packet[row, sampling.SEED_LOW], packet[row, sampling.POSITION] = 77 + row, 40
        packet[row, sampling.TOP_K], packet[row, sampling.PENALTIES] = top_k, slots * penalised
        floats[row, sampling.TEMPERATURE], floats[row, sampling.TOP_P] = temperature, top_p
        floats[row, sampling.MIN_P] = min_p
    held = [sampling.Penalties.empty(slots, vocabulary, device) for device in (trial.device, torch.device("cpu"))]
    largest = logits.topk(4, dim=1).indices.cpu()
    for penalties, slot in itertools.product(held, range(slots)):
        known = largest[rows - slots + slot].tolist()
        penalties.set(
            slot, known, 2, repetition=1.3, presence=0.5, frequency=0.2, bias=[(known[0], 1.0), (known[2], -9.0)]
        )
    tokens = torch.empty(rows, dtype=torch.int32, device=trial.device)
    logprobs = torch.empty(rows, device=trial.device)
    fed = largest[:, 0].contiguous()
    for _ in range(2):
        sampling.sample(logits, packet.to(trial.device), tokens, logprobs, held[0], fed.to(trial.device))
        expected = sampling.sample_ref(logits.cpu(), packet, held[1], fed)
        yield tokens.cpu(), expected[0], 1e-9
        yield logprobs.cpu(), expected[1], TOLERANCES[torch.float32]
        yield held[0].history.cpu(), held[1].history, 1e-9
        fed = expected[0].long()
        packet[:, sampling.POSITION] += 1


def _copies(trial: Trial) -> Iterator[Comparison]:
    shape = (2, 2, 6, trial.attention.kv_heads, trial.block_tokens, trial.attention.head_dim)
    storage = (trial.noise(*shape, dtype=torch.float32) * 50).to(trial.pages)
    before = storage.clone()
    host = torch.zeros_like(storage, device="cpu")
    if trial.device.type == "cuda":
        host = host.pin_memory()
    swap.copy_blocks(storage, host, [3, 1], [0, 2])
    swap.copy_blocks(host, storage, [2], [5])
    swap.copy_blocks(storage, storage, [0], [4])
    for source, target in ((1, 5), (0, 4)):
        yield storage[:, :, target], before[:, :, source], 1e-9


def _short_conv(trial: Trial) -> Iterator[Comparison]:
    """Convolve chunks of prompts, then one more token of each row."""
    layer, size = trial.convolution, trial.block_tokens
    assert layer is not None, "the model has convolutions"
    weight = trial.noise(layer.taps, layer.channels, dtype=torch.float32)
    slots = min(layer.taps - 1, size)
    for queries, contexts in (((1, size + 3, 2), (size, size + 5, 4)), ((1, 1, 1), (size, size + 6, 5))):
        place = _layout(trial, queries, contexts)
        blocks = int(place.block_tables.max()) + 1
        bcx = trial.noise(len(place.positions), 3 * layer.channels)
        vectors = trial.noise(blocks, slots, layer.channels, dtype=torch.float32)
        pages = [StatePages(vectors.clone(), size) for _ in range(2)]
        got = short_conv.short_conv(bcx, weight, None, place, pages[0])
        expected = short_conv.short_conv_ref(bcx.to(torch.float32), weight, None, place, pages[1])
        yield got, expected, trial.tolerance
        yield pages[0].vectors, pages[1].vectors, TOLERANCES[torch.float32]


def _experts(trial: Trial) -> Iterator[Comparison]:
    """Multiply few and many tokens with experts, both ways; some outputs are enough."""
    sizes = trial.spec.experts
    assert sizes is not None, "the model has experts"
    inner, hidden = min(sizes.inner, _CUT), trial.spec.hidden_size
    up, down = trial.noise(sizes.count, inner, hidden), trial.noise(sizes.count, _CUT, inner)
    up, down = up.mul_(hidden**-0.5), down.mul_(inner**-0.5)
    for tokens in (1, 5, _crowd_of(sizes.count, sizes.chosen)):
        scores = torch.rand((tokens, sizes.count), generator=trial.random, device=trial.device)
        pairs = experts.group_pairs(scores.argsort(dim=1)[:, : sizes.chosen], sizes.count)
        x, shares = trial.noise(tokens, hidden), trial.gain(len(pairs.order))
        product = experts.expert_linear(x, up, pairs)
        wide = experts.expert_linear_ref(x.to(torch.float32), up.to(torch.float32), pairs)
        yield product, wide, trial.tolerance
        last = experts.expert_linear_ref(product.to(torch.float32), down.to(torch.float32), pairs, shares)
        yield experts.expert_linear(product, down, pairs, shares), last, trial.tolerance


def _crowd_of(count: int, chosen: int) -> int:
    """Return so many tokens that experts have more than 16 pairs each: they get the kernel's larger tile."""
    return 17 * count // chosen + 1


def _few(trial: Trial) -> Iterator[Comparison]:
    spec, heads, tolerance = trial.spec, trial.attention, trial.tolerance
    residual, gain = trial.noise(1, spec.hidden_size, dtype=torch.float32), trial.gain(spec.hidden_size)
    normed = rms_norm.rms_norm_ref(residual, gain, 1e-6)
    matrix = trial.noise(_CUT, spec.hidden_size) * 0.05
    wide = matrix.to(torch.float32)
    yield skinny.norm_linear(residual, gain, 1e-6, matrix), normed @ wide.T, tolerance
    gated = activation.silu_mul_ref if spec.activation == "silu" else activation.gelu_tanh_mul_ref
    got = skinny.norm_gate(residual, gain, 1e-6, matrix, gelu=spec.activation != "silu")
    yield got, gated(normed @ wide.T), tolerance
    for inputs in (heads.heads * heads.head_dim, spec.intermediate_size):
        x, matrix = trial.noise(1, inputs), trial.noise(_CUT, inputs) * 0.05
        expected = x.to(torch.float32) @ matrix.to(torch.float32).T
        total = torch.zeros((1, _CUT), device=trial.device)
        skinny.linear_add(x, matrix, total)
        yield total, expected, tolerance
    yield skinny.linear_wide(x, matrix), expected, tolerance


def _graph(trial: Trial) -> Iterator[Comparison]:
    """Capture two kernels on one input, replay them on another."""
    x, weight = trial.noise(3, trial.spec.hidden_size), trial.gain(trial.spec.hidden_size)
    rms_norm.rms_norm(x, weight, 1e-5)  # compiles it: a capture cannot
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rms_norm.rms_norm(rms_norm.rms_norm(x, weight, 1e-5), weight, 1e-5)
    x.copy_(trial.noise(3, trial.spec.hidden_size))
    graph.replay()
    torch.cuda.synchronize()
    yield out, rms_norm.rms_norm(rms_norm.rms_norm(x, weight, 1e-5), weight, 1e-5), 1e-9


def _layout(trial: Trial, queries: Sequence[int], contexts: Sequence[int]) -> Layout:
    """Return a layout of rows, each in blocks of its own; their last tokens are the queries."""
    size = trial.block_tokens
    widths = [-(-length // size) for length in contexts]
    tables = torch.zeros((len(contexts), max(widths)), dtype=torch.int32)
    positions: list[int] = []
    slots: list[int] = []
    first = 0
    for row, (count, length) in enumerate(zip(queries, contexts, strict=True)):
        tables[row, : widths[row]] = torch.arange(first, first + widths[row])
        positions += range(length - count, length)
        slots += range(first * size + length - count, first * size + length)
        first += widths[row]

    def numbers(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=trial.device)

    starts = [sum(queries[:row]) for row in range(len(queries) + 1)]
    tables = tables.to(trial.device)
    return Layout(numbers(positions), numbers(slots), numbers(starts), numbers(contexts), tables, max(queries))


def _pages(trial: Trial, place: Layout, *, filled: bool = False) -> Pages:
    blocks = int(place.block_tables.max()) + 1
    size = (blocks, trial.attention.kv_heads, trial.block_tokens, trial.attention.head_dim)
    factor = (40.0 if trial.pages is torch.int8 else 1.0) if filled else 0.0
    k, v = ((trial.noise(*size, dtype=torch.float32) * factor).clamp(-127, 127).to(trial.pages) for _ in range(2))
    if trial.pages is not torch.int8:
        return Pages(k, v)
    scales = [torch.full(size[:3], 0.025, dtype=torch.bfloat16, device=trial.device) for _ in range(2)]
    return Pages(k, v, *scales)
