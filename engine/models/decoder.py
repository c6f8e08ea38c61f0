"""Decoder-only language models: Llama (SmolLM2 is one), Qwen2, Qwen3, the text half of Gemma 3, and LFM2.

One implementation with flags from DecoderConfig. It maps a step's tokens and their slots in the KV pages to hidden
rows, and hidden rows to logits. Speech models, whose rows are not tokens, use DecoderLayers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.paged import paged_attention
from voxlane.engine.kernels.attention.pages import LayerPages, Layout, Pages, StatePages
from voxlane.engine.kernels.attention.rope import rope_write
from voxlane.engine.kernels.attention.short import Heads, short_attention
from voxlane.engine.kernels.conv.short_conv import short_conv
from voxlane.engine.kernels.linear import skinny
from voxlane.engine.kernels.linear.linear import embed, linear
from voxlane.engine.kernels.linear.stack import Stack, fits
from voxlane.engine.kernels.linear.weights import AttentionWeights, DenseWeights, LayerWeights
from voxlane.engine.kernels.norm.activation import gelu_tanh_mul, silu_mul
from voxlane.engine.kernels.norm.rms_norm import add_rms_norm, rms_norm
from voxlane.engine.kernels.yield_flag import EVERY_LAYERS, yield_to_critical
from voxlane.engine.models.decoder_config import DecoderConfig
from voxlane.engine.models.experts import run_experts
from voxlane.engine.models.kept_matrices import KeptMatrices
from voxlane.engine.models.layer_weights import read_layer_weights
from voxlane.engine.models.loading import Mode, Progress, TensorReader, Weight
from voxlane.engine.models.spec import ModelSpec
from voxlane.engine.weights.tensors import WeightFile, decoder_name

Linear = Callable[[Tensor, Weight, Tensor | None], Tensor]
Attend = Callable[[Tensor, Pages, Layout, float, int], Tensor]
Observer = Callable[[int, Tensor], None]  # (layer, queries [T, heads, head_dim])


class DecoderLayers:
    """Loaded layers, from embedded rows to normed hidden rows."""

    def __init__(
        self, config: DecoderConfig, mode: Mode, first_norm: Tensor, layers: list[LayerWeights], context_tokens: int
    ) -> None:
        self.config = config
        self.mode = mode
        self.spec = config.spec
        self.context_tokens = context_tokens  # rotary tables end here
        self._first_norm = first_norm
        self._layers = layers
        self.project = _linear_for(mode, first_norm.device)
        narrow = mode == "bfloat16" and first_norm.is_cuda
        self.dtype = torch.bfloat16 if narrow else torch.float32  # of rows between kernels; residuals are float32
        conv_bias = config.hybrid is not None and config.hybrid.conv_bias
        self._fusable = not (config.gemma or config.out_bias or config.mlp_bias or conv_bias or config.experts)
        self._activation = silu_mul if config.activation == "silu" else gelu_tanh_mul
        self._stack: Stack | None = None
        if self.project is linear and fits(layers):
            self._stack = Stack(
                layers,
                first_norm,
                config.heads,
                config.kv_heads,
                config.head_dim,
                config.norm_eps,
                config.attention_scale,
                0.0,
                gelu=config.activation != "silu",
            )

    def run(self, residual: Tensor, layout: Layout, pages: Sequence[LayerPages]) -> Tensor:
        """Run embedded rows [T, hidden] float32, which it overwrites; return normed hidden rows [T, hidden].

        It writes what the layers keep of them into `pages`.
        """
        if layout.beside is not None:
            return self._run_layers(residual, layout, pages)
        if self._fusable and skinny.serves(residual.shape[0], self._layers[0].mix):
            return self._run_few(residual, layout, pages)
        # The same loop in one native call, with the same bits; None where it is not supported.
        hidden = self._stack.run(residual, layout, pages) if self._stack else None
        return self._run_layers(residual, layout, pages) if hidden is None else hidden

    def observed(self, residual: Tensor, layout: Layout, pages: Sequence[LayerPages], observe: Observer) -> None:
        """Do run's work, and call `observe(layer, queries [T, heads, head_dim])` in every layer."""
        self._run_layers(residual, layout, pages, observe)

    def _run_layers(
        self, residual: Tensor, layout: Layout, pages: Sequence[LayerPages], observe: Observer | None = None
    ) -> Tensor:
        project, eps, parts = self.project, self.config.norm_eps, layout.parts
        x = rms_norm(residual, self._first_norm, eps, self.dtype)
        for index, (layer, page) in enumerate(zip(self._layers, pages, strict=True)):
            if layout.yield_flag is not None and index % EVERY_LAYERS == 0:
                yield_to_critical(layout.yield_flag, first=index == 0)
            attend = paged_attention if observe is None else _observed(observe, index)
            mixed = self._mix_parts(project(x, layer.mix, layer.mix_bias), layer, page, parts, attend)
            x = project(mixed, layer.out, layer.out_bias)
            if layer.after_attention_norm is not None:
                x = rms_norm(x, layer.after_attention_norm, eps)
            x, residual = add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = self._feed(x, layer)
            if layer.after_mlp_norm is not None:
                x = rms_norm(x, layer.after_mlp_norm, eps)
            x, residual = add_rms_norm(x, residual, layer.next_norm, eps)
        return x

    def _run_few(self, residual: Tensor, layout: Layout, pages: Sequence[LayerPages]) -> Tensor:
        """Do _run_layers' work for a few rows on CUDA, with norms, gates and residuals fused into the products."""
        config = self.config
        eps, gelu, norm = config.norm_eps, config.activation != "silu", self._first_norm
        for layer, page in zip(self._layers, pages, strict=True):
            assert isinstance(layer.feed, DenseWeights), "a layer with experts is not fused"
            mixed = skinny.norm_linear(residual, norm, eps, _tensor(layer.mix), layer.mix_bias)
            mixed = self._mix(mixed, layer, page, layout, skinny.attend)
            skinny.linear_add(mixed, _tensor(layer.out), residual)
            inner = skinny.norm_gate(residual, layer.mlp_norm, eps, _tensor(layer.feed.gate_up), gelu=gelu)
            skinny.linear_add(inner, _tensor(layer.feed.down), residual)
            norm = layer.next_norm
        return rms_norm(residual, norm, eps, self.dtype)

    def _feed(self, x: Tensor, layer: LayerWeights) -> Tensor:
        """Return the output of a layer's feed-forward network, or of its experts."""
        feed, project, activate = layer.feed, self.project, self._activation
        if not isinstance(feed, DenseWeights):
            return run_experts(x, feed, project, activate)
        return project(activate(project(x, feed.gate_up, feed.gate_up_bias)), feed.down, feed.down_bias)

    def _mix_parts(
        self, inputs: Tensor, layer: LayerWeights, page: LayerPages, parts: tuple[Layout, ...], attend: Attend
    ) -> Tensor:
        """Return what a layer makes of the tokens of a step's parts, each by its own layout."""
        if len(parts) == 1:
            return self._mix(inputs, layer, page, parts[0], attend)
        pieces = torch.split(inputs, [part.positions.shape[0] for part in parts])
        each = zip(pieces, parts, strict=True)
        return torch.cat([self._mix(some, layer, page, part, attend) for some, part in each])

    def _mix(self, inputs: Tensor, layer: LayerWeights, page: LayerPages, layout: Layout, attend: Attend) -> Tensor:
        """Return what a layer makes of tokens and those before them, from a fused projection; write what it keeps."""
        if isinstance(layer, AttentionWeights):
            assert isinstance(page, Pages), "attention has pages of keys and values"
            return self._attend(inputs, layer, page, layout, attend)
        assert isinstance(page, StatePages), "a convolution has pages of past vectors"
        return short_conv(inputs, layer.taps, layer.taps_bias, layout, page)

    def _attend(self, qkv: Tensor, layer: AttentionWeights, page: Pages, layout: Layout, attend: Attend) -> Tensor:
        """Write the keys and values of a projection; return the attention of its queries."""
        config = self.config
        sizes = (config.heads, config.kv_heads, config.head_dim, layer.cos, layer.sin)
        norms = (layer.q_norm, layer.k_norm, config.norm_eps)
        if layout.common_start >= 0 and qkv.is_cuda and not layer.window:
            heads = Heads(*sizes, *norms, config.attention_scale)
            return short_attention(qkv, heads, page, layout.common_start, layout.max_query)
        q = rope_write(qkv, *sizes, layout, page, *norms)
        return attend(q, page, layout, config.attention_scale, layer.window)

    def logits_of(self, hidden: Tensor, head: Weight) -> Tensor:
        """Return hidden rows [N, hidden] times an output head [vocab, hidden], float32."""
        if self.dtype is not torch.bfloat16 or not isinstance(head, Tensor):
            return self.project(hidden, head, None)
        # float32 logits: rounding would make the best ones equal
        few = skinny.serves(hidden.shape[0], head)
        return skinny.linear_wide(hidden, head) if few else _mm_wide(hidden, head)


