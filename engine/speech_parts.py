"""The models that listen and speak, loaded and warm, as parts of an engine."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from voxlane.codecs.voicing import Voicing
from voxlane.engine.api import LISTEN_RATE, EngineConfig
from voxlane.engine.cost import CostModel
from voxlane.engine.jobs.listen import ListenDesk
from voxlane.engine.jobs.speak import SpeakDesk
from voxlane.engine.kv import BlockPool, BlockTable
from voxlane.engine.models import Moonshine, Whisper, load_recogniser
from voxlane.engine.models.hibari import Hibari
from voxlane.engine.models.kokoro import Kokoro
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.synthesis import Synthesiser
from voxlane.engine.parts import Part, Progress, build_station, check_task, make_cache, rehearse
from voxlane.engine.plan import Station
from voxlane.engine.recogniser import Recogniser
from voxlane.engine.request import Request
from voxlane.engine.voice import Clause, Voice
from voxlane.engine.weights import store
from voxlane.engine.weights.files import open_weights

HIBARI = "hibari"
"""The voice that comes with its package; every other one is named by the catalog or a path."""

WARM_UP_CLIPS_S = (1.0, 6.0, 3.0)
WARM_UP_CLAUSES = ("Yes.", "This is a short clause,", "and this one is there to show what a longer one costs.")
WARM_UP_STEPS = 4


def listening_part(config: EngineConfig, progress: Progress) -> Part:
    """Return the model that listens, or raise ModelError with one line for a person."""
    check_task("asr_model", config.asr_model, "asr")
    path = store.resolve(config.asr_model, progress=lambda done: progress("fetching the listening model", done))
    mode: Mode = "packed" if config.weights == "auto" else config.weights
    model = load_recogniser(open_weights(path), mode, lambda done: progress("loading the listening model", done))
    window = model.states(model.max_samples) + model.context_tokens
    # Whatever the chat model's pages are: these hold seconds, and a rounded one can cost a word.
    cache = make_cache(config, model, "asr_memory_mib", "float32", host_mib=0, least_tokens=window)
    station = build_station(cache, prefix_cache=False, encoder=CostModel())
    part = Part(
        station,
        Recogniser(model, cache),
        ListenDesk(model, station.pool, Voicing),
        {"asr_model": config.asr_model, "asr_languages": model.languages},
    )
    progress("warming up", 0.0)
    rehearse("asr", part, [_clip(model, station.pool, seconds) for seconds in WARM_UP_CLIPS_S], WARM_UP_STEPS)
    progress("warming up", 1.0)
    return part


def _clip(model: Moonshine | Whisper, pool: BlockPool, seconds: float) -> Request:
    samples = np.random.default_rng(0).normal(0, 0.01, int(seconds * LISTEN_RATE)).astype(np.float32)
    prompt = model.prompt_tokens(model.languages[0])
    return Request(
        id=f"warm-up-{seconds}",
        task="asr",
        tokens=list(prompt),
        prompt_tokens=len(prompt),
        table=BlockTable(pool),
        limit=model.context_tokens,
        model="asr",
        material=samples,
        cross=BlockTable(pool),
        states=model.states(len(samples)),
    )


def speaking_part(config: EngineConfig, progress: Progress) -> Part:
    """Return the model that speaks, or raise ModelError with one line for a person."""
    threads = config.threads or len(os.sched_getaffinity(0))
    model: Synthesiser
    if config.tts_model == HIBARI:
        model = Hibari(threads)
    else:
        check_task("tts_model", config.tts_model, "tts")
        path = store.resolve(config.tts_model, progress=lambda done: progress("fetching the voice", done))
        model = Kokoro(path, threads)
    progress("warming up", 0.0)
    model.warm_up()
    station = Station(BlockPool(0, 1, prefix_cache=False), BlockPool(0, 1, prefix_cache=False), CostModel())
    voices = (model.default_voice, *(voice for voice in model.voices if voice != model.default_voice))
    part = Part(
        station,
        Voice(model),
        SpeakDesk(model, station.pool),
        {"tts_model": config.tts_model, "speak_rate": model.sample_rate, "voices": voices},
    )
    rehearse("tts", part, _clauses(model, station.pool, WARM_UP_CLAUSES), 1)
    progress("warming up", 1.0)
    return part


def _clauses(model: Synthesiser, pool: BlockPool, texts: Sequence[str]) -> list[Request]:
    requests = []
    for text in texts:
        prepared = model.prepare(text)
        clause = Clause(prepared, model.default_voice, 1.0, 0)
        requests.append(
            Request(
                id=text,
                task="tts",
                tokens=[],
                prompt_tokens=0,
                table=BlockTable(pool),
                model="tts",
                material=clause,
                unit=prepared.phonemes,
            )
        )
    return requests
