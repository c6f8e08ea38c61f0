"""Translation: the prompt asks for it, after a given language and after a detected one."""

from __future__ import annotations

import numpy as np
import pytest
from speech_simulation import START, PretendListeningModel, PretendVoicing

from voxlane.engine.api import LISTEN_RATE, Append, ListenParams, Submit
from voxlane.engine.errors import Refusal
from voxlane.engine.jobs.transcribe import TranscribeJob, TranscribeJobFactory
from voxlane.engine.memory.blocks import BlockPool

TRANSCRIBE, TRANSLATE, GERMAN = 900, 901, 902


class Multilingual(PretendListeningModel):
    """A model whose prompt names a language and a task."""

    languages = ("en", "de")
    detects_language = True
    tasks = (TRANSCRIBE, TRANSLATE)

    def prompt_tokens(self, language: str, states: int = 0) -> list[int]:
        return [START, GERMAN, TRANSCRIBE] if language else [START]

    def after_language(self, token: int) -> list[int]:
        return [TRANSCRIBE]

    def language_of(self, token: int) -> str:
        return "de"


def job_of(model: PretendListeningModel, listen: ListenParams) -> TranscribeJob:
    factory = TranscribeJobFactory(model, BlockPool(400, 16, prefix_cache=False), PretendVoicing)  # type: ignore[arg-type]
    job = factory.open(Submit("a", "asr", listen=listen), 0.0)
    assert isinstance(job, TranscribeJob)
    return job


@pytest.mark.parametrize(("translate", "task"), [(False, TRANSCRIBE), (True, TRANSLATE)])
@pytest.mark.parametrize("language", ["de", ""])
def test_the_prompt_names_the_task(translate: bool, task: int, language: str) -> None:
    job = job_of(Multilingual(), ListenParams(language, partials=False, translate=translate))
    noise = np.random.default_rng(5).uniform(-0.9, 0.9, 2 * LISTEN_RATE)
    job.append(Append("a", audio=(noise * 32767).astype("<i2").tobytes()), 0.0)
    job.end_input(0.0)
    begun = []
    while job.wants_work:
        begun += job.work(0.0).begin
    (request,) = begun
    if not language:
        assert request.tokens == [START]
        job._name_language(request, GERMAN)
    assert request.tokens == [START, GERMAN, task]


def test_a_model_that_cannot_translate_says_so() -> None:
    with pytest.raises(Refusal, match="does not translate"):
        job_of(PretendListeningModel(), ListenParams(translate=True))
