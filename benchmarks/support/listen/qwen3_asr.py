"""Qwen3-ASR on one GPU, with weights that transformers draws: the parts of `gpu_listen.py --qwen3-asr`."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from support.gpu.clock import FAILURES
from support.listen.parts import BLOCK_TOKENS, noise
from tokenizers import models, pre_tokenizers, trainers
from torch import Tensor

from voxlane.engine.api import SamplingParams
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.qwen3_asr.model import Qwen3ASR
from voxlane.engine.models.qwen3_asr.prompt import LANGUAGES
from voxlane.engine.runners.cuda.recogniser import CudaRecogniser
from voxlane.engine.runners.recogniser import Recogniser, TranscriptionOutcome, TranscriptionPayload
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import ClipStates, Request

WORDS = 12  # tokens of three seconds of speech
STREAMS = (1, 16)
PARTS = ("same", "ours")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>")

_TEXT = {"model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 65_536}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "0.6b": (
        {"d_model": 896, "encoder_layers": 18, "encoder_attention_heads": 14, "encoder_ffn_dim": 3584},
        {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, **_TEXT},
    ),
    "speck": (
        {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48}
        | {"downsample_hidden_size": 8, "num_mel_bins": 24, "n_window_infer": 200},
        {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, **_TEXT}
        | {"num_key_value_heads": 2, "head_dim": 16},
    ),
}


class StateDict:
    """A model of transformers as a file of weights."""

    def __init__(self, peer: Any, path: Path) -> None:
        self.path = path
        self._config: dict[str, object] = json.loads(peer.config.to_json_string())
        self._tensors: dict[str, Tensor] = dict(peer.state_dict())

    @property
    def config(self) -> dict[str, object]:
        return self._config

    def names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]

    def blocks(self, name: str) -> None:
        return None


def write_vocabulary(path: Path) -> dict[str, int]:
    """Write a vocabulary in which every word of a prompt is one token; return the added ones."""
    words = [*(f" {name}" for name in (*LANGUAGES.values(), "None")), "system", "user", "assistant", "language"]
    learner = tokenizers.Tokenizer(models.BPE())
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    learner.pre_tokenizer = cut
    trainer = trainers.BpeTrainer(vocab_size=4000, initial_alphabet=cut.alphabet(), show_progress=False)
    learner.train_from_iterator(words, trainer)
    data = json.loads(learner.to_str())
    added = {name: len(data["model"]["vocab"]) + place for place, name in enumerate((*SPECIAL, "<asr_text>"))}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    data["added_tokens"] = [
        {"id": id_, "content": name, "special": name in SPECIAL, **flags} for name, id_ in added.items()
    ]
    (path / "tokenizer.json").write_text(json.dumps(data))
    return added


def make_peer(shape: str, added: dict[str, int], dtype: torch.dtype, device: torch.device) -> Any:
    """Return transformers' model with random weights."""
    audio, text = SHAPES[shape]
    config = transformers.Qwen3ASRConfig(
        audio_config={**audio, "output_dim": text["hidden_size"]},
        text_config={**text, "vocab_size": 151_936 if shape != "speck" else 640},
        audio_token_id=added["<|audio_pad|>"],
        eos_token_id=[added["<|endoftext|>"], added["<|im_end|>"]],
        pad_token_id=added["<|endoftext|>"],
    )
    torch.manual_seed(1)
    with torch.device(device):
        peer = transformers.Qwen3ASRForConditionalGeneration(config).to(dtype).eval()
    if shape == "speck":
        with torch.no_grad():
            for weight in peer.parameters():
                if weight.ndim > 1:
                    weight.normal_(0, 0.3)
    return peer


