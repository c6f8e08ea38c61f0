"""Loads a folder of LFM2-Audio as part of an engine: the model, its codec and its vocabulary."""

from __future__ import annotations

from pathlib import Path

import torch

from voxlane.engine.api import LISTEN_RATE, ConverseModel, EngineConfig, SamplingParams
from voxlane.engine.build.defaults import weights_of
from voxlane.engine.build.model_part import ModelPart, Progress, build_resources, check_task, make_cache, rehearse
from voxlane.engine.errors import EngineConfigError, ModelConfigError
from voxlane.engine.jobs.converse import ConverseJobFactory
from voxlane.engine.jobs.dialogue_job import ConverseFacts
from voxlane.engine.memory.blocks import BlockTable
from voxlane.engine.models.lfm2_audio.config import CODES, END_OF_TURN, Lfm2AudioConfig
from voxlane.engine.models.lfm2_audio.dialogue import Dialogue, number_of
from voxlane.engine.models.lfm2_audio.interleaving import Turn
from voxlane.engine.models.lfm2_audio.kyutai_names import FILE, kyutai_mimi
from voxlane.engine.models.lfm2_audio.mimi import MimiCodec
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.lfm2_audio.prompt import ConversePrompts
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.runners.converse import ConverseOutcome, ConverseRunner, DialogueStream, stream_of
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import CONVERSATION, Row
from voxlane.engine.schedule.request import Request
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights import store
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.safetensors import SafetensorsDirectory, SafetensorsFiles
from voxlane.engine.weights.tensors import WeightFile

CODEC = "mimi"
"""A folder with the codec in Hugging Face's layout; without it the codec is Kyutai's file beside the model."""

LEAST_TOKENS = 512
"""Positions that a cache must hold at least: half a minute of talk."""

CONTEXT_TOKENS = 8192
"""Positions that a conversation may have without a setting: five minutes. The model's own limit of 128,000 would make
the tables of every step long."""

WARM_UP_CLIPS_S = (1.0, 4.0, 2.0)
WARM_UP_STEPS = 8
"""Turns that join one by one at start, and the steps after each: text and sound are made in them."""


def conversing_part(config: EngineConfig, device: torch.device, progress: Progress) -> ModelPart:
    """Return the model that answers speech with speech, or raise ModelError with one line for a person."""
    if not config.asr_model:
        raise EngineConfigError(
            "engine.speech_model needs engine.asr_model: it writes what the person said, and hears when a turn ends"
        )
    check_task("speech_model", config.speech_model, "converse")
    path = store.load_path(
        config.speech_model,
        mirrors=config.mirrors,
        progress=lambda done: progress("fetching the speech model", done),
        checking=lambda done: progress("checking the speech model", done),
    )
    weights = open_weights(path)
    mode = weights_of(config, device.type)
    model = Lfm2Audio.load(
        weights,
        mode,
        lambda done: progress("loading the speech model", done),
        device,
        config.context_tokens or CONTEXT_TOKENS,
    )
    codec = load_codec(path, model.config.groups, device)
    engine = _engine(config, model, codec, device, progress)
    cache = engine.cache
    resources = build_resources(cache, prefix_cache=config.prefix_cache, abilities=CONVERSATION)
    facts = ConverseFacts(
        text_run=model.config.interleaved_text,
        sound_run=model.config.interleaved_frames,
        frame_samples=codec.frame_samples,
        sample_rate=codec.sample_rate,
        limit=min(model.context_tokens, cache.num_blocks * cache.block_tokens),
        slots=engine.slots,
        pool=resources.pool,
        prompts=ConversePrompts.of(model, Tokenizer.from_weights(weights)),
    )
    speech = ConverseModel(
        config.speech_model, facts.limit, model.config.encoder.states(10 * LISTEN_RATE) / 10, codec.frame_samples
    )
    ready: dict[str, object] = {"speech": speech, "speak_rate": codec.sample_rate}
    if not config.tts_model:  # it is the only voice
        ready |= {"one_pace": True, "respells_only": True}
    part = ModelPart(resources, engine, ConverseJobFactory(facts), ready)
    progress("warming up", 0.0)
    _warm_up(part, engine, facts)
    progress("warming up", 1.0)
    return part


