"""Loads a checkpoint of Qwen3-TTS as part of an engine: talker, codec, vocabulary and voices."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from voxlane.engine.api import EngineConfig
from voxlane.engine.build.defaults import weights_of
from voxlane.engine.build.model_part import ModelPart, Progress, build_resources, make_cache, rehearse
from voxlane.engine.errors import ModelConfigError
from voxlane.engine.jobs.clone_voice import CloneVoiceJobFactory
from voxlane.engine.jobs.speak_codec import CodecVoiceFacts, SpeakCodecJobFactory
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_tts.codec import Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.config import Qwen3TTSConfig, SpeechSampling
from voxlane.engine.models.qwen3_tts.encoder import Qwen3TTSEncoder
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import Clone, open_utterance
from voxlane.engine.models.registry import QWEN3_TTS
from voxlane.engine.runners.codec_tts import CodecTTS, FrameOutcome, UtteranceStream, stream_of
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import SPEECH_FRAMES, Row
from voxlane.engine.schedule.request import Request
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.voices.cloned import Cloner, Voices
from voxlane.engine.voices.prompt import VoicePrompts
from voxlane.engine.weights.files import OpenedWeights, open_weights
from voxlane.engine.weights.json_files import read_json

log = logging.getLogger(__name__)

CODEC = "speech_tokenizer"
"""The folder of the codec in a checkpoint."""

LEAST_TOKENS = 512
"""Positions that a cache must hold at least: half a minute of speech after a prompt."""

WARM_UP_TOGETHER = (1, 1, 1)
WARM_UP_CROWD = (1, 1, 2, 4, 8, 16, 32)
WARM_UP_STEPS = 5
"""Utterances that join at a time at start, on the host and on a device, and the steps after each join."""


def is_talker(path: Path) -> bool:
    """Return whether a path is a checkpoint of Qwen3-TTS."""
    config = path / "config.json"
    return config.is_file() and read_json(config).get("architectures") == [QWEN3_TTS]


def talking_part(config: EngineConfig, path: Path, device: torch.device, progress: Progress) -> ModelPart:
    """Return the model that speaks, or raise ModelError with one line for a person."""
    weights, codec_weights = open_weights(path), open_weights(path / CODEC)
    mode = weights_of(config, device.type)
    model = Qwen3TTS.load(weights, mode, lambda done: progress("loading the voice", done), device)
    codec = _codec(model.config, codec_weights, model.talker.dtype, device)
    engine = _engine(config, model, codec, device, progress)
    cache = engine.cache
    resources = build_resources(cache, prefix_cache=False, abilities=SPEECH_FRAMES)
    facts = CodecVoiceFacts(
        end_code=model.end_code,
        frame_samples=codec.frame_samples,
        sample_rate=codec.sample_rate,
        limit=min(model.talker.context_tokens, cache.num_blocks * cache.block_tokens),
        slots=engine.slots,
    )
    voices = Voices(model.config, device)
    manners = VoicePrompts(model.config, Tokenizer.from_weights(weights), _sampling(path, model.end_code), voices)
    cloning = _cloning(model, codec_weights, manners, voices)
    ready: dict[str, object] = {
        "tts_model": config.tts_model,
        "speak_rate": codec.sample_rate,
        "voices": manners.voices,
        "speak_languages": tuple(model.config.languages),
        "instructed": model.config.takes_instructions,
        "one_pace": True,
        "respells_only": True,
        "reads_words": True,
        "clones": cloning is not None,
    }
    part = ModelPart(resources, engine, SpeakCodecJobFactory(facts, resources.pool, manners.of), ready, cloning)
    progress("warming up", 0.0)
    _warm_up(part, engine, model)
    progress("warming up", 1.0)
    return part


def _codec(config: Qwen3TTSConfig, weights: OpenedWeights, dtype: torch.dtype, device: torch.device) -> Qwen3TTSCodec:
    """Return the codec of a talker; on a device float16 replaces bfloat16.

    It is as fast, and its sound is 18 dB nearer to float32's (random weights: -47 dB, bfloat16 -29).
    """
    narrow = device.type == "cuda" and dtype is torch.bfloat16
    codec = Qwen3TTSCodec.load(weights, torch.float16 if narrow else dtype, device=device)
    if narrow and not codec.stays_finite():
        log.warning("codec=bfloat16 reason=float16_overflows")
        codec = Qwen3TTSCodec.load(weights, dtype, device=device)
    if codec.groups != config.groups or codec.config.codebook_size < config.codes:
        raise ModelConfigError(
            f"{CODEC}: its frames are {codec.groups} codes below {codec.config.codebook_size}, "
            f"the talker's {config.groups} below {config.codes}"
        )
    return codec


def _sampling(path: Path, end: int) -> SpeechSampling:
    file = path / "generation_config.json"
    return SpeechSampling.from_dict(read_json(file) if file.is_file() else {}, end)


def _engine(
    config: EngineConfig, model: Qwen3TTS, codec: Qwen3TTSCodec, device: torch.device, progress: Progress
) -> CodecTTS:
    cache, rows = _pages(config, model, device), config.max_batch
    if device.type == "cpu":
        return CodecTTS(model, codec, cache, slots=rows, max_rows=rows)
    from voxlane.engine.runners.cuda.codec_tts import CudaCodecTTS

    engine = CudaCodecTTS(model, codec, cache, device, slots=rows, max_rows=rows, max_tokens=config.max_step_tokens)
    progress("capturing the voice", 0.0)
    engine.capture(lambda done: progress("capturing the voice", done))
    return engine


def _pages(config: EngineConfig, model: Qwen3TTS, device: torch.device) -> KVCache:
    """Return the cache of a talker."""
    pages = "bfloat16" if model.talker.dtype is torch.bfloat16 else "float32"
    least = min(LEAST_TOKENS, model.talker.context_tokens)
    return make_cache(
        config,
        model.talker,
        "tts_memory_mib",
        pages,
        host_mib=config.swap_memory_mib,
        least_tokens=least,
        device=device,
    )


def _cloning(
    model: Qwen3TTS, codec: OpenedWeights, manners: VoicePrompts, voices: Voices
) -> CloneVoiceJobFactory | None:
    """Return the factory of jobs that make voices, if the checkpoint can speak with them."""
    if model.speaker_encoder is None:
        return None
    encoder = Qwen3TTSEncoder.load(codec)
    return CloneVoiceJobFactory(
        Cloner(model.config, model.speaker_encoder.on_host(), encoder, manners.tokenize), voices
    )


def _warm_up(part: ModelPart, engine: CodecTTS, model: Qwen3TTS) -> None:
    """Run a few utterances, so that kernels are warm and costs known before the first request."""
    together = WARM_UP_CROWD if engine.overlaps else WARM_UP_TOGETHER
    slots = [engine.slots.take() for _ in range(min(sum(together), engine.slots.count))]
    nothing = (0,) * model.config.groups

    def take(row: Row, outcome: Outcome) -> None:
        stream = stream_of(row)
        assert isinstance(outcome, FrameOutcome)
        if outcome.frame is not None:
            stream.utterance.add(nothing if outcome.frame[0] == model.end_code else outcome.frame)
            stream.decoded += len(outcome.samples) // engine.codec.frame_samples
        row.request.tokens = [0] * stream.utterance.available

    requests = [_utterance(model, part.resources.pool, slot) for slot in slots]
    rehearse("tts", part, requests, WARM_UP_STEPS, together, take)
    for slot in slots:
        engine.slots.release(slot)


def _utterance(model: Qwen3TTS, pool: BlockPool, slot: int) -> Request:
    config = model.config
    clone = Clone(torch.zeros(config.talker.hidden_size)) if config.kind == "base" else None
    speaker = next(iter(config.speakers), "") if config.kind == "custom_voice" else ""
    utterance = open_utterance(config, [config.text.start] * 3, speaker=speaker, clone=clone)
    utterance.append([config.text.pad])
    utterance.end()
    return Request(
        id=f"warm-up-{slot}",
        task="tts",
        tokens=[0] * utterance.available,
        prompt_tokens=utterance.available,
        table=BlockTable(pool),
        model="tts",
        payload=UtteranceStream(utterance, SpeechSampling(), 0, slot=slot),
    )