@dataclass(slots=True)
class Bench:
    """A model with its cache and recogniser."""

    model: Qwen3ASR
    runner: Recogniser
    pool: BlockPool

    @classmethod
    def of(cls, weights: StateDict, mode: Mode, device: torch.device, streams: int, *, plain: bool = False) -> Bench:
        """Return a bench with room for so many streams, its graphs captured."""
        model = Qwen3ASR.load(weights, weights, mode, device=device)
        blocks = streams * -(-model.context_tokens // BLOCK_TOKENS) + 1
        cache = KVCache(model.spec.pages, blocks, BLOCK_TOKENS, model.dtype, device)
        runner = Recogniser(model, cache) if plain else CudaRecogniser(model, cache, device, max_rows=streams)
        if isinstance(runner, CudaRecogniser) and device.type == "cuda":
            runner.capture()
        return cls(model, runner, BlockPool(blocks, BLOCK_TOKENS))

    def request(self, clip: NDArray[np.float32]) -> Request:
        """Return a request that transcribes a clip."""
        states = self.model.states(len(clip))
        prompt = self.model.prompt_tokens("en", states)
        return Request(
            id="a look",
            task="asr",
            tokens=list(prompt),
            prompt_tokens=len(prompt),
            table=BlockTable(self.pool),
            sampling=SamplingParams(logprobs=0),
            model="asr",
            payload=TranscriptionPayload(clip),
            clip=ClipStates(states, None),
        )

    def step(self, requests: list[Request], drafts: list[list[int]] | None = None) -> list[int]:
        """Run one step and append the chosen tokens; return how many each request got."""
        rows = []
        for index, request in enumerate(requests):
            own, encode, start = (drafts[index] if drafts else []), request.unencoded, request.table.length
            count = len(request.tokens) - start
            request.table.append(count + len(own))
            rows.append(Row(request, start, count, drafts=own, encode=encode))
        found = []
        for row, outcome in zip(rows, self.runner.run(ModelBatch(rows=rows)), strict=True):
            assert isinstance(outcome, TranscriptionOutcome)
            assert not outcome.failed
            row.request.tokens += [choice.token for choice in outcome.choices]
            row.request.table.rewind(min(row.request.table.length, len(row.request.tokens) - 1))
            found.append(len(outcome.choices))
        return found

    def look(self, clips: list[NDArray[np.float32]], tokens: int) -> list[list[int]]:
        """Return the first tokens of clips, all transcribed in the same steps."""
        requests = [self.request(clip) for clip in clips]
        for _ in range(tokens):
            self.step(requests)
        for request in requests:
            request.free()
        return [request.tokens[request.prompt_tokens :] for request in requests]

    def next_look(self, clips: list[NDArray[np.float32]], before: list[list[int]]) -> list[int]:
        """Transcribe the same clips again with the earlier tokens as drafts; return how many tokens each got."""
        requests = [self.request(clip) for clip in clips]
        found = self.step(requests, before)
        for request in requests:
            request.free()
        return found


def median_ms(work: Callable[[], object], times: int, device: torch.device) -> float:
    """Return the median milliseconds of `work` as the host sees it, after two that do not count."""
    spans = []
    for _ in range(times + 2):
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        spans.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(spans[2:])


def check_same(path: Path, added: dict[str, int], device: torch.device) -> None:
    peer = make_peer("speck", added, torch.float32, torch.device("cpu"))
    weights = StateDict(peer, path)
    clips = [noise(seconds, seed) for seed, seconds in enumerate((0.3, 1.0, 2.7, 5.1))]
    wanted = Bench.of(weights, "float32", torch.device("cpu"), 4, plain=True).look(clips, WORDS)
    found = Bench.of(weights, "float32", device, 4).look(clips, WORDS)
    alike = sum(a == b for one, other in zip(found, wanted, strict=True) for a, b in zip(one, other, strict=True))
    print(f"same: {alike} of {len(clips) * WORDS} tokens, {len({token for one in wanted for token in one})} different")


def time_ours(bench: Bench, streams: int, times: int, device: torch.device) -> None:
    clips = [noise(3.0, seed) for seed in range(streams)]
    before = bench.look(clips, WORDS)
    first = median_ms(lambda: bench.look(clips, WORDS), times, device)
    again = median_ms(lambda: bench.next_look(clips, before), times, device)
    held = statistics.mean(bench.next_look(clips, before))
    spans = {name: 1e3 * (stop - start) for name, (start, stop) in bench.runner.phases.items()}
    requests = [bench.request(clip) for clip in clips]
    bench.step(requests)
    decode = median_ms(lambda: bench.step(requests), min(times, 20), device)
    for request in requests:
        request.free()
    parts = " ".join(f"{name}={spans[name]:.2f}" for name in ("launch", "device", "encode") if name in spans)
    print(
        f"ours {streams:2} streams: first look of {WORDS} tokens {first:.2f} ms, next look {again:.2f} ms"
        f" ({held:.1f} tokens of it), decode step {decode:.2f} ms; the next look's step: {parts}"
    )


def run(parts: Sequence[str], times: int, *, dry: bool) -> None:
    """Run the parts and print how long each took; a failure does not stop the next part."""
    device = torch.device("cpu" if dry else "cuda")
    mode: Mode = "float32" if dry else "bfloat16"
    shape, times = ("speck", 1) if dry else ("0.6b", times)
    begin = time.perf_counter()

    def told(name: str) -> None:
        print(f"[{time.perf_counter() - begin:.1f} s: {name}]", flush=True)

    def part(name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except FAILURES:
            traceback.print_exc()
        told(name)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        added = write_vocabulary(path)
        if "same" in parts:
            part("same", lambda: check_same(path, added, device))
        if set(parts) == {"same"}:
            return
        peer = make_peer(shape, added, getattr(torch, mode), device)
        told("peer loaded")
        bench = Bench.of(StateDict(peer, path), mode, device, max(STREAMS))
        told("ours loaded")
        for streams in STREAMS:
            if "ours" in parts:
                part("ours", partial(time_ours, bench, streams, times, device))