def check_folder(path: Path) -> None:
    """Raise ModelError unless a path has the configuration of an LFM2-Audio and a codec."""
    Lfm2AudioConfig.from_dict(open_weights(path).config)
    _codec_files(path)


def load_codec(path: Path, groups: int, device: torch.device) -> MimiCodec:
    """Return the codec of a folder, or raise ModelError."""
    return MimiCodec.load(_codec_files(path), groups, device=device)


def _codec_files(path: Path) -> WeightFile:
    if (path / CODEC).is_dir():
        return SafetensorsDirectory(path / CODEC)
    if not (path / FILE).is_file():
        raise ModelConfigError(f"{path.name}: there is no codec in it, neither {FILE} nor a folder {CODEC}")
    return kyutai_mimi(SafetensorsFiles([path / FILE]))


def _engine(
    config: EngineConfig, model: Lfm2Audio, codec: MimiCodec, device: torch.device, progress: Progress
) -> ConverseRunner:
    cache = make_cache(
        config,
        model,
        "speech_memory_mib",
        "bfloat16" if model.dtype is torch.bfloat16 else "float32",
        host_mib=config.swap_memory_mib,
        least_tokens=min(LEAST_TOKENS, model.context_tokens),
        device=device,
    )
    rows = config.max_batch
    if device.type == "cpu":
        return ConverseRunner(model, codec, cache, slots=rows, max_rows=rows)
    from voxlane.engine.runners.cuda.converse import CudaConverse

    engine = CudaConverse(model, codec, cache, device, slots=rows, max_rows=rows, max_tokens=config.max_step_tokens)
    progress("capturing the speech model", 0.0)
    engine.capture(lambda done: progress("capturing the speech model", done))
    return engine


def _warm_up(part: ModelPart, engine: ConverseRunner, facts: ConverseFacts) -> None:
    """Answer a few clips of silence, so that kernels are warm and costs known before the first request."""
    count = min(len(WARM_UP_CLIPS_S), engine.slots.count)
    slots = [engine.slots.take() for _ in range(count)]

    def take(row: Row, outcome: Outcome) -> None:
        stream = stream_of(row)
        assert isinstance(outcome, ConverseOutcome)
        dialogue = stream.utterance
        if outcome.token is not None:
            dialogue.add_token(0 if outcome.token == END_OF_TURN else outcome.token)
        elif outcome.frame is not None:
            dialogue.add((0,) * len(outcome.frame) if outcome.frame[0] == CODES else outcome.frame)
            stream.decoded += len(outcome.samples) // facts.frame_samples
        row.request.tokens += [number_of(piece) for piece in dialogue.pieces[len(row.request.tokens) :]]

    requests = [_turn(facts, slot, seconds) for slot, seconds in zip(slots, WARM_UP_CLIPS_S, strict=False)]
    rehearse("speech", part, requests, WARM_UP_STEPS, take=take)
    for slot in slots:
        engine.slots.release(slot)


def _turn(facts: ConverseFacts, slot: int, seconds: float) -> Request:
    prompts, silence = facts.prompts, bytes(2 * int(seconds * LISTEN_RATE))
    dialogue = Dialogue([*prompts.open(()), *prompts.spoken(silence), *prompts.close()])
    dialogue.begin(Turn.interleaved(facts.text_run, facts.sound_run))
    numbers = [number_of(piece) for piece in dialogue.pieces]
    return Request(
        id=f"warm-up-{slot}",
        task="converse",
        tokens=numbers,
        prompt_tokens=len(numbers),
        table=BlockTable(facts.pool, "warm-up"),
        sampling=SamplingParams(max_tokens=WARM_UP_STEPS),
        limit=facts.limit,
        model="speech",
        payload=DialogueStream(dialogue, SpeechSampling(temperature=1.0, top_k=4), 0, slot=slot),
    )
