"""Loads the models that listen and speak, and warms them up, as parts of an engine."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from voxlane.codecs.voicing import Voicing
from voxlane.engine.api import LISTEN_RATE, EngineConfig
from voxlane.engine.build.model_part import ModelPart, Progress, build_resources, check_task, make_cache, rehearse
from voxlane.engine.build.qwen3_tts import is_talker, talking_part
from voxlane.engine.errors import EngineConfigError, ModelError
from voxlane.engine.jobs.speak_clauses import SpeakClausesJobFactory
from voxlane.engine.jobs.transcribe import TranscribeJobFactory
from voxlane.engine.loop.execution import Engine
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.hibari.model import Hibari
from voxlane.engine.models.kokoro import Kokoro
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.qwen3_asr.config import Qwen3ASRConfig
from voxlane.engine.models.registry import Recognition, load_recogniser
from voxlane.engine.models.synthesis import Synthesiser
from voxlane.engine.models.whisper import Whisper
from voxlane.engine.runners.clause_tts import ClausePayload, ClauseTTS, ConcurrentClauseTTS
from voxlane.engine.runners.cuda.recogniser import CudaRecogniser
from voxlane.engine.runners.cuda.vad import DeviceVad
from voxlane.engine.runners.recogniser import Recogniser, TranscriptionPayload
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import ModelResources
from voxlane.engine.schedule.request import ClipStates, Request
from voxlane.engine.weights import store
from voxlane.engine.weights.files import open_weights

log = logging.getLogger(__name__)

HIBARI = "hibari"
"""The voice that is a Python package; all others are named by the catalog or a path."""

FLOAT32_WIDTH = 512
"""On a GPU models up to this hidden size (Moonshine, Whisper tiny and base) are kept in float32: they cost little
there, and rounding can cost a word. Larger ones are kept in bfloat16, which multiplies fifteen times as fast."""

WARM_UP_CLIPS_S = (1.0, 6.0, 3.0)
WARM_UP_CLAUSES = ("Yes.", "This is a short clause,", "and this one is there to show what a longer one costs.")
WARM_UP_STEPS = 4


def listening_part(config: EngineConfig, device: torch.device, progress: Progress) -> ModelPart:
    """Return the model that listens, or raise ModelError with one line for a person."""
    check_task("asr_model", config.asr_model, "asr")
    path = store.load_path(
        config.asr_model,
        mirrors=config.mirrors,
        progress=lambda done: progress("fetching the listening model", done),
        checking=lambda done: progress("checking the listening model", done),
    )
    weights = open_weights(path)
    mode = listening_mode(config, weights.config, device)
    model = load_recogniser(weights, mode, lambda done: progress("loading the listening model", done), device)
    if isinstance(model, Whisper) and device.type == "cpu":
        model.use_short_windows()
    window = model.context_tokens + (0 if model.inline else model.states(model.max_samples))
    # Independent of the chat model's pages: these hold seconds, and rounding can cost a word.
    pages = "bfloat16" if model.dtype is torch.bfloat16 else "float32"
    cache = make_cache(config, model, "asr_memory_mib", pages, host_mib=0, least_tokens=window, device=device)
    resources = build_resources(cache, prefix_cache=False, encoder=CostModel())
    part = ModelPart(
        resources,
        _listening_engine(config, model, cache, device, progress),
        # A GPU serves so many streams that their voice activity detection would keep the host busy.
        TranscribeJobFactory(model, resources.pool, Voicing if device.type == "cpu" else _device_ears(device).open),
        {
            "asr_model": config.asr_model,
            "asr_languages": model.languages,
            "asr_translates": model.tasks is not None,
        },
    )
    progress("warming up", 0.0)
    rehearse("asr", part, [_clip(model, resources.pool, seconds) for seconds in WARM_UP_CLIPS_S], WARM_UP_STEPS)
    progress("warming up", 1.0)
    return part


def _device_ears(device: torch.device) -> DeviceVad:
    ears = DeviceVad(device)
    ears.capture()
    return ears


def listening_mode(config: EngineConfig, settings: dict[str, object], device: torch.device) -> Mode:
    """Return the type in which the listening model's weights are kept."""
    if device.type == "cpu":
        return "packed" if config.weights == "auto" else config.weights
    if config.weights == "packed":
        raise EngineConfigError("engine.weights: packed weights are for CPUs; a GPU takes bfloat16 or float32")
    if config.weights != "auto":
        return config.weights
    width = settings.get("hidden_size", settings.get("d_model"))
    if "thinker_config" in settings or "text_config" in settings:  # a language model that reads sound
        width = Qwen3ASRConfig.from_dict(settings).text.hidden_size
    return "bfloat16" if isinstance(width, int) and width > FLOAT32_WIDTH else "float32"


