"""The chat model's Triton kernels on a CPU, by Triton's interpreter, for dry runs."""

from __future__ import annotations

from support.gpu import interpreter
from support.replace import put

from voxlane.engine.kernels.linear import skinny
from voxlane.engine.models import decoder
from voxlane.engine.runners.cuda import decode_graphs, prompts


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
