"""Qwen3-TTS's 12 Hz codec decoder with random weights: its noise, and its time for many streams."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import ClassVar

import torch
from support.gpu.clock import time_device
from torch import Tensor

from voxlane.engine.models.qwen3_tts.codec import Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.codec_config import MODEL_TYPE, CodecConfig
from voxlane.engine.models.qwen3_tts.codec_weights import read_weights

TRUE: dict[str, object] = {
    "codebook_dim": 512, "codebook_size": 2048, "decoder_dim": 1536, "head_dim": 64, "hidden_size": 512,
    "intermediate_size": 1024, "latent_dim": 1024, "num_attention_heads": 16, "num_hidden_layers": 8,
    "num_key_value_heads": 16, "num_quantizers": 16, "sliding_window": 72, "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
}  # fmt: skip
SMALL = {**TRUE, "decoder_dim": 32, "latent_dim": 32, "codebook_dim": 32, "codebook_size": 32, "num_hidden_layers": 2}
STREAMS, FRAMES = (1, 8, 16, 32, 64, 128), (1, 4)
CHECKED_FRAMES = 6


class RandomReader:
    """Random tensors: the numbers of one depend on its name alone."""

    def __init__(self, device: torch.device) -> None:
        self.parameters = 0
        self._device = device

    def floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor scaled so that the signal keeps its size from layer to layer."""
        self.parameters += math.prod(shape)
        if name.endswith(("norm.weight", "cluster_usage")):
            return torch.ones(shape, device=self._device)
        deviation = 1.0 if name.endswith("embedding_sum") else 0.1
        if len(shape) > 1 and deviation < 1:
            inputs = shape[0] * 2 if name.endswith(".1.conv.weight") else math.prod(shape[1:])
            deviation = (0.3 if ".conv2." in name else 1.0) * inputs**-0.5
        random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return (torch.randn(shape, generator=random) * deviation).to(self._device)


class Remembered(RandomReader):
    """Draws each tensor once, and gives every decoder a copy."""

    drawn: ClassVar[dict[tuple[str, tuple[int, ...]], Tensor]] = {}

    def floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a new tensor."""
        if (name, shape) not in self.drawn:
            self.drawn[name, shape] = super().floats(name, shape).cpu()
        return self.drawn[name, shape].to(self._device, copy=True)


def build(config: CodecConfig, dtype: torch.dtype, device: torch.device) -> Qwen3TTSCodec:
    """Return the decoder with random weights, the same for every type and device."""
    return Qwen3TTSCodec(config, read_weights(Remembered(device), config, dtype))


def random_codes(config: CodecConfig, streams: int, frames: int) -> Tensor:
    """Return random codes, the same every time."""
    return torch.randint(config.codebook_size, (streams, frames, config.groups), generator=torch.Generator())


def next_frames(codec: Qwen3TTSCodec, codes: Tensor) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Return a call that decodes `codes` as the next frames of as many streams, and its graph (on a CPU, itself)."""
    state = codec.state(len(codes), codes.shape[1])
    rows = torch.arange(len(codes), device=codes.device)

    def call() -> Tensor:
        with torch.inference_mode():
            return codec.decode(codes, state, rows)

    if codes.device.type != "cuda":
        return call, call
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        samples = call()
    state.numbers.zero_()
    state.frames.zero_()

    def replay() -> Tensor:
        graph.replay()
        return samples

    return call, replay


def served(device: torch.device) -> torch.dtype:
    """Return the type in which a device decodes."""
    return torch.float16 if device.type == "cuda" else torch.float32


def check(config: CodecConfig, device: torch.device) -> None:
    """Print how far samples are from float32 on the CPU, and how far a graph is from launched calls."""
    codes = random_codes(config, 2, CHECKED_FRAMES)
    host = build(config, torch.float32, torch.device("cpu"))
    wanted = host.decode(codes, host.state(2), torch.arange(2))
    stream_mb = host.state(1).stream_bytes / 2e6
    print(f"{host.parameters / 1e6:.0f} million parameters, {stream_mb:.1f} MB a stream in float16")
    codec, rows = build(config, served(device), device), torch.arange(2, device=device)
    samples = codec.decode(codes.to(device), codec.state(2, CHECKED_FRAMES), rows).cpu()
    noise = 20 * math.log10((samples - wanted).std() / wanted.std() + 1e-12)
    _, replay = next_frames(codec, codes[:, :1].to(device))
    off = (replay().cpu() - samples[:, : codec.frame_samples]).abs().max()
    print(f"codec in {served(device)}: noise {noise:.0f} dB, graph off by {off:.1e}", flush=True)


def measure(config: CodecConfig, device: torch.device, streams: tuple[int, ...]) -> None:
    """Print the table."""
    codec = build(config, served(device), device)
    print("| streams | frames | graph | launched | frame | × real |\n|---:|---:|---:|---:|---:|---:|")
    for frames in FRAMES:
        for count in streams:
            call, replay = next_frames(codec, random_codes(config, count, frames).to(device))
            launched, graph = time_device(call, 10, device), time_device(replay, 50, device)
            spoken = count * frames * codec.frame_samples / codec.sample_rate
            each = graph / count / frames * 1e6
            print(
                f"| {count} | {frames} | {graph * 1e3:.2f} | {launched * 1e3:.2f} | {each:.0f} | {spoken / graph:.0f} |"
            )


def run(*, dry: bool) -> None:
    """Check and measure the codec of the true shape on the GPU, or a small one on the CPU."""
    device = torch.device("cpu" if dry else "cuda")
    config = CodecConfig.from_dict({"model_type": MODEL_TYPE, "decoder_config": SMALL if dry else TRUE})
    with torch.inference_mode():
        check(config, device)
        measure(config, device, STREAMS[:2] if dry else STREAMS)