class Decoder(DecoderLayers):
    """A loaded model."""

    def __init__(
        self,
        config: DecoderConfig,
        mode: Mode,
        embedding: Weight,
        first_norm: Tensor,
        layers: list[LayerWeights],
        head: Weight,
        parameters: int,
        context_tokens: int,
    ) -> None:
        super().__init__(config, mode, first_norm, layers, context_tokens)
        self.vocab_size = config.vocab_size
        self.parameters = parameters
        self._embedding = embedding
        self._head = head
        self._embedding_scale = _embedding_scale(config, mode)

    @staticmethod
    def spec_of(config: dict[str, object]) -> ModelSpec:
        """Return the sizes of the model that a config describes, or raise ModelConfigError."""
        return DecoderConfig.from_dict(config).spec

    @classmethod
    def load(
        cls,
        weights: WeightFile,
        mode: Mode = "packed",
        progress: Progress | None = None,
        device: str | torch.device = "cpu",
        context_tokens: int = 0,
    ) -> Decoder:
        """Read a model, or raise ModelError with one line that names the config key or tensor at fault.

        `context_tokens` shortens the model's own limit, and the memory of its position tables with it.
        """
        config = DecoderConfig.from_dict(weights.config)
        context_tokens = min(context_tokens or config.context_tokens, config.context_tokens)
        kept = KeptMatrices(sources) if mode == "packed" and (sources := getattr(weights, "sources", ())) else None
        reader = TensorReader(weights, _aliases(weights.names()), mode, torch.device(device), progress, kept)
        embedding = reader.matrix(["model.embed_tokens.weight"], [config.vocab_size], config.hidden_size)
        head = embedding
        if not config.tied:
            head = reader.matrix(["lm_head.weight"], [config.vocab_size], config.hidden_size)
        first_norm, layers = read_layer_weights(reader, config, "model.", context_tokens)
        reader.finish(ignored=["lm_head.weight"] if config.tied else [])
        return cls(config, mode, embedding, first_norm, layers, head, reader.parameters, context_tokens)

    def forward(self, tokens: Tensor, layout: Layout, pages: Sequence[LayerPages]) -> Tensor:
        """Run `tokens` [T] int64, write what layers keep into `pages`; return normed hidden rows [T, hidden]."""
        residual = embed(tokens, self._embedding).to(torch.float32)
        if self._embedding_scale != 1.0:
            residual = residual * self._embedding_scale
        return self.run(residual, layout, pages)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, vocab] float32 of hidden rows [N, hidden] that forward returned."""
        logits = self.logits_of(hidden, self._head)
        if self.config.final_softcap:
            logits = torch.tanh(logits / self.config.final_softcap) * self.config.final_softcap
        return logits


def read_layers(
    reader: TensorReader, config: DecoderConfig, mode: Mode, prefix: str, context_tokens: int
) -> DecoderLayers:
    """Read the layers and norms whose names begin with `prefix`."""
    return DecoderLayers(config, mode, *read_layer_weights(reader, config, prefix, context_tokens), context_tokens)


def _embedding_scale(config: DecoderConfig, mode: Mode) -> float:
    # Hugging Face rounds Gemma's factor to the weights' type: in bfloat16 sqrt(3072) = 55.43 becomes 55.5.
    dtype = torch.bfloat16 if mode == "bfloat16" else torch.float32
    return float(torch.tensor(config.hidden_size**0.5, dtype=dtype)) if config.gemma else 1.0


def _linear_for(mode: Mode, device: torch.device) -> Linear:
    # On a CPU without bfloat16 instructions torch multiplies that type at 0.1 GFLOP/s; our kernel widens as it reads.
    # On CUDA rows have the weights' type.
    narrow = device.type == "cpu" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return _linear_bfloat16 if mode == "bfloat16" and narrow else linear


def _linear_bfloat16(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """Multiply in bfloat16; rows between products, and biases, stay float32."""
    y = linear(x.to(torch.bfloat16), weight).to(torch.float32)
    return y if bias is None else y.add_(bias)


def _mm_wide(x: Tensor, matrix: Tensor) -> Tensor:
    return torch.mm(x, matrix.t(), out_dtype=torch.float32)


def _observed(observe: Observer, layer: int) -> Attend:
    """Return an attention function that shows its queries first."""

    def attend(q: Tensor, pages: Pages, layout: Layout, scale: float, window: int) -> Tensor:
        observe(layer, q)
        return paged_attention(q, pages, layout, scale, window)

    return attend


def _tensor(weight: Weight) -> Tensor:
    assert isinstance(weight, Tensor), "packed weights have no place here"
    return weight


def _aliases(names: list[str]) -> dict[str, str]:
    """Return the decoder's tensors under their plain names, mapped to the file's."""
    return {plain: name for name in names if (plain := decoder_name(name)) is not None}