def _listening_engine(
    config: EngineConfig, model: Recognition, cache: KVCache, device: torch.device, progress: Progress
) -> Recogniser:
    if device.type == "cpu":
        return Recogniser(model, cache)
    engine = CudaRecogniser(model, cache, device, max_rows=config.max_batch)
    progress("capturing steps that listen", 0.0)
    engine.capture(lambda done: progress("capturing steps that listen", done))
    return engine


def _clip(model: Recognition, pool: BlockPool, seconds: float) -> Request:
    samples = np.random.default_rng(0).normal(0, 0.01, int(seconds * LISTEN_RATE)).astype(np.float32)
    states = model.states(len(samples))
    prompt = model.prompt_tokens(model.languages[0], states)
    return Request(
        id=f"warm-up-{seconds}",
        task="asr",
        tokens=list(prompt),
        prompt_tokens=len(prompt),
        table=BlockTable(pool),
        limit=model.context_tokens,
        model="asr",
        payload=TranscriptionPayload(samples),
        clip=ClipStates(states, None if model.inline else BlockTable(pool), model.window(len(samples))),
    )


def speaking_part(config: EngineConfig, device: torch.device, progress: Progress) -> ModelPart:
    """Return the model that speaks, or raise ModelError with one line for a person."""
    threads = config.threads or len(os.sched_getaffinity(0))
    if config.tts_model == HIBARI:
        store.check_files(HIBARI, progress=lambda done: progress("checking the voice", done))
        model, engine = _hibari(threads, device, progress)
    else:
        check_task("tts_model", config.tts_model, "tts")
        path = store.load_path(
            config.tts_model,
            mirrors=config.mirrors,
            progress=lambda done: progress("fetching the voice", done),
            checking=lambda done: progress("checking the voice", done),
        )
        if is_talker(path):
            return talking_part(config, path, device, progress)
        model, engine = _kokoro(path, threads, device)
    progress("warming up", 0.0)
    resources = ModelResources(BlockPool(0, 1, prefix_cache=False), BlockPool(0, 1, prefix_cache=False), CostModel())
    voices = (model.default_voice, *(voice for voice in model.voices if voice != model.default_voice))
    beside = engine if isinstance(engine, ConcurrentClauseTTS) else None
    part = ModelPart(
        resources,
        engine,
        SpeakClausesJobFactory(model, resources.pool, beside.thread if beside is not None else None),
        {
            "tts_model": config.tts_model,
            "speak_rate": model.sample_rate,
            "voices": voices,
            # Kokoro takes too long to say words twice, and a GPU writes a clause in no time.
            "begins_early": isinstance(model, Hibari) and device.type == "cpu",
        },
        close=beside.close if beside is not None else None,
        rest=model.rest,
        wake=partial(_wake_beside, model),
    )
    rehearse("tts", part, _clauses(model, resources.pool, WARM_UP_CLAUSES), 1)
    progress("warming up", 1.0)
    return part


def _wake_beside(model: Synthesiser) -> None:
    """Wake a voice in a thread: that takes half a second, and an engine that is back need not wait for it to chat."""

    def wake() -> None:
        try:
            model.wake()
        except (ModelError, OSError) as error:  # the next clause tries it again, and fails alone
            log.error("voice=asleep error=%s", error)

    threading.Thread(target=wake, name="voice", daemon=True).start()


def _hibari(threads: int, device: torch.device, progress: Progress) -> tuple[Synthesiser, Engine]:
    model = Hibari(threads)
    if device.type == "cpu":
        model.warm_up()
        return model, ClauseTTS(model)
    from voxlane.engine.runners.cuda.clause_tts import CudaClauseTTS
    from voxlane.engine.runners.cuda.selfcheck import KernelError

    model.warm_up_reading()
    engine = CudaClauseTTS(model, device)
    engine.capture(lambda done: progress("capturing the voice", done))
    if not (found := engine.check()).good:
        raise KernelError(found)
    return model, engine


def _kokoro(path: Path, threads: int, device: torch.device) -> tuple[Synthesiser, Engine]:
    model = Kokoro(path, threads)
    model.warm_up()
    if device.type == "cpu":
        return model, ClauseTTS(model)
    log.warning("tts=%s device=cpu: Kokoro has no CUDA path, it speaks in a thread beside the steps", path.name)
    return model, ConcurrentClauseTTS(model)


def _clauses(model: Synthesiser, pool: BlockPool, texts: Sequence[str]) -> list[Request]:
    requests = []
    for text in texts:
        prepared = model.prepare(text)
        clause = ClausePayload(prepared, model.default_voice, 1.0, 0)
        requests.append(
            Request(
                id=text,
                task="tts",
                tokens=[],
                prompt_tokens=0,
                table=BlockTable(pool),
                model="tts",
                payload=clause,
                unit=prepared.phonemes,
            )
        )
    return requests
